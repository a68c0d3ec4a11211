// Padding rows: those between the last voxel and the capacity of an array.
//
// They cost next to nothing, and contents do not matter: a kernel map has no entry in such a row and
// names none, so no kernel reads features there. Results are zero there, which is written past the
// caches, without a look at the row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "parallel.h"
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

// Rows [begin, end) of y [., channels] become zero.
template <typename Stored>
void ClearRows(Stored* y, int64_t begin, int64_t end, int64_t channels, const Parallel& parallel) {
  constexpr int64_t kPart = 1 << 20;
  char* to = reinterpret_cast<char*>(y + begin * channels);
  const int64_t bytes = (end - begin) * channels * static_cast<int64_t>(sizeof(Stored));
  parallel.Run((bytes + kPart - 1) / kPart, [&](int64_t i) {
    WriteZeros(to + i * kPart, std::min(kPart, bytes - i * kPart));
    FinishStreams();
  });
}

}  // namespace voxax::VOXAX_ISA
