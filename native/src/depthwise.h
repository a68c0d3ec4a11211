// Depthwise products: one filter for each channel. There is little arithmetic to a byte: features
// are read where they are, and what is used again stays in registers: of few channels a tap's
// filter, of many the sums of a row, which would not stay in the first-level cache beside the
// features; of wgrad the tap's sums. Lists of the pairs (tile.h, row_pairs.h) leave no branch to
// guess.
#pragma once

#include <type_traits>
#include <vector>

#include "elements.h"
#include "kernels.h"
#include "row_pairs.h"
#include "tile.h"

namespace voxax::VOXAX_ISA {

// Vectors of channels that are worked on at a time, at most: half of the registers hold their sums.
inline constexpr int kMostChannelVectors = kRegisters / 2;

// A range of channels: whole vectors, or fewer channels than one has.
struct Channels {
  int64_t begin, width;
  int vectors;  // 0: less than one
};

// Ranges that make up [0, count).
template <typename T>
std::vector<Channels> SplitChannels(int64_t count) {
  constexpr int64_t lanes = Simd<T>::kLanes;
  std::vector<Channels> ranges;
  for (int64_t begin = 0; begin < count;) {
    const int64_t left = (count - begin) / lanes;
    int vectors = kMostChannelVectors;
    while (vectors > left) vectors /= 2;
    const int64_t width = vectors > 0 ? vectors * lanes : count - begin;
    ranges.push_back({begin, width, vectors});
    begin += width;
  }
  return ranges;
}

// Calls of(std::integral_constant<int, vectors>).
template <typename Of>
void ForVectors(int vectors, const Of& of) {
  switch (vectors) {
    case 16:
      return of(std::integral_constant<int, 16>());
    case 8:
      return of(std::integral_constant<int, 8>());
    case 4:
      return of(std::integral_constant<int, 4>());
    case 2:
      return of(std::integral_constant<int, 2>());
    case 1:
      return of(std::integral_constant<int, 1>());
    default:
      return of(std::integral_constant<int, 0>());
  }
}

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

// Rows between the furthest that is multiplied and the one that is fetched. Without, forward of 256
// channels took 1.3 times as long (2 cores of an AMD EPYC, Zen 5).
inline constexpr int64_t kRowsAhead = 16;

// A row that is passed over is fetched too if it is this near: another one may ask for it later.
inline constexpr int64_t kMostRowsFetched = 256;

// Rows of a matrix that are fetched from front to end while others are multiplied.
class Frontier {
 public:
  Frontier(const void* base, int64_t row_bytes)
      : base_(static_cast<const char*>(base)), row_bytes_(row_bytes) {}

  // What lies before `row` has to be there soon; leaps where rows are in no order.
  void MoveTo(int64_t row, int64_t most_rows) {
    end_ = row * row_bytes_;
    at_ = std::max(at_, end_ - most_rows * row_bytes_);
  }
  void Fetch(int64_t lines) {
    for (; lines > 0 && at_ < end_; --lines, at_ += 64) __builtin_prefetch(base_ + at_, 0, 2);
  }
  int64_t lines() const { return (end_ - at_ + 63) / 64; }

 private:
  const char* base_;
  int64_t row_bytes_, at_ = 0, end_ = 0;
};

// Whether rows of y go past the caches: whole vectors of a result that the last cache would not hold.
// It does not displace the features either, which each thread's own cache holds until the last of
// their pairs: 256 channels took 1.3 times as long without (2 cores of an AMD EPYC, Zen 5).
template <typename T>
bool StreamsRows(const Depthwise& p) {
  const int64_t row_bytes = p.channels * static_cast<int64_t>(sizeof(T));
  return p.last_cache > 0 && p.out_rows * row_bytes > p.last_cache && row_bytes % kBytes == 0 &&
         reinterpret_cast<uintptr_t>(p.y) % kBytes == 0;
}

// y = the sum over pairs of x[in] * w[tap], for V vectors of channels, or `width` where V is 0.
// `stream`: y goes past the caches.
template <int V, typename Stored, typename T>
inline void SumRow(const Stored* x, const T* w, int64_t stride, RowPairs::Row pairs, int64_t width,
                   bool stream, Stored* y) {
  using S = Simd<T>;
  if constexpr (V == 0) {
    for (int64_t c = 0; c < width; ++c) {
      T total = 0;
      for (int64_t j = 0; j < pairs.count; ++j) {
        total += Widen(x[pairs.in[j] * stride + c]) * w[pairs.tap[j] * stride + c];
      }
      Narrow(total, y + c);
    }
  } else {
    typename S::Vec total[V] = {};
    for (int64_t j = 0; j < pairs.count; ++j) {
      const Stored* from = x + pairs.in[j] * stride;
      const T* filter = w + pairs.tap[j] * stride;
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) {
        total[v] += LoadWide<Stored, T>(from + v * S::kLanes) * S::Load(filter + v * S::kLanes);
      }
    }
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
      if constexpr (!std::is_same_v<Stored, T>) {
        for (int i = 0; i < S::kLanes; ++i) Narrow(total[v][i], y + v * S::kLanes + i);
      } else if (stream) {
        S::Stream(y + v * S::kLanes, total[v]);
      } else {
        S::Store(y + v * S::kLanes, total[v]);
      }
    }
  }
}

