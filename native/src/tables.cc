// Kernel maps read backwards, and tap by tap.
#include <algorithm>
#include <vector>

#include "padding.h"
#include "rows.h"
#include "split.h"

namespace voxax {

void InvertTable(const Table& table, int64_t in_rows, int32_t* found, const Parallel& parallel) {
  // Each thread writes input rows of its own and reads the whole table for that: no two write the
  // same place, so the result is one for any number of them. More than a few would read for long.
  constexpr int64_t kReaders = 4;
  const Split split(in_rows, std::min(parallel.threads(), kReaders));
  const int64_t rows = baseline::RowsWithPairs(table.neighbors, table.rows, table.taps);
  split.Run(parallel, [&](int64_t, int64_t begin, int64_t end) {
    const int64_t taps = table.taps;
    std::fill(found + begin * taps, found + end * taps, -1);
    const uint64_t mine = end - begin;
    for (int64_t row = 0; row < rows; ++row) {
      const int32_t* named = table.neighbors + row * taps;
      for (int64_t tap = 0; tap < taps; ++tap) {
        // One comparison for both ends: below `begin` the difference is huge.
        const uint64_t at = static_cast<uint64_t>(named[tap] - begin);
        if (at < mine) found[(begin + at) * taps + tap] = static_cast<int32_t>(row);
      }
    }
  });
}

void ListPairs(const Table& table, int64_t places, int32_t* pairs, int32_t* starts,
               const Parallel& parallel) {
  const int64_t taps = table.taps;
  const Split split(baseline::RowsWithPairs(table.neighbors, table.rows, taps), parallel);
  // Where each part writes next, tap by tap.
  std::vector<std::vector<int64_t>> next(split.parts);
  split.Run(parallel, [&](int64_t part, int64_t begin, int64_t end) {
    std::vector<int64_t> numbers(taps, 0);
    for (int64_t row = begin; row < end; ++row) {
      const int32_t* named = table.neighbors + row * taps;
      for (int64_t tap = 0; tap < taps; ++tap) numbers[tap] += named[tap] >= 0;
    }
    next[part] = std::move(numbers);
  });
  int64_t place = 0;
  for (int64_t tap = 0; tap < taps; ++tap) {
    starts[tap] = static_cast<int32_t>(place);
    for (std::vector<int64_t>& part : next) {
      const int64_t number = part[tap];
      part[tap] = place;
      place += number;
    }
  }
  starts[taps] = static_cast<int32_t>(place);
  int32_t* in = pairs;
  int32_t* out = pairs + places;
  split.Run(parallel, [&](int64_t part, int64_t begin, int64_t end) {
    std::vector<int64_t> mine = std::move(next[part]);
    for (int64_t row = begin; row < end; ++row) {
      const int32_t* named = table.neighbors + row * taps;
      for (int64_t tap = 0; tap < taps; ++tap) {
        if (named[tap] < 0) continue;
        const int64_t at = mine[tap]++;
        in[at] = named[tap];
        out[at] = static_cast<int32_t>(row);
      }
    }
  });
  const Split rest(places - place, parallel);
  rest.Run(parallel, [&](int64_t, int64_t begin, int64_t end) {
    std::fill(in + place + begin, in + place + end, -1);
    std::fill(out + place + begin, out + place + end, -1);
  });
}

}  // namespace voxax
