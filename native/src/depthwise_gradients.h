// Depthwise wgrad, and dgrad and wgrad at once: both multiply the gradients of the pairs of an input
// row, which are read once. Rows are processed one by one, with the filters' sums in the first-level
// cache. Variants that were measured: benchmarks/results/native_variants.md.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "buffer.h"
#include "depthwise_channels.h"
#include "elements.h"
#include "frontier.h"
#include "kernels.h"
#include "padding.h"
#include "row_pairs.h"
#include "stream.h"
#include "tile.h"

namespace voxax::VOXAX_ISA {

// Vectors of channels at a time. Features and sums of a row take half of AVX-512's registers, and the
// filters of 27 taps with their own sums 27 KB of the first-level cache. With AVX2 half of that goes
// through the stack, which is still faster than four vectors.
inline constexpr int kGradientVectors = kBytes == 16 ? 16 : 8;

// Input rows at a time.
inline constexpr int64_t kGradientRows = 64;

// Rows between the features that are multiplied and those that are fetched, into the first-level cache,
// row by row in as many instructions as a range has lines. They are marked as used once, so that they
// leave the second-level cache to gradients, which are used again.
inline constexpr int64_t kFeaturesAhead = 8;

// Gradients are fetched up to the largest entry of the kernel map in the next rows. If rows are wide,
// all of those entries are read, otherwise the last few: in a spatial order the largest entries come
// last, but a plane may have more rows than the one before it.
inline constexpr int64_t kWideRowBytes = 512, kRowsLookedAt = 8;

// A gradient that is skipped is fetched too if it is this near to the largest.
inline constexpr int64_t kMostGradientsFetched = 8 * kGradientRows;

template <int V, typename T, typename Stored>
inline void FetchRow(const Stored* row) {
  constexpr int64_t lines = (V * Simd<T>::kLanes * sizeof(Stored) + 63) / 64;
  for (int64_t line = 0; line < std::max<int64_t>(lines, 1); ++line) {
    __builtin_prefetch(reinterpret_cast<const char*>(row) + 64 * line, 0, 0);
  }
}

// Channels that a range takes in `filters`, which holds, for each tap, w and then dw: whole vectors,
// since a vector that is stored in part is not forwarded to the load of the next row.
template <typename T>
int64_t Padded(const Channels& channels) {
  constexpr int64_t lanes = Simd<T>::kLanes;
  return (channels.width + lanes - 1) / lanes * lanes;
}

// For one input row, V vectors of channels, or `width` where V is 0: dw[tap] += dy[out] * x; and, of
// both, dx = the sum over pairs of dy[out] * w[tap].
template <int V, bool kBoth, bool kStream, typename Stored, typename T>
inline void AddGradients(const Stored* dy, int64_t stride, const RowPairs::Row& row, const Stored* x,
                         T* filters, int64_t width, Stored* dx) {
  using S = Simd<T>;
  // From tap to tap in `filters`, and from w to dw.
  constexpr int64_t kSums = kBoth ? std::max(V, 1) * S::kLanes : 0;
  constexpr int64_t kPitch = std::max(V, 1) * S::kLanes + kSums;
  if constexpr (V == 0) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<Stored, T>) {
      const typename S::Vec own = S::LoadFirst(x, width);
      typename S::Vec sum = {};
      for (int64_t j = 0; j < row.count; ++j) {
        const typename S::Vec gradient = S::LoadFirst(dy + row.in[j] * stride, width);
        T* filter = filters + row.tap[j] * kPitch;
        T* to = filter + kSums;
        if constexpr (kBoth) sum += gradient * S::Load(filter);
        S::Store(to, S::Load(to) + gradient * own);
      }
      if constexpr (kBoth) S::StoreFirst(dx, sum, width);
      return;
    }
#endif
    T own[S::kLanes], sum[S::kLanes] = {};
    for (int64_t c = 0; c < width; ++c) own[c] = Widen(x[c]);
    for (int64_t j = 0; j < row.count; ++j) {
      const Stored* from = dy + row.in[j] * stride;
      T* filter = filters + row.tap[j] * kPitch;
      for (int64_t c = 0; c < width; ++c) {
        const T gradient = Widen(from[c]);
        if constexpr (kBoth) sum[c] += gradient * filter[c];
        filter[kSums + c] += gradient * own[c];
      }
    }
    for (int64_t c = 0; kBoth && c < width; ++c) Narrow(sum[c], dx + c);
  } else {
    typename S::Vec sum[V] = {}, own[V];
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) own[v] = LoadWide<Stored, T>(x + v * S::kLanes);
    for (int64_t j = 0; j < row.count; ++j) {
      const Stored* from = dy + row.in[j] * stride;
      T* filter = filters + row.tap[j] * kPitch;
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) {
        T* to = filter + kSums + v * S::kLanes;
        const typename S::Vec gradient = LoadWide<Stored, T>(from + v * S::kLanes);
        if constexpr (kBoth) sum[v] += gradient * S::Load(filter + v * S::kLanes);
        S::Store(to, S::Load(to) + gradient * own[v]);
      }
    }
