// The pairs of one tile of output rows, tap by tap.
#pragma once

#include <algorithm>
#include <cstdint>

#include "buffer.h"
#include "problem.h"
#include "simd.h"

namespace voxax::VOXAX_ISA {

// Memory that partial sums of wgrad may take, unless one copy of the weight is more.
inline constexpr int64_t kStripeBytes = 16 << 20;

struct Pair {
  int32_t row;  // of the tile
  int32_t in;
};

// Lists of the pairs that exist, made in one pass over the tile's rows of the neighbour table.
class Tile {
 public:
  Tile(int64_t rows, int64_t taps)
      : rows_(rows), taps_(taps), pairs_(rows * taps), counts_(taps) {}

  void Read(const int32_t* neighbors, int64_t rows, int64_t in_rows, BadRow* bad) {
    for (int64_t k = 0; k < taps_; ++k) counts_[k] = 0;
    const auto limit = static_cast<uint32_t>(in_rows);
    for (int64_t m = 0; m < rows; ++m) {
      const int32_t* row = neighbors + m * taps_;
      int32_t least = -1;
      int64_t most = -1;
      for (int64_t k = 0; k < taps_; ++k) {
        const int32_t in = row[k];
        // No branch: an absent pair is written too, and overwritten by the next one.
        pairs_[k * rows_ + counts_[k]] = {static_cast<int32_t>(m), in};
        counts_[k] += static_cast<uint32_t>(in) < limit;
        least = std::min(least, in);
        most = std::max<int64_t>(most, in);
      }
      if (least < -1) bad->store(least);
      if (most >= in_rows) bad->store(most);
    }
  }

  const Pair* pairs(int64_t tap) const { return pairs_.get() + tap * rows_; }
  int64_t count(int64_t tap) const { return counts_[tap]; }

 private:
  int64_t rows_, taps_;
  Buffer<Pair> pairs_;
  Buffer<int64_t> counts_;
};

// A range of columns that is computed at a time: `vectors` registers wide, some lanes unused.
struct Panel {
  int64_t begin, width;
  int vectors;
};

// Splits `columns` into panels: as many of the widest as fit, then narrower ones.
template <typename T>
int SplitColumns(int64_t columns, Panel* panels) {
  constexpr int64_t lanes = Simd<T>::kLanes;
  int count = 0;
  for (int64_t begin = 0; begin < columns;) {
    const int64_t left = (columns - begin + lanes - 1) / lanes;
    const int vectors = left >= 4 && kMostVectors >= 4 ? 4 : left >= 2 ? 2 : 1;
    const int64_t width = std::min(columns - begin, vectors * lanes);
    if (panels != nullptr) panels[count] = {begin, width, vectors};
    ++count;
    begin += width;
  }
  return count;
}

}  // namespace voxax::VOXAX_ISA
