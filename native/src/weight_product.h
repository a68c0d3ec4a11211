// wgrad: sums of outer products, over stripes of rows that are added at the end.
//
// A unit of work is one stripe of output rows and one panel of columns. Its block of dw is added
// to in the order of the rows; stripes are added in their order. How many there are follows from
// the shapes and the number of rows that are not padding, so the bits depend neither on the number of
// threads nor on the capacity.
#pragma once

#include <utility>
#include <vector>

#include "elements.h"
#include "kernels.h"
#include "operands.h"
#include "padding.h"
#include "tile.h"

namespace voxax::VOXAX_ISA {

// dw[c] += sum over pairs of x[first + c] * dy[column ..], for channels c < C; dw: [C, V * lanes].
template <typename T, int V, int C>
void AddOuter(const Operands<T>* pairs, int64_t count, int64_t first, int64_t column, T* dw) {
  using S = Simd<T>;
  typename S::Vec total[C][V];
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) total[c][v] = S::Load(dw + (c * V + v) * S::kLanes);
  }
  do {
    const T* x = pairs->x + first;
    const T* dy = pairs->dy + column;
    ++pairs;
    typename S::Vec g[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) g[v] = S::Load(dy + v * S::kLanes);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const T value = x[c];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) total[c][v] += value * g[v];
    }
  } while (--count > 0);
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) S::Store(dw + (c * V + v) * S::kLanes, total[c][v]);
  }
}

template <typename T>
using AddOuterFn = void (*)(const Operands<T>*, int64_t, int64_t, int64_t, T*);

// AddOuter for 1 .. RowsFor(V) channels; the first entry is unused.
template <typename T, int V>
struct AddOuterTable {
  template <int... C>
  static const AddOuterFn<T>* Make(std::integer_sequence<int, C...>) {
    static constexpr AddOuterFn<T> table[] = {nullptr, AddOuter<T, V, C + 1>...};
    return table;
  }
  static const AddOuterFn<T>* Get() {
    return Make(std::make_integer_sequence<int, RowsFor(V)>());
  }
};

template <typename T>
const AddOuterFn<T>* AddOuterFor(int vectors) {
  if constexpr (kMostVectors >= 4) {
    if (vectors == 4) return AddOuterTable<T, 4>::Get();
  }
  return vectors == 2 ? AddOuterTable<T, 2>::Get() : AddOuterTable<T, 1>::Get();
}

// Lines of features and of gradients that are fetched ahead for each block of sums.
inline constexpr int kLinesAhead = 6;

// Adds the products of so many channels and one panel to dw [channels, width].
template <typename T>
void AddPanel(const Operands<T>* pairs, int64_t count, int64_t channels, int64_t column,
              int vectors, T* dw, Ahead* features, Ahead* gradients) {
  const int64_t width = vectors * Simd<T>::kLanes;
  const int at_once = RowsFor(vectors);
  const AddOuterFn<T>* add = AddOuterFor<T>(vectors);
  int64_t parts = (channels + at_once - 1) / at_once;
  // Heights that differ by one at most: few sums at a time would wait for each other.
  for (int64_t c = 0; c < channels; --parts) {
    const int64_t height = (channels - c + parts - 1) / parts;
    features->Fetch(kLinesAhead);
    gradients->Fetch(kLinesAhead);
    add[height](pairs, count, c, column, dw + c * width);
    c += height;
  }
}

// Stripes: enough for many cores, few enough that their weights stay small.
inline constexpr int64_t kMostStripes = 32;
// Columns of a unit of work: with more, the features are packed less often; with fewer, there are
// more units. Where these and the stripes make few units, taps are split too: each cut reads the
// table again, and sums stay as they are.
inline constexpr int64_t kUnitColumns = 128, kEnoughUnits = 16;