#pragma GCC unroll 16
    for (int v = 0; kBoth && v < V; ++v) {
      if constexpr (!std::is_same_v<Stored, T>) {
        for (int i = 0; i < S::kLanes; ++i) Narrow(sum[v][i], dx + v * S::kLanes + i);
      } else if constexpr (kStream) {
        S::Stream(dx + v * S::kLanes, sum[v]);
      } else {
        S::Store(dx + v * S::kLanes, sum[v]);
      }
    }
  }
}

// Input rows [first, end); `filters` holds the ranges of channels one after the other.
template <bool kBoth, bool kStream, typename Stored, typename T>
void AddGradientsInOrder(const DepthwiseGradients& p, int64_t first, int64_t end,
                         const std::vector<Channels>& ranges, Frontier<>* gradients, T* filters,
                         BadRow* bad) {
  const Stored* dy = static_cast<const Stored*>(p.dy);
  const Stored* x = static_cast<const Stored*>(p.x);
  Stored* dx = static_cast<Stored*>(p.dx);
  thread_local RowPairs lists;
  RowPairs& pairs = lists;  // Each use of the thread-local variable looks up its address.
  pairs.Reserve(kGradientRows, p.taps);
  const int64_t last = p.in_rows - 1;
  const bool wide = p.channels * static_cast<int64_t>(sizeof(Stored)) >= kWideRowBytes;
  for (; first < end; first += kGradientRows) {
    const int64_t rows = std::min(kGradientRows, end - first);
    pairs.Read(p.neighbors + first * p.taps, p.taps, rows, p.out_rows, bad);
    // What the next rows need.
    const int64_t next = first + rows, after = std::min(next + kGradientRows, p.in_rows);
    const int64_t from = wide ? next : std::max(next, after - kRowsLookedAt);
    gradients->MoveTo(
        std::min(p.out_rows, LargestEntry(p.neighbors + from * p.taps, (after - from) * p.taps) + 1),
        kMostGradientsFetched);
    const int64_t turns = std::max<int64_t>(1, rows * static_cast<int64_t>(ranges.size()));
    const int64_t read = gradients->lines() / turns + 1;
    T* own = filters;
    for (const Channels& channels : ranges) {
      const int64_t c = channels.begin;
      ForVectors(channels.vectors, [&](auto vectors) {
        if constexpr (vectors() <= kGradientVectors) {
          for (int64_t m = 0; m < rows; ++m) {
            gradients->Fetch(read);
            FetchRow<vectors(), T>(x + std::min(first + m + kFeaturesAhead, last) * p.channels + c);
            const int64_t at = (first + m) * p.channels + c;
            AddGradients<vectors(), kBoth, kStream>(dy + c, p.channels, pairs.row(m), x + at, own,
                                                    channels.width, kBoth ? dx + at : nullptr);
          }
        }
      });
      own += (kBoth ? 2 : 1) * p.taps * Padded<T>(channels);
    }
  }
  if constexpr (kStream) FinishStreams();
}

// Rows of a stripe, and the smallest and largest number of stripes: enough for many cores, and few
// enough that adding their sums takes negligible time.
inline constexpr int64_t kStripeRows = 1024, kFewestStripes = 32, kMostGradientStripes = 256;

// The largest number of consecutive stripes for one thread, whose own cache then holds the rows that
// neighboring stripes share.
inline constexpr int64_t kMostStripesAtOnce = 16;

