// Depthwise forward and dgrad: one filter for each channel. There is little arithmetic to a byte:
// features are read where they are, and what is used again stays in registers.
#pragma once

#include <algorithm>
#include <vector>

#include "buffer.h"
#include "depthwise_channels.h"
#include "depthwise_rows.h"
#include "depthwise_taps.h"
#include "elements.h"
#include "kernels.h"

namespace voxax::VOXAX_ISA {

// Whether rows of y go past the caches: whole vectors of a result that the last cache would not hold
// beside what is read. Such a line is not read before it is written, and displaces no features, which
// each thread's own cache holds until the last of their pairs. Without, 128 channels took 1.25 to 1.4
// times as long (2 cores of an AMD EPYC, Zen 4), 256 channels 1.3 times (Zen 5).
template <typename T>
bool StreamsRows(const Depthwise& p) {
  const int64_t row_bytes = p.channels * static_cast<int64_t>(sizeof(T));
  const int64_t table_bytes = p.out_rows * p.taps * static_cast<int64_t>(sizeof(int32_t));
  const int64_t bytes = (p.in_rows + p.out_rows) * row_bytes + table_bytes;
  return p.last_cache > 0 && bytes > p.last_cache && row_bytes % kBytes == 0 &&
         reinterpret_cast<uintptr_t>(p.y) % kBytes == 0;
}

template <typename Stored, typename T>
using DepthwiseRows = void (*)(const Depthwise&, int64_t, int64_t, const std::vector<Channels>&,
                               const T*, BadRow*);

// What sums a range of output rows. Rows of few vectors: with AVX-512, which lists a row's pairs in few
// instructions, in the order of their counts. Tap by tap, where each sum is loaded and stored for each
// pair, 16 channels took 1.1 to 1.3 times as long, 32 channels 1.25 to 1.55; with AVX2 0.8 times, 32
// channels (four of its vectors) as long as in order (2 cores of an AMD EPYC, Zen 4).
template <typename Stored, typename T>
DepthwiseRows<Stored, T> RowsOf(const Depthwise& p, bool wide) {
  if (wide) return StreamsRows<T>(p) ? SumInOrder<true, Stored, T> : SumInOrder<false, Stored, T>;
#if defined(__AVX512F__)
  return SumByCount<Stored, T>;
#else
  return SumPairs<Stored, T>;
#endif
}

// Tiles that a thread works through in one go, at most. Its own cache then holds what neighbouring
// rows share: with one tile at a time 256 channels took 1.3 times as long (2 cores of an AMD EPYC, Zen 5).
inline constexpr int64_t kMostTiles = 16;

template <typename Stored>
void RunDepthwise(const Depthwise& p, const Parallel& parallel, BadRow* bad) {
  using T = typename SumOf<Stored>::type;
  const Stored* given = static_cast<const Stored*>(p.w);
  Buffer<T> w(p.taps * p.channels);
  for (int64_t k = 0; k < p.taps; ++k) {
    const Stored* filter = given + (p.reversed ? p.taps - 1 - k : k) * p.channels;
    for (int64_t c = 0; c < p.channels; ++c) w[k * p.channels + c] = Widen(filter[c]);
  }
  const std::vector<Channels> ranges = SplitChannels<T>(p.channels);
  const bool wide = !ranges.empty() && ranges[0].vectors >= kWideVectors;
  const DepthwiseRows<Stored, T> sum = RowsOf<Stored, T>(p, wide);
  int64_t unit = p.tile;
  if (sum != SumPairs<Stored, T>) {
    const int64_t tiles = p.out_rows / p.tile / (8 * parallel.threads());
    unit *= std::max<int64_t>(1, std::min(tiles, kMostTiles));
  }
  parallel.Run((p.out_rows + unit - 1) / unit, [&](int64_t u) {
    const int64_t first = u * unit, end = std::min(first + unit, p.out_rows);
    sum(p, first, end, ranges, w.get(), bad);
  });
}

}  // namespace voxax::VOXAX_ISA
