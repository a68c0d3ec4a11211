// The pairs of one tile of output rows, tap by tap.
#pragma once

#include <algorithm>
#include <cstdint>

#include "buffer.h"
#include "compress.h"
#include "present.h"
#include "problem.h"
#include "simd.h"

namespace voxax::VOXAX_ISA {

// Memory that partial sums of wgrad may take, unless one copy of the weight is more.
inline constexpr int64_t kStripeBytes = 16 << 20;

// Pairs of a tap, in the order of their rows.
struct Pairs {
  const int32_t* row;  // of the tile
  const int32_t* in;

  Pairs operator+(int64_t i) const { return {row + i, in + i}; }
};

// Lists of the pairs that exist, made in one pass over the tile's rows of the neighbor table. A
// thread keeps one, so that it does not allocate memory for every tile.
class Tile {
 public:
  // For so many taps, and at most so many rows at a time.
  void Reserve(int64_t rows, int64_t taps) {
    pitch_ = rows + kOverhang;
    taps_ = taps;
    rows_.Reserve(pitch_ * taps);
    ins_.Reserve(pitch_ * taps);
    counts_.Reserve(taps);
  }

  // `neighbors` points at the first tap of the first row, `stride` is from row to row.
  void Read(const int32_t* neighbors, int64_t stride, int64_t rows, int64_t in_rows,
            BadRow* bad) {
    std::fill(counts_.get(), counts_.get() + taps_, 0);
    int64_t m = 0;
#if defined(__AVX2__)
    if (taps_ >= 8) {
      const Lists lists{rows_.get(), ins_.get(), counts_.get(), pitch_};
      m = AppendPairs(neighbors, stride, rows, taps_, in_rows, lists, bad);
    }
#endif
    for (; m < rows; ++m) {
      const int32_t* row = neighbors + m * stride;
      ForPresent(row, taps_, in_rows, bad, [&](int64_t k) {
        const int64_t at = k * pitch_ + counts_[k]++;
        rows_[at] = static_cast<int32_t>(m);
        ins_[at] = row[k];
      });
    }
  }

  // Row m of the pairs becomes rows[m] - first.
  void Relabel(const int32_t* rows, int32_t first) {
    for (int64_t k = 0; k < taps_; ++k) {
      int32_t* listed = rows_.get() + k * pitch_;
      for (int64_t i = 0; i < counts_[k]; ++i) listed[i] = rows[listed[i]] - first;
    }
  }

  Pairs pairs(int64_t tap) const {
    return {rows_.get() + tap * pitch_, ins_.get() + tap * pitch_};
  }
  int64_t count(int64_t tap) const { return counts_[tap]; }

 private:
  int64_t pitch_ = 0, taps_ = 0;
  Buffer<int32_t> rows_, ins_;
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
