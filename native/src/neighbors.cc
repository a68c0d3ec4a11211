// Rows of `center + offset` in a sorted coordinate list: the kernel map.
//
// Offsets that share all but the last axis are one column: along it the neighbors of a hit are
// adjacent rows, so one position serves them all. Centers mostly come in the order of the list, and
// then each column's position only ever moves forward: a merge of two sorted lists, without a hash
// table. Where a center is out of order, the position is found by binary search.
//
// Coordinates that fit into one word (packed_neighbors.h) are compared as one; these here are not.
#include <algorithm>
#include <vector>

#include "buffer.h"
#include "columns.h"
#include "maps.h"
#include "packed_neighbors.h"

namespace voxax {
namespace {

using baseline::Buffer;

// W coordinates as one number of the same order.
template <int W>
struct Key {
  static constexpr int kWords = (W + 1) / 2;
  uint64_t words[kWords];

  static uint64_t Biased(int32_t value) { return static_cast<uint32_t>(value) ^ 0x80000000u; }

  static Key Of(const int32_t* row) {
    Key key;
    for (int i = 0; i < kWords; ++i) {
      const int last = W - 1 - 2 * (kWords - 1 - i);  // the last axis is in the low half
      key.words[i] = Biased(row[last]) | (last > 0 ? Biased(row[last - 1]) << 32 : 0);
    }
    return key;
  }

  friend bool operator<(const Key& a, const Key& b) {
    for (int i = 0; i < kWords - 1; ++i) {
      if (a.words[i] != b.words[i]) return a.words[i] < b.words[i];
    }
    return a.words[kWords - 1] < b.words[kWords - 1];
  }
  friend bool operator==(const Key& a, const Key& b) {
    for (int i = 0; i < kWords; ++i) {
      if (a.words[i] != b.words[i]) return false;
    }
    return true;
  }
};

template <int W>
void Find(const Lookup& p, const std::vector<Column>& columns, const Parallel& parallel) {
  if (FindPacked<W>(p, columns, parallel)) return;
  using K = Key<W>;
  constexpr int64_t kChunk = 4096;
  Buffer<K> keys(p.rows);
  parallel.Run((p.rows + kChunk - 1) / kChunk, [&](int64_t c) {
    const int64_t end = std::min(p.rows, (c + 1) * kChunk);
    for (int64_t i = c * kChunk; i < end; ++i) keys[i] = K::Of(p.sorted + i * W);
  });
  const K* first = keys.get();
  const K* last = first + p.rows;
  const int64_t chunks = (p.centers_rows + kChunk - 1) / kChunk;
  parallel.Run(chunks, [&](int64_t c) {
    const int64_t end = std::min(p.centers_rows, (c + 1) * kChunk);
    std::vector<const K*> at(columns.size(), nullptr);
    std::vector<K> before(columns.size());
    for (int64_t m = c * kChunk; m < end; ++m) {
      int32_t* found = p.found + m * p.taps;
      if (p.valid != nullptr && !p.valid[m]) {
        std::fill(found, found + p.taps, -1);
        continue;
      }
      for (size_t q = 0; q < columns.size(); ++q) {
        const Column& column = columns[q];
        // Beyond 32 bits there are no voxels. Along the last axis only some of a column may be there.
        const int32_t* center = p.centers + m * W;
        const int64_t start = int64_t{center[W - 1]} + column.offset[W - 1];
        int64_t last_axis = std::clamp<int64_t>(start, INT32_MIN, INT32_MAX);
        int32_t query[W];
        query[W - 1] = static_cast<int32_t>(last_axis);
        bool outside = false;
        for (int w = 0; w < W - 1; ++w) {
          outside |= __builtin_add_overflow(center[w], column.offset[w], &query[w]);
        }
        if (outside) {
          for (const Step step : column.steps) found[step.tap] = -1;
          continue;
        }
        K key = K::Of(query);
        const K* position = at[q];
        if (position == nullptr || key < before[q]) {
          position = std::lower_bound(first, last, key);
        } else {
          int walked = 0;
          while (position != last && *position < key) {
            ++position;
            if (++walked == 16) {  // a gap: search the rest
              position = std::lower_bound(position, last, key);
              break;
            }
          }
        }
        at[q] = position;
        before[q] = key;
        for (const Step step : column.steps) {
          const int64_t there = start + step.along;
          if (there < INT32_MIN || there > INT32_MAX) {
            found[step.tap] = -1;
            continue;
          }
          // The low half of the last word is the last axis.
          key.words[K::kWords - 1] += static_cast<uint32_t>(there - last_axis);
          last_axis = there;
          while (position != last && *position < key) ++position;
          found[step.tap] = position != last && *position == key
                                ? static_cast<int32_t>(position - first)
                                : -1;
        }
      }
    }
  });
}

}  // namespace

bool FindNeighbors(const Lookup& p, const Parallel& parallel) {
  if (p.width < 2 || p.width > 5) return false;  // 1 to 4 axes
  const std::vector<Column> columns = ColumnsOf(p.offsets, p.taps, p.width - 1);
  switch (p.width) {
    case 2:
      Find<2>(p, columns, parallel);
      return true;
    case 3:
      Find<3>(p, columns, parallel);
      return true;
    case 4:
      Find<4>(p, columns, parallel);
      return true;
    case 5:
      Find<5>(p, columns, parallel);
      return true;
    default:
      return false;
  }
}

}  // namespace voxax
