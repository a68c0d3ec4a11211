// Whether results go past the caches.
#pragma once

#include <cstdint>

#include "simd.h"

namespace voxax::VOXAX_ISA {

// For rows of whole vectors: a result that the last cache would not hold beside what is read, and of
// which it would be a good part. Such a line is not read before it is written, and displaces no
// features, which each thread's own cache holds until the last of their pairs. Without, a depthwise
// layer of 128 channels took 1.25 to 1.4 times as long (2 cores of an AMD EPYC, Zen 4), one of 256
// channels 1.3 times (Zen 5).
inline bool StreamsRows(const void* y, int64_t rows, int64_t row_bytes, int64_t bytes_read,
                        int64_t last_cache) {
  const int64_t written = rows * row_bytes;
  return last_cache > 0 && written + bytes_read > last_cache && written > last_cache / 4 &&
         row_bytes % kBytes == 0 && reinterpret_cast<uintptr_t>(y) % kBytes == 0;
}

// Of a kernel map.
inline int64_t TableBytes(int64_t rows, int64_t taps) {
  return rows * taps * static_cast<int64_t>(sizeof(int32_t));
}

}  // namespace voxax::VOXAX_ISA
