// The pairs of output rows, row by row; tile.h lists them tap by tap.
#pragma once

#include <algorithm>
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "buffer.h"
#include "compress.h"
#include "present.h"
#include "problem.h"

namespace voxax::VOXAX_ISA {

// Entries written behind the end of a row's list.
#if defined(__AVX512F__)
inline constexpr int64_t kRowOverhang = 16;
#else
inline constexpr int64_t kRowOverhang = 8;
#endif

// Writes the entries of one row of a kernel map that are rows of the input to `in`, and their taps
// to `tap`, without a branch on what they are; returns how many. `odd` is set if an entry is
// neither that nor -1.
inline int64_t ListRow(const int32_t* row, int64_t taps, int32_t in_rows, int32_t* in,
                       int32_t* tap, bool* odd) {
  int64_t count = 0, k = 0;
#if defined(__AVX512F__)
  if (taps >= 16) {
    const __m512i limit = _mm512_set1_epi32(in_rows), none = _mm512_set1_epi32(-1);
    const __m512i places =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    uint32_t known = 0xffff;
    for (; k < taps; k += 16) {
      const int64_t begin = std::min(k, taps - 16);  // The last ones may overlap others.
      const __m512i entries = _mm512_loadu_si512(row + begin);
      const uint32_t present = _mm512_cmplt_epu32_mask(entries, limit);
      known &= present | _mm512_cmpeq_epi32_mask(entries, none);
      const auto listed = static_cast<__mmask16>(present & (0xffffu << (k - begin)));
      const __m512i taps_here =
          _mm512_add_epi32(places, _mm512_set1_epi32(static_cast<int32_t>(begin)));
      _mm512_storeu_si512(in + count, _mm512_maskz_compress_epi32(listed, entries));
      _mm512_storeu_si512(tap + count, _mm512_maskz_compress_epi32(listed, taps_here));
      count += __builtin_popcount(listed);
    }
    *odd |= known != 0xffff;
    return count;
  }
#endif
#if defined(__AVX2__)
  if (taps >= 8) {
    const __m256i limit = _mm256_set1_epi32(in_rows), none = _mm256_set1_epi32(-1);
    uint32_t known = 0xff;
    for (; k < taps; k += 8) {
      const int64_t begin = std::min(k, taps - 8);
      const __m256i entries =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + begin));
      // The sign is set where 0 <= entry < in_rows.
      const __m256i inside = _mm256_andnot_si256(entries, _mm256_sub_epi32(entries, limit));
      const auto present = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(inside)));
      known &= present | static_cast<uint32_t>(_mm256_movemask_ps(
                             _mm256_castsi256_ps(_mm256_cmpeq_epi32(entries, none))));
      const uint32_t listed = present & (0xffu << (k - begin)) & 0xff;
      const __m256i order = _mm256_cvtepu8_epi32(
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kSetBits.of[listed])));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(in + count),
                          _mm256_permutevar8x32_epi32(entries, order));
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(tap + count),
          _mm256_add_epi32(order, _mm256_set1_epi32(static_cast<int32_t>(begin))));
      count += __builtin_popcount(listed);
    }
    *odd |= known != 0xff;
    return count;
  }
#endif
  for (; k < taps; ++k) {
    const bool present = static_cast<uint32_t>(row[k]) < static_cast<uint32_t>(in_rows);
    *odd |= !present && row[k] != -1;
    in[count] = row[k];
    tap[count] = static_cast<int32_t>(k);
    count += present;
  }
  return count;
}

// The largest of so many entries of a kernel map, or -1.
inline int64_t LargestEntry(const int32_t* entries, int64_t count) {
  int32_t largest = -1;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, entries[i]);
  return largest;
}

// Lists for a number of rows; a thread keeps one.
class RowPairs {
 public:
  struct Row {
    const int32_t* in;
    const int32_t* tap;
    int64_t count;

    // The input row of the last pair, or -1.
    int64_t last() const { return count > 0 ? in[count - 1] : -1; }
  };

  // For so many rows at a time, at most.
  void Reserve(int64_t rows, int64_t taps) {
    in_.Reserve(rows * taps + kRowOverhang);
    tap_.Reserve(rows * taps + kRowOverhang);
    ends_.Reserve(rows + 1);
  }

  void Read(const int32_t* neighbors, int64_t taps, int64_t rows, int64_t in_rows, BadRow* bad) {
    const auto limit = static_cast<int32_t>(std::min<int64_t>(in_rows, INT32_MAX));
    bool odd = false;
    ends_[0] = 0;
    for (int64_t m = 0; m < rows; ++m) {
      const int64_t at = ends_[m];
      ends_[m + 1] =
          at + ListRow(neighbors + m * taps, taps, limit, in_.get() + at, tap_.get() + at, &odd);
    }
    for (int64_t m = 0; odd && m < rows; ++m) {
      ForPresent(neighbors + m * taps, taps, in_rows, bad, [](int64_t) {});
    }
  }

  // The largest input row of the first so many rows, or -1.
  int64_t Furthest(int64_t rows) const { return LargestEntry(in_.get(), ends_[rows]); }

  Row row(int64_t m) const {
    return {in_.get() + ends_[m], tap_.get() + ends_[m], ends_[m + 1] - ends_[m]};
  }

 private:
  Buffer<int32_t> in_, tap_;
  Buffer<int64_t> ends_;
};

// Rows of such lists, those of fewest pairs first, otherwise in their order; a thread keeps one.
class RowsByCount {
 public:
  // For so many rows at a time, at most.
  void Reserve(int64_t rows, int64_t taps) {
    rows_.Reserve(rows);
    starts_.Reserve(taps + 2);
    counts_ = taps + 1;
  }

  void Sort(const RowPairs& pairs, int64_t rows) {
    int64_t* starts = starts_.get();
    std::fill(starts, starts + counts_ + 1, 0);
    for (int64_t m = 0; m < rows; ++m) ++starts[pairs.row(m).count + 1];
    for (int64_t count = 1; count < counts_; ++count) starts[count] += starts[count - 1];
    for (int64_t m = 0; m < rows; ++m) rows_[starts[pairs.row(m).count]++] = static_cast<int32_t>(m);
  }

  const int32_t* get() const { return rows_.get(); }

 private:
  int64_t counts_ = 0;
  Buffer<int32_t> rows_;
  Buffer<int64_t> starts_;
};

}  // namespace voxax::VOXAX_ISA
