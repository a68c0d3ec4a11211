// Kernel maps of coordinates that fit into one 64-bit word.
//
// Every axis gets as many bits as the list and all that is looked for need, so that no sum of a
// center and an offset carries over into another axis. A tap is then a constant that is added to the
// center's word, and a comparison is one instruction. No branch predictor can learn how far a position
// moves and whether a voxel exists, so both are counted without branches.
#pragma once

#include <algorithm>
#include <vector>

#include "buffer.h"
#include "columns.h"
#include "maps.h"
#include "rows.h"
#include "split.h"

namespace voxax {

// The least and the largest value of every axis.
template <int W>
struct Extent {
  int64_t low[W], high[W];

  Extent() {
    std::fill_n(low, W, INT64_MAX);
    std::fill_n(high, W, INT64_MIN);
  }

  void Add(const int32_t* row) {
    for (int w = 0; w < W; ++w) {
      low[w] = std::min<int64_t>(low[w], row[w]);
      high[w] = std::max<int64_t>(high[w], row[w]);
    }
  }
  void Add(const Extent& other) {
    for (int w = 0; w < W; ++w) {
      low[w] = std::min(low[w], other.low[w]);
      high[w] = std::max(high[w], other.high[w]);
    }
  }
  bool empty() const { return low[0] > high[0]; }
};

// The extent of the rows for which `has` is true.
template <int W, typename Has>
Extent<W> ExtentOf(const int32_t* rows, int64_t count, const Has& has, const Parallel& parallel) {
  const Split split(count, parallel);
  std::vector<Extent<W>> parts(split.parts);
  split.Run(parallel, [&](int64_t part, int64_t begin, int64_t end) {
    Extent<W> extent;
    for (int64_t i = begin; i < end; ++i) {
      if (has(i)) extent.Add(rows + i * W);
    }
    parts[part] = extent;
  });
  for (const Extent<W>& part : parts) parts[0].Add(part);
  return parts[0];
}

// Where each axis is in a word.
template <int W>
struct Packing {
  int64_t low[W];
  int shift[W];

  // False where an extent needs more than one word. One bit is spare: no word is the largest.
  bool Fit(const Extent<W>& extent) {
    int bits = 0;
    for (int w = W - 1; w >= 0; --w) {
      low[w] = extent.low[w];
      shift[w] = bits;
      const auto range = static_cast<uint64_t>(extent.high[w] - extent.low[w]);
      bits += range == 0 ? 0 : 64 - __builtin_clzll(range);
      if (bits > 63) return false;
    }
    return true;
  }
  uint64_t operator()(const int32_t* row) const {
    uint64_t word = 0;
    for (int w = 0; w < W; ++w) word += static_cast<uint64_t>(row[w] - low[w]) << shift[w];
    return word;
  }
  // What an offset adds to a word.
  uint64_t Delta(const int32_t* offset) const {
    uint64_t delta = 0;
    for (int w = 0; w < W; ++w) {
      delta += static_cast<uint64_t>(static_cast<int64_t>(offset[w])) << shift[w];
    }
    return delta;
  }
};

// False, with nothing done, where the coordinates do not fit into one word.
template <int W>
bool FindPacked(const Lookup& p, const std::vector<Column>& columns, const Parallel& parallel) {
  // Few rows, so that those of the result stay in cache from column to column.
  constexpr int64_t kChunk = 512;
  const auto valid = [&](int64_t m) { return p.valid == nullptr || p.valid[m]; };
  const Extent<W> centers = ExtentOf<W>(p.centers, p.centers_rows, valid, parallel);
  // Padding would need a word of its own. It is behind all voxels, and so are these words.
  const bool looked_for = centers.high[0] == kPad;
  const auto voxel = [&](int64_t i) { return looked_for || p.sorted[i * W] != kPad; };
  Extent<W> extent = ExtentOf<W>(p.sorted, p.rows, voxel, parallel);
  if (extent.empty() || centers.empty()) {
    std::fill(p.found, p.found + p.centers_rows * p.taps, -1);
    return true;
  }
  extent.Add(centers);
  for (int w = 1; w < W; ++w) {
    for (int64_t k = 0; k < p.taps; ++k) {
      const int64_t offset = p.offsets[k * (W - 1) + w - 1];
      extent.low[w] = std::min(extent.low[w], centers.low[w] + offset);
      extent.high[w] = std::max(extent.high[w], centers.high[w] + offset);
    }
  }
  Packing<W> packing;
  if (!packing.Fit(extent)) return false;

  baseline::Buffer<uint64_t> words(p.rows + 1);
  const Split split(p.rows, parallel);
  split.Run(parallel, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      words[i] = voxel(i) ? packing(p.sorted + i * W) : UINT64_MAX;
    }
  });
  words[p.rows] = UINT64_MAX;  // where every walk ends
  const uint64_t* first = words.get();
  const uint64_t* last = first + p.rows;

  parallel.Run((p.centers_rows + kChunk - 1) / kChunk, [&](int64_t c) {
    const int64_t begin = c * kChunk, count = std::min(kChunk, p.centers_rows - begin);
    uint64_t center[kChunk];
    bool any = false;
    for (int64_t i = 0; i < count; ++i) {
      const bool there = valid(begin + i);
      center[i] = there ? packing(p.centers + (begin + i) * W) : UINT64_MAX;
      any |= there;
    }
    if (!any) {
      std::fill_n(p.found + begin * p.taps, count * p.taps, -1);
      return;
    }
    for (const Column& column : columns) {
      const uint64_t delta = packing.Delta(column.offset);
      const uint64_t* position = first;
      uint64_t before = UINT64_MAX;  // so that the first is searched
      for (int64_t i = 0; i < count; ++i) {
        int32_t* found = p.found + (begin + i) * p.taps;
        if (center[i] == UINT64_MAX) {
          for (const Step step : column.steps) found[step.tap] = -1;
          continue;
        }
        const uint64_t word = center[i] + delta;
        position += *position < word;
        position += *position < word;
        if (*position < word || word < before) position = std::lower_bound(first, last, word);
        before = word;
        const uint64_t* next = position;
        for (const Step step : column.steps) {
          const uint64_t wanted = word + static_cast<uint64_t>(step.along);
          next += *next < wanted;
          while (*next < wanted) ++next;  // the list has equal rows, or the column a gap
          found[step.tap] = *next == wanted ? static_cast<int32_t>(next - first) : -1;
        }
      }
    }
  });
  return true;
}

}  // namespace voxax
