// Depthwise products: one filter for each channel. There is little arithmetic to a byte, so rows are
// read where they are, and sums of a block of channels stay in registers.
#pragma once

#include "elements.h"
#include "kernels.h"
#include "tile.h"

namespace voxax::VOXAX_ISA {

// total[c] += x[c] * w[c], for channels c < Count; values are widened on the way.
template <int Count, typename Stored, typename T>
inline void AddScaled(const Stored* x, const T* w, T* total) {
  for (int c = 0; c < Count; ++c) total[c] += Widen(x[c]) * w[c];
}

template <typename Stored, typename T>
inline void AddScaled(const Stored* x, const T* w, T* total, int64_t count) {
  for (int64_t c = 0; c < count; ++c) total[c] += Widen(x[c]) * w[c];
}

// Channels whose sums are kept in registers at a time.
template <typename T>
inline constexpr int kBlock = 4 * Simd<T>::kLanes;

template <typename Stored>
void RunDepthwise(const Depthwise& p, const Parallel& parallel, BadRow* bad) {
  using T = typename SumOf<Stored>::type;
  constexpr int block = kBlock<T>;
  const Stored* x = static_cast<const Stored*>(p.x);
  const Stored* given = static_cast<const Stored*>(p.w);
  Stored* y = static_cast<Stored*>(p.y);
  Buffer<T> w(p.taps * p.channels);
  for (int64_t i = 0; i < p.taps * p.channels; ++i) w[i] = Widen(given[i]);

  const int64_t tiles = (p.out_rows + p.tile - 1) / p.tile;
  parallel.Run(tiles, [&](int64_t t) {
    const int64_t end = std::min(p.out_rows, (t + 1) * p.tile);
    Buffer<const Stored*> rows(p.taps);
    Buffer<const T*> filters(p.taps);
    for (int64_t m = t * p.tile; m < end; ++m) {
      int64_t count = 0;
      for (int64_t k = 0; k < p.taps; ++k) {
        const int32_t in = p.neighbors[m * p.taps + k];
        if (in < 0 || in >= p.in_rows) {
          if (in != -1) bad->store(in);
          continue;
        }
        rows[count] = x + in * p.channels;
        filters[count++] = w.get() + (p.reversed ? p.taps - 1 - k : k) * p.channels;
      }
      Stored* target = y + m * p.channels;
      for (int64_t c = 0; c < p.channels; c += block) {
        T total[block] = {};
        const int64_t width = std::min<int64_t>(block, p.channels - c);
        if (width == block) {
          for (int64_t j = 0; j < count; ++j) AddScaled<block>(rows[j] + c, filters[j] + c, total);
        } else {
          for (int64_t j = 0; j < count; ++j) AddScaled(rows[j] + c, filters[j] + c, total, width);
        }
        for (int64_t i = 0; i < width; ++i) Narrow(total[i], target + c + i);
      }
    }
  });
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
      bool widened = false;
      for (int64_t k = 0; k < p.taps; ++k) {
        const int32_t in = p.neighbors[m * p.taps + k];
        if (in < 0 || in >= p.in_rows) {
          if (in != -1) bad->store(in);
          continue;
        }
        if (!widened) {  // rows without pairs may hold anything
          for (int64_t c = 0; c < p.channels; ++c) wide[c] = Widen(dy[m * p.channels + c]);
          widened = true;
        }
        AddScaled(x + in * p.channels, wide.get(), part + k * p.channels, p.channels);
      }
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
