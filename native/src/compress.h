// Pairs appended to the lists of all taps, eight or sixteen rows of a kernel map at a time.
//
// Most entries of a map are -1, in no order that a branch predictor could learn. So there is no
// branch: 8 x 8 entries are transposed, those of a tap that exist are moved to the front, and all
// are stored behind the list, of which only the existing ones count. AVX-512 has an instruction
// that moves them; AVX2 permutes as a table says. Compaction by a table of shuffles: Schlegel,
// Willhalm and Lehner, 2011 ("Fast sorted-set intersection using SIMD instructions").
#pragma once

#include <algorithm>
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "present.h"
#include "problem.h"

namespace voxax::VOXAX_ISA {

#if defined(__AVX512F__)
inline constexpr int kRowsAtOnce = 16;
#else
inline constexpr int kRowsAtOnce = 8;
#endif
// What is stored behind the end of a list.
inline constexpr int64_t kOverhang = kRowsAtOnce;

#if defined(__AVX2__)
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

#if defined(__AVX512F__)
// What a tap has in kRowsAtOnce rows.
struct Entries {
  __m512i in;

  static void Read(const int32_t* from, int64_t stride, Entries* taps) {
    __m256i low[8], high[8];
    ReadTransposed(from, stride, low);
    ReadTransposed(from + 8 * stride, stride, high);
    for (int i = 0; i < 8; ++i) {
      taps[i].in = _mm512_inserti64x4(_mm512_castsi256_si512(low[i]), high[i], 1);
    }
  }

  // Stores those in [0, limit) at `ins` and their rows, from `first` on, at `rows`; returns how
  // many they are.
  int Append(int32_t limit, int32_t first, int32_t* rows, int32_t* ins) const {
    const __m512i order = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __mmask16 present = _mm512_cmplt_epu32_mask(in, _mm512_set1_epi32(limit));
    const __m512i row = _mm512_add_epi32(order, _mm512_set1_epi32(first));
    _mm512_storeu_si512(rows, _mm512_maskz_compress_epi32(present, row));
    _mm512_storeu_si512(ins, _mm512_maskz_compress_epi32(present, in));
    return __builtin_popcount(present);
  }
};

// The least and the largest of all entries.
class Extent {
 public:
  void Add(const Entries& entries) {
    least_ = _mm512_min_epi32(least_, entries.in);
    most_ = _mm512_max_epi32(most_, entries.in);
  }
  // Whether any is outside [-1, limit).
  bool Exceeds(int32_t limit) const {
    return _mm512_reduce_min_epi32(least_) < -1 || _mm512_reduce_max_epi32(most_) >= limit;
  }

 private:
  __m512i least_ = _mm512_setzero_si512(), most_ = _mm512_set1_epi32(-1);
};
#else
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

// What a tap has in kRowsAtOnce rows.
struct Entries {
  __m256i in;

  static void Read(const int32_t* from, int64_t stride, Entries* taps) {
    __m256i read[8];
    ReadTransposed(from, stride, read);
    for (int i = 0; i < 8; ++i) taps[i].in = read[i];
  }

  // Stores those in [0, limit) at `ins` and their rows, from `first` on, at `rows`; returns how
  // many they are.
  int Append(int32_t limit, int32_t first, int32_t* rows, int32_t* ins) const {
    // The sign is set where 0 <= in < limit.
    const __m256i inside = _mm256_andnot_si256(in, _mm256_sub_epi32(in, _mm256_set1_epi32(limit)));
    const auto present = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(inside)));
    const __m256i order = _mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kSetBits.of[present])));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows),
                        _mm256_add_epi32(order, _mm256_set1_epi32(first)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(ins), _mm256_permutevar8x32_epi32(in, order));
    return __builtin_popcount(present);
  }
};

// The least and the largest of all entries.
class Extent {
 public:
  void Add(const Entries& entries) {
    least_ = _mm256_min_epi32(least_, entries.in);
    most_ = _mm256_max_epi32(most_, entries.in);
  }
  // Whether any is outside [-1, limit).
  bool Exceeds(int32_t limit) const {
    const __m256i odd =
        _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(-1), least_),
                        _mm256_cmpgt_epi32(most_, _mm256_set1_epi32(limit - 1)));
    return !_mm256_testz_si256(odd, odd);
  }

 private:
  __m256i least_ = _mm256_setzero_si256(), most_ = _mm256_set1_epi32(-1);
};
#endif

// Appends the pairs of `rows` rows, less what is left over of kRowsAtOnce; returns how many rows
// were read. There are 8 taps at least.
inline int64_t AppendPairs(const int32_t* neighbors, int64_t stride, int64_t rows, int64_t taps,
                           int64_t in_rows, const Lists& lists, BadRow* bad) {
  const auto limit = static_cast<int32_t>(std::min<int64_t>(in_rows, INT32_MAX));
  Extent extent;
  int64_t m = 0;
  for (; m + kRowsAtOnce <= rows; m += kRowsAtOnce) {
    for (int64_t k = 0; k < taps; k += 8) {
      const int64_t begin = std::min(k, taps - 8);  // The last eight may overlap others.
      Entries entries[8];
      Entries::Read(neighbors + m * stride + begin, stride, entries);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        if (begin + i < k) continue;
        extent.Add(entries[i]);
        const int64_t tap = begin + i, at = tap * lists.pitch + lists.counts[tap];
        lists.counts[tap] += entries[i].Append(limit, static_cast<int32_t>(m), lists.rows + at,
                                               lists.ins + at);
      }
    }
  }
  if (extent.Exceeds(limit)) {
    for (int64_t i = 0; i < m; ++i) {
      ForPresent(neighbors + i * stride, taps, in_rows, bad, [](int64_t) {});
    }
  }
  return m;
}
#endif

}  // namespace voxax::VOXAX_ISA
