// Pairs appended to the lists of all taps, eight rows of a kernel map at a time.
//
// Most entries of a map are -1, in no order that a branch predictor could learn. So there is no
// branch: 8 x 8 entries are transposed, those of a tap that exist are moved to the front by a
// permutation from a table, and all eight are stored behind the list, of which only the existing
// ones count. Compaction by a table of shuffles: Schlegel, Willhalm and Lehner, 2011 ("Fast
// sorted-set intersection using SIMD instructions").
#pragma once

#include <algorithm>
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "present.h"
#include "problem.h"

namespace voxax::VOXAX_ISA {

// Entries stored behind the end of a list.
inline constexpr int64_t kOverhang = 8;

#if defined(__AVX2__)
// The places of the bits of a byte that are set, the lowest first; then zeros.
struct SetBits {
  uint8_t of[256][8] = {};

  constexpr SetBits() {
    for (int byte = 0; byte < 256; ++byte) {
      int count = 0;
      for (int bit = 0; bit < 8; ++bit) {
        if (byte >> bit & 1) of[byte][count++] = static_cast<uint8_t>(bit);
      }
    }
  }
};
inline constexpr SetBits kSetBits;

// A list for each tap: `pitch` entries, of which the last kOverhang are never in it.
struct Lists {
  int32_t* rows;
  int32_t* ins;
  int64_t* counts;
  int64_t pitch;
};

// taps[i]: entry i of eight rows.
inline void ReadTransposed(const int32_t* from, int64_t stride, __m256i* taps) {
  __m256i both[8], pairs[8];
  for (int half = 0; half < 2; ++half) {
    for (int r = 0; r < 4; ++r) {
      const int32_t* low = from + r * stride + half * 4;
      both[half * 4 + r] = _mm256_inserti128_si256(
          _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low))),
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(low + 4 * stride)), 1);
    }
    for (int r = 0; r < 4; r += 2) {
      const __m256i a = both[half * 4 + r], b = both[half * 4 + r + 1];
      pairs[half * 4 + r] = _mm256_unpacklo_epi32(a, b);
      pairs[half * 4 + r + 1] = _mm256_unpackhi_epi32(a, b);
    }
    for (int i = 0; i < 2; ++i) {
      const __m256i a = pairs[half * 4 + i], b = pairs[half * 4 + i + 2];
      taps[half * 4 + i * 2] = _mm256_unpacklo_epi64(a, b);
      taps[half * 4 + i * 2 + 1] = _mm256_unpackhi_epi64(a, b);
    }
  }
}

// Appends the pairs of `rows` rows, less what is left over of eight; returns how many rows were
// read. There are 8 taps at least.
inline int64_t AppendPairs(const int32_t* neighbors, int64_t stride, int64_t rows, int64_t taps,
                           int64_t in_rows, const Lists& lists, BadRow* bad) {
  const auto limit = static_cast<int32_t>(std::min<int64_t>(in_rows, INT32_MAX));
  const __m256i limits = _mm256_set1_epi32(limit);
  __m256i least = _mm256_setzero_si256(), most = _mm256_set1_epi32(-1);
  int64_t m = 0;
  for (; m + 8 <= rows; m += 8) {
    const __m256i first = _mm256_set1_epi32(static_cast<int32_t>(m));
    for (int64_t k = 0; k < taps; k += 8) {
      const int64_t begin = std::min(k, taps - 8);  // The last eight may overlap others.
      __m256i entries[8];
      ReadTransposed(neighbors + m * stride + begin, stride, entries);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        if (begin + i < k) continue;
        const __m256i in = entries[i];
        least = _mm256_min_epi32(least, in);
        most = _mm256_max_epi32(most, in);
        // The sign is set where 0 <= in < limit.
        const __m256i inside = _mm256_andnot_si256(in, _mm256_sub_epi32(in, limits));
        const auto present =
            static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(inside)));
        const __m256i order = _mm256_cvtepu8_epi32(
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kSetBits.of[present])));
        const int64_t tap = begin + i, at = tap * lists.pitch + lists.counts[tap];
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(lists.rows + at),
                            _mm256_add_epi32(order, first));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(lists.ins + at),
                            _mm256_permutevar8x32_epi32(in, order));
        lists.counts[tap] += __builtin_popcount(present);
      }
    }
  }
  const __m256i odd = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(-1), least),
                                      _mm256_cmpgt_epi32(most, _mm256_sub_epi32(limits,
                                                                  _mm256_set1_epi32(1))));
  if (!_mm256_testz_si256(odd, odd)) {
    for (int64_t i = 0; i < m; ++i) {
      ForPresent(neighbors + i * stride, taps, in_rows, bad, [](int64_t) {});
    }
  }
  return m;
}
#endif

}  // namespace voxax::VOXAX_ISA