// Output rows [first, end), row after row. Where rows are in an order of space, each tap moves
// through the input from front to end: what lies ahead of the furthest is fetched in time.
template <typename Stored, typename T>
void SumRows(const Depthwise& p, int64_t first, int64_t end, const std::vector<Channels>& ranges,
             const T* w, BadRow* bad) {
  const Stored* x = static_cast<const Stored*>(p.x);
  const bool stream = StreamsRows<T>(p);
  thread_local RowPairs pairs;
  pairs.Reserve(std::min(p.tile, end - first), p.taps);
  Frontier features(x, p.channels * sizeof(Stored));
  int64_t furthest = -1;
  for (; first < end; first += p.tile) {
    const int64_t rows = std::min(p.tile, end - first);
    Stored* y = static_cast<Stored*>(p.y) + first * p.channels;
    pairs.Read(p.neighbors + first * p.taps, p.taps, rows, p.in_rows, bad);
    for (int64_t m = 0; m < rows; ++m, y += p.channels) {
      const RowPairs::Row row = pairs.row(m);
      if (row.count > 0) furthest = std::max<int64_t>(furthest, row.in[row.count - 1]);
      features.MoveTo(std::min(p.in_rows, furthest + 1 + kRowsAhead), kMostRowsFetched);
      features.Fetch(features.lines());
      for (const Channels& channels : ranges) {
        const int64_t c = channels.begin;
        ForVectors(channels.vectors, [&](auto vectors) {
          SumRow<vectors()>(x + c, w + c, p.channels, row, channels.width, stream, y + c);
        });
      }
    }
  }
  if (stream) FinishStreams();
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

// Vectors from which on rows are summed one after the other. The sums of a tile of four vectors
// fill a first-level cache by themselves: tap by tap they took 1.5 times as long (2 cores of
// an AMD EPYC, Zen 5).
inline constexpr int kWideVectors = 4;

// Tiles that a thread works through in one go, at most. Its own cache then holds what neighbouring
// rows share: with one tile at a time 256 channels took 1.3 times as long (the same machine).
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
  int64_t unit = p.tile;
  if (wide) {
    const int64_t tiles = p.out_rows / p.tile / (8 * parallel.threads());
    unit *= std::max<int64_t>(1, std::min(tiles, kMostTiles));
  }
  parallel.Run((p.out_rows + unit - 1) / unit, [&](int64_t u) {
    const int64_t first = u * unit, end = std::min(first + unit, p.out_rows);
    (wide ? SumRows<Stored, T> : SumPairs<Stored, T>)(p, first, end, ranges, w.get(), bad);
  });
}

// sums += x[in] * dy[row], for V vectors of channels, or `width` where V is 0.
template <int V, typename Stored, typename T>
void AddProducts(const Stored* x, const Stored* dy, int64_t stride, Pairs pairs, int64_t count,
                 int64_t width, T* sums) {
  using S = Simd<T>;
  if constexpr (V == 0) {
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

// Rows of as many bytes are wide in wgrad: 32 channels of float32 gain nothing by it, with AVX-512 or
// AVX2 (2 cores of an AMD EPYC, Zen 5).
inline constexpr int64_t kWideRowBytes = 256;

// Output rows at a time where rows are wide: their gradients stay in the first-level cache beside the
// features that a tap reads, and what the next ones need is fetched meanwhile. With 256, and nothing
// fetched, wgrad of 64 channels took 1.2 to 1.4 times as long; with 64, 128 channels took 1.1 times.
// Fewer than 32 leave a tap too few pairs (2 cores of an AMD EPYC, Zen 5).
inline int64_t WideRows(int64_t row_bytes) {
  constexpr int64_t kGradientBytes = 16384, kFewest = 32, kMost = 64;
  return std::max(kFewest, std::min(kMost, kGradientBytes / row_bytes));
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
  const bool wide = row_bytes >= kWideRowBytes;
  const int64_t step = wide ? std::min(p.tile, WideRows(row_bytes)) : p.tile;
  parallel.Run(stripes, [&](int64_t stripe) {
    T* part = parts.get() + stripe * weights;
    std::fill(part, part + weights, T(0));
    Frontier features(x, row_bytes);
    thread_local Tile tile;
    tile.Reserve(std::min(step, each), p.taps);
    const int64_t end = std::min(p.out_rows, (stripe + 1) * each);
    for (int64_t first = stripe * each; first < end; first += step) {
      const int64_t rows = std::min(step, end - first);
      tile.Read(p.neighbors + first * p.taps, p.taps, rows, p.in_rows, bad);
      if (wide) {
        int64_t furthest = -1;
        for (int64_t k = 0; k < p.taps; ++k) {
          const int64_t count = tile.count(k);
          if (count > 0) furthest = std::max<int64_t>(furthest, tile.pairs(k).in[count - 1]);
        }
        features.MoveTo(std::min(p.in_rows, furthest + 1 + step), 2 * step);
      }
      const int64_t turns = std::max<int64_t>(1, p.taps * static_cast<int64_t>(ranges.size()));
      const int64_t lines = features.lines() / turns + 1;
      const int64_t densest = DensestTap(tile, p.taps);
      for (const Channels& channels : ranges) {
        ForVectors(channels.vectors, [&](auto vectors) {
          for (int64_t turn = 0; turn < p.taps; ++turn) {
            const int64_t k = turn == 0 ? densest : turn - (turn <= densest);
            features.Fetch(lines);
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
