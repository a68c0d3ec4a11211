// Depthwise wgrad: tap by tap, over lists of the pairs (tile.h), the tap's sums in registers.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "depthwise_channels.h"
#include "elements.h"
#include "frontier.h"
#include "kernels.h"
#include "tile.h"

namespace voxax::VOXAX_ISA {

// sums += x[in] * dy[row], for V vectors of channels, or `width` where V is 0.
template <int V, typename Stored, typename T>
void AddProducts(const Stored* x, const Stored* dy, int64_t stride, Pairs pairs, int64_t count,
                 int64_t width, T* sums) {
  using S = Simd<T>;
  if constexpr (V == 0) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<Stored, T>) {
      typename S::Vec total = S::LoadFirst(sums, width);
      for (int64_t j = 0; j < count; ++j) {
        total += S::LoadFirst(x + pairs.in[j] * stride, width) *
                 S::LoadFirst(dy + pairs.row[j] * stride, width);
      }
      S::StoreFirst(sums, total, width);
      return;
    }
#endif
    for (int64_t j = 0; j < count; ++j) {
      const Stored* a = x + pairs.in[j] * stride;
      const Stored* b = dy + pairs.row[j] * stride;
      for (int64_t c = 0; c < width; ++c) sums[c] += Widen(a[c]) * Widen(b[c]);
    }
  } else {
    typename S::Vec total[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) total[v] = S::Load(sums + v * S::kLanes);
    for (int64_t j = 0; j < count; ++j) {
      const Stored* a = x + pairs.in[j] * stride;
      const Stored* b = dy + pairs.row[j] * stride;
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) {
        total[v] += LoadWide<Stored, T>(a + v * S::kLanes) * LoadWide<Stored, T>(b + v * S::kLanes);
      }
    }
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) S::Store(sums + v * S::kLanes, total[v]);
  }
}

// Output rows at a time: of up to 512 bytes each, their gradients stay in the first-level cache beside
// the features that a tap reads, and what the next ones need is fetched meanwhile. With 256, and
// nothing fetched, wgrad of 64 channels took 1.2 to 1.4 times as long; with 64, 128 channels took 1.1
// times. Fewer than 32 leave a tap too few pairs (2 cores of an AMD EPYC, Zen 5).
inline int64_t RowsAtOnce(int64_t row_bytes) {
  constexpr int64_t kGradientBytes = 16384, kFewest = 32;
  return std::max(kFewest, kGradientBytes / std::max<int64_t>(row_bytes, 1));
}

// The tap of most pairs, which is multiplied first: it reads nearly all gradients of a tile from front
// to end, which the chip's own prefetching follows. In the order of the taps the first reads few, in
// leaps; then 256 channels took 1.1 times as long, with or without gradients fetched ahead, and
// fewer channels as long as now (2 cores of an AMD EPYC, Zen 5).
inline int64_t DensestTap(const Tile& tile, int64_t taps) {
  int64_t densest = 0;
  for (int64_t k = 1; k < taps; ++k) {
    if (tile.count(k) > tile.count(densest)) densest = k;
  }
  return densest;
}

// dw[k, c] = sum over rows m of x[neighbors[m, k], c] * dy[m, c], in stripes of rows whose number
// follows from the shapes alone; their sums are added in order.
template <typename Stored>
void RunDepthwiseWeight(const Depthwise& p, const Parallel& parallel, BadRow* bad) {
  using T = typename SumOf<Stored>::type;
  constexpr int64_t kStripes = 32;
  const Stored* x = static_cast<const Stored*>(p.x);
  const Stored* dy = static_cast<const Stored*>(p.w);
  const int64_t weights = p.taps * p.channels;
  const int64_t affordable = kStripeBytes / std::max<int64_t>(weights * sizeof(T), 1);
  const int64_t stripes = std::max<int64_t>(
      1, std::min({kStripes, affordable, (p.out_rows + p.tile - 1) / p.tile}));
  const int64_t each = (p.out_rows + stripes - 1) / stripes;
  const std::vector<Channels> ranges = SplitChannels<T>(p.channels);
  Buffer<T> parts(stripes * weights);
  const int64_t row_bytes = p.channels * static_cast<int64_t>(sizeof(Stored));
  const int64_t step = std::min(p.tile, RowsAtOnce(row_bytes));
  parallel.Run(stripes, [&](int64_t stripe) {
    T* part = parts.get() + stripe * weights;
    std::fill(part, part + weights, T(0));
    Frontier features(x, row_bytes), gradients(dy, row_bytes);
    thread_local Tile tile;
    tile.Reserve(std::min(step, each), p.taps);
    const int64_t end = std::min(p.out_rows, (stripe + 1) * each);
    for (int64_t first = stripe * each; first < end; first += step) {
      const int64_t rows = std::min(step, end - first);
      tile.Read(p.neighbors + first * p.taps, p.taps, rows, p.in_rows, bad);
      int64_t furthest = -1;
      for (int64_t k = 0; k < p.taps; ++k) {
        const int64_t count = tile.count(k);
        if (count > 0) furthest = std::max<int64_t>(furthest, tile.pairs(k).in[count - 1]);
      }
      features.MoveTo(std::min(p.in_rows, furthest + 1 + step), 2 * step);
      gradients.MoveTo(std::min(end, first + 2 * step), 2 * step);
      const int64_t turns = std::max<int64_t>(1, p.taps * static_cast<int64_t>(ranges.size()));
      const int64_t read = features.lines() / turns + 1, more = gradients.lines() / turns + 1;
      const int64_t densest = DensestTap(tile, p.taps);
      for (const Channels& channels : ranges) {
        ForVectors(channels.vectors, [&](auto vectors) {
          for (int64_t turn = 0; turn < p.taps; ++turn) {
            const int64_t k = turn == 0 ? densest : turn - (turn <= densest);
            features.Fetch(read);
            gradients.Fetch(more);
            AddProducts<vectors()>(x + channels.begin, dy + first * p.channels + channels.begin,
                                   p.channels, tile.pairs(k), tile.count(k), channels.width,
                                   part + k * p.channels + channels.begin);
          }
        });
      }
    }
  });
  T* sum = parts.get();
  for (int64_t s = 1; s < stripes; ++s) {
    const T* part = sum + s * weights;
    for (int64_t i = 0; i < weights; ++i) sum[i] += part[i];
  }
  Stored* dw = static_cast<Stored*>(p.y);
  for (int64_t i = 0; i < weights; ++i) Narrow(sum[i], dw + i);
}

}  // namespace voxax::VOXAX_ISA
