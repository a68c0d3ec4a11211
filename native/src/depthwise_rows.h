// Depthwise forward row by row: the sums of a row stay in registers. Lists of the pairs (row_pairs.h)
// leave no branch to predict but the end of each list.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "depthwise_channels.h"
#include "elements.h"
#include "frontier.h"
#include "kernels.h"
#include "row_pairs.h"

namespace voxax::VOXAX_ISA {

// Rows between the furthest that is multiplied and the one that is fetched. Variants that were
// measured: benchmarks/results/native_variants.md.
inline constexpr int64_t kRowsAhead = 16;

// A row that is skipped is fetched too if it is this near: another row may need it later.
inline constexpr int64_t kMostRowsFetched = 256;

// y = the sum over pairs of x[in] * w[tap], for R rows of equally many pairs and V vectors of channels,
// or `width` where V is 0. kStream: y goes past the caches.
template <int V, int R, bool kStream, typename Stored, typename T>
inline void SumRows(const Stored* x, const T* w, int64_t stride, const RowPairs& pairs,
                    const int32_t* rows, int64_t width, Stored* y) {
  using S = Simd<T>;
  RowPairs::Row row[R];
  for (int r = 0; r < R; ++r) row[r] = pairs.row(rows[r]);
  const int64_t count = row[0].count;
  if constexpr (V == 0) {
    for (int r = 0; r < R; ++r) {
      Stored* to = y + rows[r] * stride;
      const auto add = [&](const auto& product) {
        for (int64_t j = 0; j < count; ++j) {
          product(x + row[r].in[j] * stride, w + row[r].tap[j] * stride);
        }
      };
#if defined(__AVX512F__)
      if constexpr (std::is_same_v<Stored, T>) {
        typename S::Vec total = {};
        add([&](const T* from, const T* filter) {
          total += S::LoadFirst(from, width) * S::LoadFirst(filter, width);
        });
        S::StoreFirst(to, total, width);
        continue;
      }
#endif
      T total[S::kLanes] = {};
      add([&](const Stored* from, const T* filter) {
        for (int64_t c = 0; c < width; ++c) total[c] += Widen(from[c]) * filter[c];
      });
      for (int64_t c = 0; c < width; ++c) Narrow(total[c], to + c);
    }
  } else {
    typename S::Vec total[R][V] = {};
    for (int64_t j = 0; j < count; ++j) {
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
        const Stored* from = x + row[r].in[j] * stride;
        const T* filter = w + row[r].tap[j] * stride;
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
          total[r][v] += LoadWide<Stored, T>(from + v * S::kLanes) * S::Load(filter + v * S::kLanes);
        }
      }
    }
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
      Stored* to = y + rows[r] * stride;
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) {
        if constexpr (!std::is_same_v<Stored, T>) {
          for (int i = 0; i < S::kLanes; ++i) Narrow(total[r][v][i], to + v * S::kLanes + i);
        } else if constexpr (kStream) {
          S::Stream(to + v * S::kLanes, total[r][v]);
        } else {
          S::Store(to + v * S::kLanes, total[r][v]);
        }
      }
    }
  }
}

// Output rows [first, end), row after row. Where rows are in an order of space, each tap moves
// through the input from front to end, and rows ahead of the furthest are fetched in time.
template <bool kStream, typename Stored, typename T>
void SumInOrder(const Depthwise& p, int64_t first, int64_t end, const std::vector<Channels>& ranges,
                const T* w, BadRow* bad) {
  const Stored* x = static_cast<const Stored*>(p.x);
  thread_local RowPairs pairs;
  pairs.Reserve(std::min(p.tile, end - first), p.taps);
  Frontier features(x, p.channels * sizeof(Stored));
  int64_t furthest = -1;
  for (; first < end; first += p.tile) {
    const int64_t rows = std::min(p.tile, end - first);
    Stored* y = static_cast<Stored*>(p.y) + first * p.channels;
    pairs.Read(p.neighbors + first * p.taps, p.taps, rows, p.in_rows, bad);
    for (int32_t m = 0; m < rows; ++m) {
      furthest = std::max(furthest, pairs.row(m).last());
      features.MoveTo(std::min(p.in_rows, furthest + 1 + kRowsAhead), kMostRowsFetched);
      features.Fetch(features.lines());
      for (const Channels& channels : ranges) {
        const int64_t c = channels.begin;
        ForVectors(channels.vectors, [&](auto vectors) {
          SumRows<vectors(), 1, kStream>(x + c, w + c, p.channels, pairs, &m, channels.width, y + c);
        });
      }
    }
  }
  if constexpr (kStream) FinishStreams();
}

// Rows of at least so many vectors are summed in their own order. In the order of their counts, writes
// of y and reads of x would not be sequential.
inline constexpr int kWideVectors = 4;

// Output rows [first, end), within a tile in the order of how many pairs they have: loops of one
// length follow each other, whose ends a processor predicts, and two rows of one length are summed
// together. In their own order a wrong prediction costs as much as the pairs of a row of one or two
// vectors.
template <typename Stored, typename T>
void SumByCount(const Depthwise& p, int64_t first, int64_t end, const std::vector<Channels>& ranges,
                const T* w, BadRow* bad) {
  const Stored* x = static_cast<const Stored*>(p.x);
  const int64_t row_bytes = p.channels * sizeof(Stored);
  thread_local RowPairs lists;
  thread_local RowsByCount sorted;
  RowPairs& pairs = lists;  // Each use of a thread-local variable looks up its address.
  RowsByCount& order = sorted;
  pairs.Reserve(std::min(p.tile, end - first), p.taps);
  order.Reserve(std::min(p.tile, end - first), p.taps);
  Frontier features(x, row_bytes);
  const int64_t begin = first;
  Frontier<true> results(static_cast<Stored*>(p.y) + begin * p.channels, row_bytes);
  for (; first < end; first += p.tile) {
    const int64_t rows = std::min(p.tile, end - first);
    Stored* y = static_cast<Stored*>(p.y) + first * p.channels;
    pairs.Read(p.neighbors + first * p.taps, p.taps, rows, p.in_rows, bad);
    order.Sort(pairs, rows);
    // What the next tile needs.
    features.MoveTo(std::min(p.in_rows, pairs.Furthest(rows) + 1 + p.tile), 2 * p.tile);
    results.MoveTo(std::min(end, first + 2 * p.tile) - begin, p.tile);
    const int64_t read = (features.lines() + rows - 1) / rows;
    const int64_t written = (results.lines() + rows - 1) / rows;
    for (const Channels& channels : ranges) {
      const int64_t c = channels.begin;
      ForVectors(channels.vectors, [&](auto vectors) {
        if constexpr (vectors() < kWideVectors) {
          for (int64_t i = 0; i < rows;) {
            features.Fetch(2 * read);
            results.Fetch(2 * written);
            const int32_t* row = order.get() + i;
            if (i + 1 < rows && pairs.row(row[0]).count == pairs.row(row[1]).count) {
              SumRows<vectors(), 2, false>(x + c, w + c, p.channels, pairs, row, channels.width,
                                           y + c);
              i += 2;
            } else {
              SumRows<vectors(), 1, false>(x + c, w + c, p.channels, pairs, row, channels.width,
                                           y + c);
              ++i;
            }
          }
        }
      });
    }
  }
}

}  // namespace voxax::VOXAX_ISA
