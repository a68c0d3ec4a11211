// Decides whether results are written past the caches.
#pragma once

#include <cstdint>

#include "simd.h"

namespace voxax::VOXAX_ISA {

// True for rows of whole vectors whose result does not fit into the last cache beside the operands, and
// is a large part of it. Such a line is not read before it is written, and displaces no features, which
// each thread's own cache holds until the last of their pairs. Variants that were measured:
// benchmarks/results/native_variants.md.
inline bool StreamsRows(const void* y, int64_t rows, int64_t row_bytes, int64_t bytes_read,
                        int64_t last_cache) {
  const int64_t written = rows * row_bytes;
  return last_cache > 0 && written + bytes_read > last_cache && written > last_cache / 4 &&
         row_bytes % kBytes == 0 && reinterpret_cast<uintptr_t>(y) % kBytes == 0;
}

// The rows that are read of `rows`, if so many of a kernel map's rows have entries: about as large a part
// is padding.
inline int64_t InProportion(int64_t rows, int64_t with_pairs, int64_t map_rows) {
  return map_rows == 0 ? 0 : rows * with_pairs / map_rows;
}

// Of a kernel map.
inline int64_t TableBytes(int64_t rows, int64_t taps) {
  return rows * taps * static_cast<int64_t>(sizeof(int32_t));
}

}  // namespace voxax::VOXAX_ISA
