// Depthwise products: one filter for each channel. There is little arithmetic to a byte, so rows are
// read where they are, and sums of a block of channels stay in registers.
#pragma once

#include "elements.h"
#include "kernels.h"
#include "tile.h"

namespace voxax::VOXAX_ISA {

// An input row that an output row has, and the filter of its tap.
template <typename Stored, typename T>
struct Tap {
  const Stored* x;
  const T* w;
};

// y[c .. c + V * lanes] = the sum over taps of x * w there.
template <int V, typename Stored, typename T>
inline void SumTaps(const Tap<Stored, T>* taps, int64_t count, int64_t c, Stored* y) {
  using S = Simd<T>;
  typename S::Vec total[V] = {};
  for (int64_t j = 0; j < count; ++j) {
    const Stored* x = taps[j].x + c;
    const T* w = taps[j].w + c;
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      total[v] += LoadWide<Stored, T>(x + v * S::kLanes) * S::Load(w + v * S::kLanes);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
    if constexpr (std::is_same_v<Stored, T>) {
      S::Store(y + c + v * S::kLanes, total[v]);
    } else {
      for (int i = 0; i < S::kLanes; ++i) Narrow(total[v][i], y + c + v * S::kLanes + i);
    }
  }
}

template <typename Stored>
void RunDepthwise(const Depthwise& p, const Parallel& parallel, BadRow* bad) {
  using T = typename SumOf<Stored>::type;
  constexpr int64_t lanes = Simd<T>::kLanes;
  const Stored* x = static_cast<const Stored*>(p.x);
  const Stored* given = static_cast<const Stored*>(p.w);
  Stored* y = static_cast<Stored*>(p.y);
  Buffer<T> w(p.taps * p.channels);
  for (int64_t i = 0; i < p.taps * p.channels; ++i) w[i] = Widen(given[i]);

  const int64_t tiles = (p.out_rows + p.tile - 1) / p.tile;
  parallel.Run(tiles, [&](int64_t t) {
    const int64_t end = std::min(p.out_rows, (t + 1) * p.tile);
    Buffer<Tap<Stored, T>> taps(p.taps);
    for (int64_t m = t * p.tile; m < end; ++m) {
      const int32_t* row = p.neighbors + m * p.taps;
      int64_t count = 0;
      ForPresent(row, p.taps, p.in_rows, bad, [&](int64_t k) {
        taps[count++] = {x + row[k] * p.channels,
                         w.get() + (p.reversed ? p.taps - 1 - k : k) * p.channels};
      });
      Stored* to = y + m * p.channels;
      int64_t c = 0;
      for (; c + 8 * lanes <= p.channels; c += 8 * lanes) SumTaps<8>(taps.get(), count, c, to);
      for (; c + 2 * lanes <= p.channels; c += 2 * lanes) SumTaps<2>(taps.get(), count, c, to);
      for (; c + lanes <= p.channels; c += lanes) SumTaps<1>(taps.get(), count, c, to);
      for (; c < p.channels; ++c) {
        T total = 0;
        for (int64_t j = 0; j < count; ++j) total += Widen(taps[j].x[c]) * taps[j].w[c];
        Narrow(total, to + c);
      }
    }
  });
}

// total[c] += x[c] * dy[c], for channels c < count.
template <typename Stored, typename T>
inline void AddScaled(const Stored* x, const T* dy, T* total, int64_t count) {
  using S = Simd<T>;
  int64_t c = 0;
  for (; c + S::kLanes <= count; c += S::kLanes) {
    S::Store(total + c, S::Load(total + c) + LoadWide<Stored, T>(x + c) * S::Load(dy + c));
  }
  for (; c < count; ++c) total[c] += Widen(x[c]) * dy[c];
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
  Buffer<T> parts(stripes * weights);
  parallel.Run(stripes, [&](int64_t s) {
    T* part = parts.get() + s * weights;
    std::fill(part, part + weights, T(0));
    Buffer<T> wide(p.channels);
    for (int64_t m = s * each; m < std::min(p.out_rows, (s + 1) * each); ++m) {
      const int32_t* row = p.neighbors + m * p.taps;
      bool widened = false;
      ForPresent(row, p.taps, p.in_rows, bad, [&](int64_t k) {
        if (!widened) {  // rows without pairs may hold anything
          for (int64_t c = 0; c < p.channels; ++c) wide[c] = Widen(dy[m * p.channels + c]);
          widened = true;
        }
        AddScaled(x + row[k] * p.channels, wide.get(), part + k * p.channels, p.channels);
      });
    }
  });
  Stored* dw = static_cast<Stored*>(p.y);
  for (int64_t i = 0; i < weights; ++i) {
    T sum = parts[i];
    for (int64_t s = 1; s < stripes; ++s) sum += parts[s * weights + i];
    Narrow(sum, dw + i);
  }
}

}  // namespace voxax::VOXAX_ISA
