// Finds the input row of the largest or smallest value under each window.
#pragma once

#include "elements.h"
#include "kernels.h"
#include "padding.h"
#include "tile.h"

namespace voxax::VOXAX_ISA {

// Which of `value` beat `best`, as a mask of lanes or a bool. A NaN beats every number, and of
// equal values the first stays, as in jnp.argmax.
template <bool Largest, typename V>
inline auto Beats(V value, V best) {
  return (Largest ? value > best : value < best) | ((value != value) & (best == best));
}

// found[c .. c + V * lanes] for a window of `count` rows, at least one.
template <bool Largest, int V, typename Stored>
inline void FindBest(const Stored* x, int64_t channels, const int32_t* taps, int64_t count,
                     int64_t c, int32_t* found) {
  using T = typename SumOf<Stored>::type;
  using S = Simd<T>;
  using Rows = decltype(typename S::Vec{} > typename S::Vec{});  // integers as wide as T
  typename S::Vec best[V];
  Rows rows[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    best[v] = LoadWide<Stored, T>(x + taps[0] * channels + c + v * S::kLanes);
    rows[v] = Rows{} + taps[0];
  }
  for (int64_t j = 1; j < count; ++j) {
    const Stored* row = x + taps[j] * channels + c;
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const typename S::Vec value = LoadWide<Stored, T>(row + v * S::kLanes);
      const Rows beats = Beats<Largest>(value, best[v]);
      best[v] = beats ? value : best[v];
      rows[v] = beats ? Rows{} + taps[j] : rows[v];
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    for (int i = 0; i < S::kLanes; ++i) {
      found[c + v * S::kLanes + i] = static_cast<int32_t>(rows[v][i]);
    }
  }
}

template <typename Stored, bool Largest>
void FindExtremes(const Extremes& p, const Parallel& parallel, BadRow* bad) {
  using T = typename SumOf<Stored>::type;
  constexpr int64_t lanes = Simd<T>::kLanes;
  const Stored* x = static_cast<const Stored*>(p.x);
  const int64_t tiles = (p.out_rows + p.tile - 1) / p.tile;
  const int64_t with_pairs = RowsWithPairs(p.neighbors, p.out_rows, p.taps);
  parallel.Run(tiles, [&](int64_t t) {
    const int64_t end = std::min(p.out_rows, (t + 1) * p.tile);
    if (t * p.tile >= with_pairs) {
      std::fill(p.found + t * p.tile * p.channels, p.found + end * p.channels, -1);
      return;
    }
    Buffer<int32_t> taps(p.taps);
    for (int64_t m = t * p.tile; m < end; ++m) {
      const int32_t* row = p.neighbors + m * p.taps;
      int64_t count = 0;
      ForPresent(row, p.taps, p.in_rows, bad, [&](int64_t k) { taps[count++] = row[k]; });
      int32_t* found = p.found + m * p.channels;
      if (count == 0) {
        std::fill(found, found + p.channels, -1);
        continue;
      }
      int64_t c = 0;
      for (; c + 4 * lanes <= p.channels; c += 4 * lanes) {
        FindBest<Largest, 4>(x, p.channels, taps.get(), count, c, found);
      }
      for (; c + lanes <= p.channels; c += lanes) {
        FindBest<Largest, 1>(x, p.channels, taps.get(), count, c, found);
      }
      for (; c < p.channels; ++c) {
        found[c] = taps[0];
        T best = Widen(x[taps[0] * p.channels + c]);
        for (int64_t j = 1; j < count; ++j) {
          const T value = Widen(x[taps[j] * p.channels + c]);
          if (!Beats<Largest>(value, best)) continue;
          best = value;
          found[c] = taps[j];
        }
      }
    }
  });
}

template <typename Stored>
void RunExtremes(const Extremes& p, const Parallel& parallel, BadRow* bad) {
  p.largest ? FindExtremes<Stored, true>(p, parallel, bad)
            : FindExtremes<Stored, false>(p, parallel, bad);
}

}  // namespace voxax::VOXAX_ISA
