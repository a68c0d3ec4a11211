// Marks the entries of a kernel map's row that are rows of the input.
#pragma once

#include <algorithm>
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "problem.h"

namespace voxax::VOXAX_ISA {

// Which of up to 32 entries of the table are rows of the input, as bits. `odd` gets what is neither
// that nor -1.
inline uint32_t Present(const int32_t* entries, int count, int32_t in_rows, bool* odd) {
  uint32_t present = 0, absent = 0;
  int k = 0;
#if defined(__AVX2__)
  if (count >= 8) {
    const __m256i none = _mm256_set1_epi32(-1), limit = _mm256_set1_epi32(in_rows);
    for (;; k += 8) {
      k = std::min(k, count - 8);  // The last eight may be read twice: bits are only set.
      const __m256i in = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(entries + k));
      const __m256i inside =
          _mm256_and_si256(_mm256_cmpgt_epi32(in, none), _mm256_cmpgt_epi32(limit, in));
      const __m256i missing = _mm256_cmpeq_epi32(in, none);
      present |= static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(inside))) << k;
      absent |= static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(missing))) << k;
      if (k + 8 >= count) break;
    }
    k = count;
  }
#endif
  const auto limit = static_cast<uint32_t>(in_rows);
  for (; k < count; ++k) {
    present |= static_cast<uint32_t>(static_cast<uint32_t>(entries[k]) < limit) << k;
    absent |= static_cast<uint32_t>(entries[k] == -1) << k;
  }
  *odd |= (present | absent) != (count == 32 ? ~0u : (1u << count) - 1);
  return present;
}

// Calls of(k) for the taps of one row that have an input row, in their order.
template <typename Of>
inline void ForPresent(const int32_t* row, int64_t taps, int64_t in_rows, BadRow* bad,
                       const Of& of) {
  const auto limit = static_cast<int32_t>(std::min<int64_t>(in_rows, INT32_MAX));
  for (int64_t k = 0; k < taps; k += 32) {
    const int count = static_cast<int>(std::min<int64_t>(32, taps - k));
    bool odd = false;
    uint32_t present = Present(row + k, count, limit, &odd);
    for (; present != 0; present &= present - 1) of(k + __builtin_ctz(present));
    if (!odd) continue;
    for (int i = 0; i < count; ++i) {
      if (row[k + i] < -1 || row[k + i] >= limit) bad->store(row[k + i]);
    }
  }
}

}  // namespace voxax::VOXAX_ISA
