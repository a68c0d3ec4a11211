// Forward and dgrad: an implicit GEMM over tiles of output rows.
//
// The sums of a tile stay in cache while tap after tap is added. For a tap, the rows of the tile
// that have it are taken a few at a time: their features are read in place, the tap's weights come
// from a packed panel, and the sums are in registers for the whole depth. Nothing is gathered and
// no pair that does not exist is multiplied. Each row's additions have one order, whatever thread
// computes it. The idea of output-stationary tiles over compacted rows: TorchSparse++ (Tang et
// al., 2023); packed panels and register tiles: Goto and van de Geijn, 2008.
#pragma once

#include <utility>
#include <vector>

#include "elements.h"
#include "frontier.h"
#include "kernels.h"
#include "padding.h"
#include "stream.h"
#include "tile.h"

namespace voxax::VOXAX_ISA {

// sums[row] += x[in] * w, for so many groups of R pairs; w: [depth, V * lanes], sums:
// [rows, V * lanes]. No row of sums occurs twice among R pairs.
template <typename T, int V, int R>
void AddRows(const T* x, int64_t x_stride, Pairs pairs, int64_t groups, const T* w, int64_t depth,
             int64_t ahead_depth, T* sums) {
  using S = Simd<T>;
  constexpr int64_t kWidth = V * S::kLanes;
  constexpr int64_t kLine = 64 / sizeof(T);
  for (; groups > 0; --groups, pairs = pairs + R) {
    const T* from[R];
    T* to[R];
    // The next rows are on their way while these are multiplied.
    const int32_t* ahead = pairs.in + (groups > 1 ? R : 0);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const T* row = x + ahead[r] * x_stride;
      for (int64_t d = 0; d < ahead_depth; d += kLine) __builtin_prefetch(row + d);
    }
    typename S::Vec total[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      from[r] = x + pairs.in[r] * x_stride;
      to[r] = sums + pairs.row[r] * kWidth;
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) total[r][v] = S::Load(to[r] + v * S::kLanes);
    }
    const T* weight = w;
    for (int64_t d = 0; d < depth; ++d, weight += kWidth) {
      typename S::Vec weights[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) weights[v] = S::Load(weight + v * S::kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const T value = from[r][d];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) total[r][v] += value * weights[v];
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) S::Store(to[r] + v * S::kLanes, total[r][v]);
    }
  }
}

template <typename T>
using AddRowsFn = void (*)(const T*, int64_t, Pairs, int64_t, const T*, int64_t, int64_t, T*);

// AddRows for 1 .. RowsFor(V) rows at a time; the first entry is unused.
template <typename T, int V>
struct AddRowsTable {
  template <int... R>
  static const AddRowsFn<T>* Make(std::integer_sequence<int, R...>) {
    static constexpr AddRowsFn<T> table[] = {nullptr, AddRows<T, V, R + 1>...};
    return table;
  }
  static const AddRowsFn<T>* Get() {
    return Make(std::make_integer_sequence<int, RowsFor(V)>());
  }
};

template <typename T>
const AddRowsFn<T>* AddRowsFor(int vectors) {
  if constexpr (kMostVectors >= 4) {
    if (vectors == 4) return AddRowsTable<T, 4>::Get();
  }
  return vectors == 2 ? AddRowsTable<T, 2>::Get() : AddRowsTable<T, 1>::Get();
}

// A panel's weights for so many rows of depth stay in the first-level cache beside the features.
inline constexpr int64_t kDepth = 128;
inline constexpr int kMostRows = 16;
inline constexpr int32_t kInOrder[kMostRows] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                8, 9, 10, 11, 12, 13, 14, 15};

// Packing so many takes less time than waking another thread.
inline constexpr int64_t kFewWeights = 1 << 15;

