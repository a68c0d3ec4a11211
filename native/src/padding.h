// Padding rows: those between the last voxel and the capacity of an array.
//
// They take next to no time, and in results next to no memory. What arguments hold there does not matter:
// a kernel map has no entry in such a row and names none, and where rows have a mask it is false there,
// so nothing is read. In results these rows are zero, as in every array that XLA sees: kernels look for
// the last row that counts, leave pages of new memory behind it alone, which are zero already, give large
// ones back to the system, and clear others past the caches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "pages.h"
#include "parallel.h"
#ifndef VOXAX_ISA
#define VOXAX_ISA baseline
#endif
#include "simd.h"

namespace voxax::VOXAX_ISA {

// Rows of a kernel map up to the last that has an entry: there is nothing to compute in the others. Of
// the map, that last row and what follows are read.
inline int64_t RowsWithPairs(const int32_t* neighbors, int64_t rows, int64_t taps) {
  constexpr int64_t kBlock = 256;
  int64_t entries = rows * taps;
  while (entries >= kBlock) {
    const int32_t* block = neighbors + entries - kBlock;
    int32_t all = -1;
    for (int64_t i = 0; i < kBlock; ++i) all &= block[i];
    if (all != -1) break;
    entries -= kBlock;
  }
  while (entries > 0 && neighbors[entries - 1] == -1) --entries;
  return taps == 0 ? 0 : (entries + taps - 1) / taps;
}

// Rows up to the last that is valid; NULL: all are.
inline int64_t RowsWithValid(const bool* valid, int64_t rows) {
  if (valid == nullptr) return rows;
  constexpr int64_t kBlock = 64;
  for (; rows >= kBlock; rows -= kBlock) {
    bool any = false;
    for (int64_t i = rows - kBlock; i < rows; ++i) any |= valid[i];
    if (any) break;
  }
  while (rows > 0 && !valid[rows - 1]) --rows;
  return rows;
}

// Writes zeros, past the caches where they are many. FinishStreams() comes before they are handed on.
inline void WriteZeros(char* to, int64_t bytes) {
  constexpr int64_t kMany = 1 << 15;
  if (bytes < kMany) {
    std::memset(to, 0, bytes);
    return;
  }
  using S = Simd<float>;
  const int64_t lead = -reinterpret_cast<uintptr_t>(to) % kBytes;
  std::memset(to, 0, lead);
  const int64_t end = lead + (bytes - lead) / kBytes * kBytes;
  for (int64_t i = lead; i < end; i += kBytes) {
    S::Stream(reinterpret_cast<float*>(to + i), typename S::Vec{});
  }
  std::memset(to + end, 0, bytes - end);
}

// Rows [begin, end) of y [., channels] become zero, after those before them were written.
template <typename Stored>
void ClearRows(Stored* y, int64_t begin, int64_t end, int64_t channels, const Parallel& parallel) {
  if (begin >= end || channels == 0) return;
  char* to = reinterpret_cast<char*>(y + begin * channels);
  const int64_t bytes = (end - begin) * channels * static_cast<int64_t>(sizeof(Stored));
  // Of an array without a written row the system's answer would not tell what memory it is.
  const std::vector<Span> spans = begin > 0 ? ReleasePages(to, bytes) : std::vector<Span>{{to, bytes}};
  parallel.Run(static_cast<int64_t>(spans.size()), [&](int64_t i) {
    WriteZeros(spans[i].begin, spans[i].bytes);
    FinishStreams();
  });
}

}  // namespace voxax::VOXAX_ISA
