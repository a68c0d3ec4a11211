// Depthwise forward tap by tap, for rows of few channels without AVX-512: a tap's filter stays in
// registers, the sums of a tile in the first-level cache. Lists of the pairs (tile.h) leave no
// branch to predict.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "buffer.h"
#include "depthwise_channels.h"
#include "elements.h"
#include "kernels.h"
#include "tile.h"

namespace voxax::VOXAX_ISA {

// sums[row] += x[in] * w, for V vectors of channels, or `width` where V is 0; sums: [rows, width].
template <int V, typename Stored, typename T>
void AddScaledRows(const Stored* x, int64_t stride, Pairs pairs, int64_t count, const T* w,
                   int64_t width, T* sums) {
  using S = Simd<T>;
  if constexpr (V == 0) {
    for (int64_t j = 0; j < count; ++j) {
      const Stored* from = x + pairs.in[j] * stride;
      T* to = sums + pairs.row[j] * width;
      for (int64_t c = 0; c < width; ++c) to[c] += Widen(from[c]) * w[c];
    }
  } else {
    typename S::Vec weights[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) weights[v] = S::Load(w + v * S::kLanes);
    for (int64_t j = 0; j < count; ++j) {
      const Stored* from = x + pairs.in[j] * stride;
      T* to = sums + pairs.row[j] * (V * S::kLanes);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) {
        S::Store(to + v * S::kLanes, S::Load(to + v * S::kLanes) +
                                         LoadWide<Stored, T>(from + v * S::kLanes) * weights[v]);
      }
    }
  }
}

// Output rows [first, end), tap after tap.
template <typename Stored, typename T>
void SumPairs(const Depthwise& p, int64_t first, int64_t end, const std::vector<Channels>& ranges,
              const T* w, BadRow* bad) {
  const int64_t rows = end - first;
  thread_local Buffer<T> buffer;
  thread_local Tile tile;
  tile.Reserve(rows, p.taps);
  tile.Read(p.neighbors + first * p.taps, p.taps, rows, p.in_rows, bad);
  for (const Channels& channels : ranges) {
    T* sums = nullptr;  // The rows of y themselves, where one range makes them up.
    if constexpr (std::is_same_v<Stored, T>) {
      if (ranges.size() == 1) sums = static_cast<T*>(p.y) + first * p.channels;
    }
    const bool in_place = sums != nullptr;
    if (!in_place) {
      buffer.Reserve(rows * channels.width);
      sums = buffer.get();
    }
    std::fill(sums, sums + rows * channels.width, T(0));
    ForVectors(channels.vectors, [&](auto vectors) {
      for (int64_t k = 0; k < p.taps; ++k) {
        AddScaledRows<vectors()>(static_cast<const Stored*>(p.x) + channels.begin, p.channels,
                                 tile.pairs(k), tile.count(k), w + k * p.channels + channels.begin,
                                 channels.width, sums);
      }
    });
    if (in_place) return;
    const T* source = sums;
    Stored* target = static_cast<Stored*>(p.y) + first * p.channels + channels.begin;
    for (int64_t m = 0; m < rows; ++m, target += p.channels, source += channels.width) {
      for (int64_t n = 0; n < channels.width; ++n) Narrow(source[n], target + n);
    }
  }
}

}  // namespace voxax::VOXAX_ISA