template <typename Stored>
void PackWeights(const Product& p, int64_t tap, int64_t group, const std::vector<Panel>& panels,
                 typename SumOf<Stored>::type* to) {
  using T = typename SumOf<Stored>::type;
  const Stored* from =
      static_cast<const Stored*>(p.w) + tap * p.tap_stride + group * p.depth * p.columns;
  for (const Panel& panel : panels) {
    const int64_t width = panel.vectors * Simd<T>::kLanes;
    const Stored* columns = from + panel.begin * p.column_stride;
    // A line of what is read, and the lines it is written to, stay in the first-level cache.
    constexpr int64_t kBlock = 64 / sizeof(Stored);
    for (int64_t begin = 0; begin < p.depth; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, p.depth);
      if (p.column_stride == 1) {
        for (int64_t d = begin; d < end; ++d) {
          const Stored* row = columns + d * p.depth_stride;
          for (int64_t n = 0; n < panel.width; ++n) to[d * width + n] = Widen(row[n]);
        }
      } else {
        for (int64_t n = 0; n < panel.width; ++n) {
          const Stored* column = columns + n * p.column_stride;
          for (int64_t d = begin; d < end; ++d) {
            to[d * width + n] = Widen(column[d * p.depth_stride]);
          }
        }
      }
    }
    for (int64_t d = 0; d < p.depth; ++d) {
      for (int64_t n = panel.width; n < width; ++n) to[d * width + n] = T(0);
    }
    to += p.depth * width;
  }
}

// Adds the bias to each row of sums, then sets negative values to 0; both are optional.
template <typename T, typename Stored>
void Finish(T* sums, int64_t rows, int64_t pitch, int64_t width, const Stored* bias, bool relu) {
  for (int64_t m = 0; m < rows; ++m, sums += pitch) {
    if (bias != nullptr) {
      for (int64_t n = 0; n < width; ++n) sums[n] += Widen(bias[n]);
    }
    if (relu) {
      for (int64_t n = 0; n < width; ++n) sums[n] = sums[n] < T(0) ? T(0) : sums[n];
    }
  }
}

// The largest number of consecutive tiles for one thread, whose own cache then holds the rows that
// neighboring tiles share, and which fetches the rows of the next tile meanwhile. There are 32
// stretches for each thread, if tiles suffice, so that no thread waits long for the last. Variants that
// were measured: benchmarks/results/native_variants.md.
inline constexpr int64_t kMostTilesAtOnce = 16;

