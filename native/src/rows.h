// Coordinate rows: sorting, and the tables to read kernel maps backwards or tap by tap.
#pragma once

#include <cstdint>

#include "parallel.h"

namespace voxax {

// The value of every column of a padding row.
constexpr int32_t kPad = INT32_MAX;

struct Rows {
  const int32_t* data;  // [count, width]
  int64_t count, width;

  const int32_t* operator[](int64_t i) const { return data + i * width; }
};

// A row has a batch index and up to four axes, or the words of a curve's key in their place.
inline bool Sortable(int64_t width) { return 1 <= width && width <= 5; }

// order[0] .. order[count - 1]: row numbers in lexicographic order, equal rows in their old order.
// Fewer than 2^31 rows of a Sortable width.
void SortRows(const Rows& rows, int32_t* order, const Parallel& parallel);

struct Unique {
  Rows rows;         // in any order; those whose first column is kPad are padding
  int32_t* coords;   // [capacity, width]: the first distinct rows in order, then padding
  int32_t* inverse;  // [rows.count]: the place of each row, -1 where it has none
  int64_t capacity;
};

// Returns the number of distinct rows, which may be more than the capacity.
int64_t FindUnique(const Unique& p, const Parallel& parallel);

// A kernel map: for each output row and tap the input row, or -1.
struct Table {
  const int32_t* neighbors;  // [rows, taps]
  int64_t rows, taps;
};

// found [in_rows, taps]: the output row of each input row and tap, or -1. Entries that name no
// input row are left out; where two outputs of a tap share an input, the later one stays.
void InvertTable(const Table& table, int64_t in_rows, int32_t* found, const Parallel& parallel);

// The pairs that exist, tap after tap, by output row within a tap: input rows in the first half of
// pairs [2, places], output rows in the second, -1 behind the last; starts [taps + 1].
// `places` is at least rows * taps, and that below 2^31.
void ListPairs(const Table& table, int64_t places, int32_t* pairs, int32_t* starts,
               const Parallel& parallel);

}  // namespace voxax