// Sums in stripes of rows whose number follows from the shapes and the rows that are not padding, added in
// their order. A thread
// works on one copy of the filters and their sums, which its caches keep, and writes the sums of each
// stripe to the result's stripe.
template <bool kBoth, typename Stored>
void SumGradients(const DepthwiseGradients& given, const Parallel& parallel, BadRow* bad) {
  DepthwiseGradients p = given;
  p.in_rows = RowsWithPairs(p.neighbors, p.in_rows, p.taps);
  using T = typename SumOf<Stored>::type;
  constexpr int64_t copies = kBoth ? 2 : 1;
  const std::vector<Channels> ranges = SplitChannels<T>(p.channels, kGradientVectors);
  int64_t padded = 0;
  for (const Channels& channels : ranges) padded += Padded<T>(channels);
  const int64_t size = p.taps * p.channels;
  const int64_t affordable = kStripeBytes / std::max<int64_t>(size * sizeof(T), 1);
  const int64_t wanted = std::clamp(p.in_rows / kStripeRows, kFewestStripes, kMostGradientStripes);
  const int64_t stripes = std::max<int64_t>(
      1, std::min({wanted, affordable, (p.in_rows + kGradientRows - 1) / kGradientRows}));
  const int64_t each = (p.in_rows + stripes - 1) / stripes;
  const auto tap_of = [&](int64_t k) { return p.reversed ? p.taps - 1 - k : k; };
  const int64_t row_bytes = p.channels * static_cast<int64_t>(sizeof(Stored));
  const bool whole = !ranges.empty() && ranges.back().vectors > 0;
  const bool stream = kBoth && whole && std::is_same_v<Stored, T> &&
                      StreamsRows(p.dx, p.in_rows, row_bytes,
                                  (InProportion(p.out_rows, p.in_rows, given.in_rows) + p.in_rows) *
                                          row_bytes +
                                      TableBytes(p.in_rows, p.taps),
                                  p.last_cache);
  // Calls of(the sums of this thread, channels, tap of the filter).
  const auto for_sums = [&](T* filters, const auto& of) {
    for (const Channels& channels : ranges) {
      const int64_t pitch = Padded<T>(channels);
      for (int64_t k = 0; k < p.taps; ++k, filters += copies * pitch) {
        of(filters + (copies - 1) * pitch, channels, tap_of(k));
      }
    }
  };
  Buffer<T> parts(stripes * size);
  parallel.RunStretches(stripes, kMostStripesAtOnce, [&](int64_t begin, int64_t after) {
    thread_local Buffer<T> own;
    own.Reserve(copies * p.taps * padded);
    T* filters = own.get();
    if constexpr (kBoth) {
      for_sums(filters, [&](T* sums, const Channels& channels, int64_t tap) {
        const Stored* from = static_cast<const Stored*>(p.w) + tap * p.channels + channels.begin;
        T* filter = sums - Padded<T>(channels);
        for (int64_t c = 0; c < channels.width; ++c) filter[c] = Widen(from[c]);
      });
    }
    Frontier gradients(p.dy, row_bytes);
    for (int64_t stripe = begin; stripe < after; ++stripe) {
      for_sums(filters, [&](T* sums, const Channels& channels, int64_t) {
        std::fill(sums, sums + Padded<T>(channels), T(0));
      });
      const int64_t first = stripe * each, end = std::min(p.in_rows, first + each);
      if (stream) {
        AddGradientsInOrder<kBoth, kBoth && std::is_same_v<Stored, T>, Stored>(
            p, first, end, ranges, &gradients, filters, bad);
      } else {
        AddGradientsInOrder<kBoth, false, Stored>(p, first, end, ranges, &gradients, filters, bad);
      }
      T* part = parts.get() + stripe * size;
      for_sums(filters, [&](T* sums, const Channels& channels, int64_t tap) {
        std::copy(sums, sums + channels.width, part + tap * p.channels + channels.begin);
      });
    }
  });
  T* sum = parts.get();
  for (int64_t s = 1; s < stripes; ++s) {
    const T* part = sum + s * size;
    for (int64_t i = 0; i < size; ++i) sum[i] += part[i];
  }
  Stored* dw = static_cast<Stored*>(p.dw);
  for (int64_t i = 0; i < size; ++i) Narrow(sum[i], dw + i);
  if constexpr (kBoth) {
    ClearRows(static_cast<Stored*>(p.dx), p.in_rows, given.in_rows, p.channels, parallel);
  }
}

template <typename Stored>
void RunDepthwiseGradients(const DepthwiseGradients& p, const Parallel& parallel, BadRow* bad) {
  SumGradients<true, Stored>(p, parallel, bad);
}

// wgrad alone: its table names the input rows of an output row, so the two change places.
template <typename Stored>
void RunDepthwiseWeight(const Depthwise& p, const Parallel& parallel, BadRow* bad) {
  DepthwiseGradients turned = {};
  turned.element = p.element;
  turned.dy = p.x;
  turned.x = p.w;
  turned.neighbors = p.neighbors;
  turned.dw = p.y;
  turned.in_rows = p.out_rows;
  turned.out_rows = p.in_rows;
  turned.taps = p.taps;
  turned.channels = p.channels;
  SumGradients<false, Stored>(turned, parallel, bad);
}

}  // namespace voxax::VOXAX_ISA