template <typename Stored>
void RunProduct(const Product& given, const Parallel& parallel, BadRow* bad) {
  Product p = given;
  if (p.rows == nullptr && p.bias == nullptr) {
    p.out_rows = RowsWithPairs(p.neighbors, p.out_rows, p.taps);
  }
  using T = typename SumOf<Stored>::type;
  constexpr int64_t lanes = Simd<T>::kLanes;
  std::vector<Panel> panels(SplitColumns<T>(p.columns, nullptr));
  SplitColumns<T>(p.columns, panels.data());
  int64_t padded = 0;
  for (const Panel& panel : panels) padded += panel.vectors * lanes;

  Buffer<T> packed(p.taps * p.groups * p.depth * padded);
  const auto pack = [&](int64_t i) {
    PackWeights<Stored>(p, i / p.groups, i % p.groups, panels,
                        packed.get() + i * p.depth * padded);
  };
  if (p.taps * p.groups * p.depth * padded <= kFewWeights) {
    for (int64_t i = 0; i < p.taps * p.groups; ++i) pack(i);
  } else {
    parallel.Run(p.taps * p.groups, pack);
  }

  const Stored* x = static_cast<const Stored*>(p.x);
  Stored* y = static_cast<Stored*>(p.y);
  const int64_t x_stride = p.groups * p.depth, y_stride = p.groups * p.columns;
  const int64_t tiles = (p.out_rows + p.tile - 1) / p.tile;

  const int64_t row_bytes = y_stride * static_cast<int64_t>(sizeof(Stored));
  const int64_t x_row_bytes = x_stride * static_cast<int64_t>(sizeof(Stored));
  const bool stream = std::is_same_v<T, Stored> && p.columns % lanes == 0 &&
                      StreamsRows(y, p.out_rows, row_bytes,
                                  InProportion(p.in_rows, p.out_rows, given.out_rows) * x_row_bytes +
                                      TableBytes(p.out_rows, p.taps),
                                  p.last_cache);
  const int64_t at_once =
      std::clamp<int64_t>(tiles / (32 * parallel.threads()), 1, kMostTilesAtOnce);

  const auto run_tile = [&](int64_t t, Frontier<>* features) {
    const int64_t first = t * p.tile, rows = std::min(p.tile, p.out_rows - first);
    thread_local Buffer<T> sums, staged;
    thread_local Tile tile;
    tile.Reserve(rows, p.taps);
    tile.Read(p.neighbors + first * p.taps, p.taps, rows, p.in_rows, bad);
    sums.Reserve(rows * padded * p.groups);
    std::fill(sums.get(), sums.get() + rows * padded * p.groups, T(0));
    staged.Reserve(kMostRows * kDepth);

    int64_t furthest = -1;
    for (int64_t k = 0; k < p.taps; ++k) {
      const int64_t count = tile.count(k);
      if (count > 0) furthest = std::max<int64_t>(furthest, tile.pairs(k).in[count - 1]);
    }
    // Where table rows have an order of their own, the rows they read are in none.
    int64_t read = 0;
    if (p.rows == nullptr) {
      features->MoveTo(std::min(p.in_rows, furthest + 1 + p.tile / 2), 2 * p.tile);
      read = features->lines() / std::max<int64_t>(p.taps, 1) + 1;
    }

    for (int64_t k = 0; k < p.taps; ++k) {
      features->Fetch(read);
      const int64_t count = tile.count(k);
      const Pairs pairs = tile.pairs(k);
      if (count == 0) continue;
      const int64_t weight_tap = p.reversed ? p.taps - 1 - k : k;
      for (int64_t g = 0; g < p.groups; ++g) {
        const T* weights = packed.get() + (weight_tap * p.groups + g) * p.depth * padded;
        T* group_sums = sums.get() + g * rows * padded;
        for (const Panel& panel : panels) {
          const int64_t width = panel.vectors * lanes;
          const int at_once = RowsFor(panel.vectors);
          const AddRowsFn<T>* add = AddRowsFor<T>(panel.vectors);
          for (int64_t d = 0; d < p.depth; d += kDepth) {
            const int64_t depth = std::min(kDepth, p.depth - d);
            const Stored* part = x + g * p.depth + d;
            // The first panel reads rows that may be far away, the others what it read.
            const int64_t ahead = panel.begin == 0 ? depth : 1;
            if constexpr (std::is_same_v<T, Stored>) {
              // Sizes that differ by one at most: few sums at a time would wait for each other.
              const int64_t parts = (count + at_once - 1) / at_once;
              const int64_t size = count / parts, larger = count % parts;
              if (larger > 0) {
                add[size + 1](part, x_stride, pairs, larger, weights + d * width, depth,
                              ahead, group_sums);
              }
              add[size](part, x_stride, pairs + larger * (size + 1), parts - larger,
                        weights + d * width, depth, ahead, group_sums);
            } else {
              for (int64_t j = 0; j < count; j += at_once) {
                const int taken = static_cast<int>(std::min<int64_t>(at_once, count - j));
                for (int r = 0; r < taken; ++r) {
                  const Stored* row = part + pairs.in[j + r] * x_stride;
                  T* to = staged.get() + r * kDepth;
                  for (int64_t c = 0; c < depth; ++c) to[c] = Widen(row[c]);
                }
                const Pairs wide{pairs.row + j, kInOrder};
                add[taken](staged.get(), kDepth, wide, 1, weights + d * width, depth, 1, group_sums);
              }
            }
          }
          weights += p.depth * width;
          group_sums += rows * width;
        }
      }
    }

    T* source = sums.get();
    for (int64_t g = 0; g < p.groups; ++g) {
      for (const Panel& panel : panels) {
        const int64_t column = g * p.columns + panel.begin;
        if (p.bias != nullptr || p.relu) {
          const Stored* bias = static_cast<const Stored*>(p.bias);
          Finish(source, rows, panel.vectors * lanes, panel.width,
                 bias == nullptr ? nullptr : bias + column, p.relu);
        }
        for (int64_t m = 0; m < rows; ++m) {
          const int64_t row = p.rows == nullptr ? first + m : p.rows[first + m];
          Stored* target = y + row * y_stride + column;
          if constexpr (std::is_same_v<T, Stored>) {
            if (stream) {
              for (int64_t n = 0; n < panel.width; n += lanes) {
                Simd<T>::Stream(target + n, Simd<T>::Load(source + n));
              }
              source += panel.width;
              continue;
            }
          }
          for (int64_t n = 0; n < panel.width; ++n) Narrow(source[n], target + n);
          source += panel.vectors * lanes;
        }
      }
    }
  };
  parallel.Run((tiles + at_once - 1) / at_once, [&](int64_t unit) {
    Frontier features(x, x_row_bytes);
    const int64_t after = std::min((unit + 1) * at_once, tiles);
    for (int64_t t = unit * at_once; t < after; ++t) run_tile(t, &features);
    if (stream) FinishStreams();
  });
  ClearRows(y, p.out_rows, given.out_rows, y_stride, parallel);
}

}  // namespace voxax::VOXAX_ISA
