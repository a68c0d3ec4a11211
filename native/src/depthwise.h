// Depthwise forward and dgrad: one filter for each channel. There is little arithmetic per
// byte: features are read in place, and values that are used again stay in registers.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "buffer.h"
#include "depthwise_channels.h"
#include "depthwise_rows.h"
#include "depthwise_taps.h"
#include "elements.h"
#include "kernels.h"
#include "padding.h"
#include "stream.h"

namespace voxax::VOXAX_ISA {

// Whether narrow rows are summed in the order of their counts or tap by tap. Tap by tap each sum is
// loaded and stored for each pair; AVX-512 lists a row's pairs in few instructions, so it need not.
// Variants that were measured: benchmarks/results/native_variants.md.
#if defined(__AVX512F__)
inline constexpr bool kByCount = true;
#else
inline constexpr bool kByCount = false;
#endif

// The largest number of consecutive tiles for one thread, whose own cache then holds the rows that
// neighboring tiles share.
inline constexpr int64_t kMostTiles = 32;

template <typename Stored>
void RunDepthwise(const Depthwise& problem, const Parallel& parallel, BadRow* bad) {
  Depthwise p = problem;
  p.out_rows = RowsWithPairs(p.neighbors, p.out_rows, p.taps);
  using T = typename SumOf<Stored>::type;
  const Stored* given = static_cast<const Stored*>(p.w);
  Buffer<T> w(p.taps * p.channels);
  for (int64_t k = 0; k < p.taps; ++k) {
    const Stored* filter = given + (p.reversed ? p.taps - 1 - k : k) * p.channels;
    for (int64_t c = 0; c < p.channels; ++c) w[k * p.channels + c] = Widen(filter[c]);
  }
  const std::vector<Channels> ranges = SplitChannels<T>(p.channels);
  const int64_t row_bytes = p.channels * static_cast<int64_t>(sizeof(T));
  const bool wide = !ranges.empty() && ranges[0].vectors >= kWideVectors;
  const bool stream =
      wide && std::is_same_v<Stored, T> &&
      StreamsRows(p.y, p.out_rows, row_bytes,
                  InProportion(p.in_rows, p.out_rows, problem.out_rows) * row_bytes +
                      TableBytes(p.out_rows, p.taps),
                  p.last_cache);
  const int64_t most_tiles = wide || kByCount ? kMostTiles : 1;
  parallel.RunStretches((p.out_rows + p.tile - 1) / p.tile, most_tiles, [&](int64_t t, int64_t after) {
    const int64_t first = t * p.tile, end = std::min(after * p.tile, p.out_rows);
    if (stream) {
      SumInOrder<std::is_same_v<Stored, T>, Stored, T>(p, first, end, ranges, w.get(), bad);
    } else if (wide) {
      SumInOrder<false, Stored, T>(p, first, end, ranges, w.get(), bad);
    } else if constexpr (kByCount) {
      SumByCount<Stored, T>(p, first, end, ranges, w.get(), bad);
    } else {
      SumPairs<Stored, T>(p, first, end, ranges, w.get(), bad);
    }
  });
  ClearRows(static_cast<Stored*>(p.y), p.out_rows, problem.out_rows, p.channels, parallel);
}

}  // namespace voxax::VOXAX_ISA
