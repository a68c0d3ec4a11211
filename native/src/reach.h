// The rows that a strided or transposed layer leads to, in spconv's order.
#pragma once

#include <cstdint>
#include <vector>

namespace voxax {

inline constexpr int64_t kMostAxes = 4;

struct Reach {
  const int32_t* coords;  // [rows, 1 + ndim], batch index first, inside their shape
  int64_t rows, ndim;
  const int64_t* sizes;  // [5, ndim]: kernel size, stride, padding, dilation, shape of the outputs
  bool transposed;
};

// What was found. The arrays of the outputs can be made only when their number is known.
struct Reached {
  struct Pair {
    int32_t tap, number;
  };

  int64_t width, taps;
  std::vector<int32_t> coords;  // [count, width], in the order of their numbers
  std::vector<int32_t> places;  // of each number in the order of the outputs
  std::vector<Pair> pairs;      // by input row
  std::vector<int64_t> ends;    // of each input row's pairs

  int64_t count() const { return static_cast<int64_t>(places.size()); }

  // out [count, width]; neighbors [count, taps]: the input row under each tap of an output, or -1.
  void Write(int32_t* out, int32_t* neighbors) const;
};

// Outputs come in the order in which a loop over taps, and inside it over rows, reaches them first.
// The batch indices times the cells of the shape are below 2^63. Throws std::length_error for 2^31
// outputs and more.
Reached FindReached(const Reach& p);

}  // namespace voxax
