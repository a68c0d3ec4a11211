// The rows that a strided or transposed layer leads to, in spconv's order.
#pragma once

#include <cstdint>

namespace voxax {

inline constexpr int64_t kMostAxes = 4;

struct Reach {
  const int32_t* coords;  // [rows, 1 + ndim], batch index first, inside their shape
  int64_t rows, ndim;
  const int64_t* sizes;  // [5, ndim]: kernel size, stride, padding, dilation, shape of the outputs
  bool transposed;
  int64_t capacity;  // of `out`
  int32_t* out;      // [capacity, 1 + ndim]
  int32_t* found;    // [rows, taps]: the output that an input reaches through a tap, or -1
};

// Returns the number of outputs, -1 without memory, -2 where there are more than the capacity or than
// 64 bits can number. Outputs come in the order in which a loop over taps, and inside it over rows,
// reaches them first.
int64_t FindReached(const Reach& p);

}  // namespace voxax