template <typename Stored>
void RunWeightProduct(const WeightProduct& given, const Parallel& parallel, BadRow* bad) {
  WeightProduct p = given;
  p.out_rows = RowsWithPairs(p.neighbors, p.out_rows, p.taps);
  p.tile = std::min(p.tile, std::max<int64_t>(p.out_rows, 1));
  using T = typename SumOf<Stored>::type;
  constexpr int64_t lanes = Simd<T>::kLanes;
  std::vector<Panel> panels(SplitColumns<T>(p.columns, nullptr));
  SplitColumns<T>(p.columns, panels.data());
  std::vector<int64_t> offsets;
  std::vector<size_t> units;  // the first panel of each
  int64_t padded = 0;
  for (const Panel& panel : panels) {
    if (panel.begin % kUnitColumns == 0) units.push_back(offsets.size());
    offsets.push_back(padded);
    padded += panel.vectors * lanes;
  }
  const int64_t tiles = (p.out_rows + p.tile - 1) / p.tile;
  const int64_t weights = p.taps * p.groups * p.depth * padded;
  const int64_t affordable = kStripeBytes / std::max<int64_t>(weights * sizeof(T), 1);
  const int64_t stripes =
      std::max<int64_t>(1, std::min({kMostStripes, affordable, (tiles + 1) / 2}));
  const int64_t tiles_each = (tiles + stripes - 1) / stripes;

  // [stripe, group, panel, tap, depth, width of the panel]
  Buffer<T> parts(stripes * weights);
  const Stored* x = static_cast<const Stored*>(p.x);
  const Stored* dy = static_cast<const Stored*>(p.dy);
  const int64_t x_stride = p.groups * p.depth, dy_stride = p.groups * p.columns;
  const int64_t panel_count = static_cast<int64_t>(panels.size());
  const int64_t block = p.taps * p.depth;
  const int64_t each = static_cast<int64_t>(units.size());
  units.push_back(panels.size());

  const int64_t base = std::max<int64_t>(stripes * p.groups * each, 1);
  const int64_t cuts =
      std::max<int64_t>(1, std::min((kEnoughUnits + base - 1) / base, p.taps));
  parallel.Run(stripes * p.groups * each * cuts, [&](int64_t job) {
    const int64_t unit = job / cuts, cut = job % cuts;
    const int64_t first_tap = cut * p.taps / cuts, end_tap = (cut + 1) * p.taps / cuts;
    const int64_t stripe = unit / (p.groups * each), g = unit / each % p.groups;
    const size_t begin = units[unit % each], end = units[unit % each + 1];
    T* part = parts.get() + stripe * weights + g * padded * block;
    for (size_t q = begin; q < end; ++q) {
      const int64_t tap_size = p.depth * panels[q].vectors * lanes;
      T* sums = part + offsets[q] * block;
      std::fill(sums + first_tap * tap_size, sums + end_tap * tap_size, T(0));
    }
    const int64_t first_column = panels[begin].begin;
    const Columns columns{first_column, panels[end - 1].begin + panels[end - 1].width - first_column,
                          offsets[end - 1] + panels[end - 1].vectors * lanes - offsets[begin]};
    Gathered<Stored, T> gathered(x_stride, dy_stride, columns.padded);
    thread_local Tile tile;
    tile.Reserve(p.tile, end_tap - first_tap);
    for (int64_t t = stripe * tiles_each; t < std::min(tiles, (stripe + 1) * tiles_each); ++t) {
      const int64_t first = t * p.tile, rows = std::min(p.tile, p.out_rows - first);
      tile.Read(p.neighbors + first * p.taps + first_tap, p.taps, rows, p.in_rows, bad);
      if (p.rows != nullptr) tile.Relabel(p.rows + first, static_cast<int32_t>(first));
      for (int64_t k = first_tap; k < end_tap; ++k) {
        const int64_t count = tile.count(k - first_tap);
        int64_t chunks = std::max<int64_t>(1, (count + kPairs / 2) / kPairs);
        for (int64_t j = 0; j < count; --chunks) {
          const Pairs pairs = tile.pairs(k - first_tap) + j;
          const int64_t taken = (count - j + chunks - 1) / chunks;
          j += taken;
          const int64_t size = sizeof(Stored), more = std::min(count - j, taken);
          const Stored* tile_dy = dy + first * dy_stride + g * p.columns;
          Ahead next_x(x + g * p.depth, pairs.in + taken, more, x_stride * size, p.depth * size);
          Ahead next_dy(tile_dy + columns.begin, pairs.row + taken, more, dy_stride * size,
                        columns.width * size);
          gathered.ReadGradients(tile_dy, pairs, taken, columns);
          for (int64_t c = 0; c < p.depth; c += kChannels) {
            const int64_t channels = std::min(kChannels, p.depth - c);
            gathered.ReadFeatures(x + g * p.depth + c, pairs, taken, channels);
            for (size_t q = begin; q < end; ++q) {
              const int64_t width = panels[q].vectors * lanes;
              AddPanel(gathered.operands(), taken, channels, offsets[q] - offsets[begin],
                       panels[q].vectors, part + offsets[q] * block + (k * p.depth + c) * width,
                       &next_x, &next_dy);
            }
          }
        }
      }
    }
  });

  Stored* dw = static_cast<Stored*>(p.dw);
  parallel.Run(p.taps * p.groups, [&](int64_t i) {
    const int64_t k = i / p.groups, g = i % p.groups;
    for (int64_t q = 0; q < panel_count; ++q) {
      const Panel& panel = panels[q];
      const int64_t width = panel.vectors * lanes;
      const T* from = parts.get() + (g * padded + offsets[q]) * block + k * p.depth * width;
      for (int64_t d = 0; d < p.depth; ++d, from += width) {
        Stored* to = dw + (i * p.depth + d) * p.columns + panel.begin;
        for (int64_t n = 0; n < panel.width; ++n) {
          T sum = from[n];
          for (int64_t s = 1; s < stripes; ++s) sum += from[s * weights + n];
          Narrow(sum, to + n);
        }
      }
    }
  });
}

}  // namespace voxax::VOXAX_ISA
