// Distinct rows: sort, mark the first of each run of equal ones, and number these.
#include <algorithm>
#include <numeric>
#include <vector>

#include "buffer.h"
#include "rows.h"
#include "split.h"

namespace voxax {

int64_t FindUnique(const Unique& p, const Parallel& parallel) {
  const Rows& rows = p.rows;
  const int64_t width = rows.width;
  baseline::Buffer<int32_t> order(rows.count);
  SortRows(rows, order.get(), parallel);

  // Whether the row at this place of the order is the first of its kind.
  const auto is_first = [&](int64_t i) {
    const int32_t* row = rows[order[i]];
    return row[0] != kPad && (i == 0 || !std::equal(row, row + width, rows[order[i - 1]]));
  };
  const Split split(rows.count, parallel);
  baseline::Buffer<bool> first(rows.count);
  std::vector<int64_t> starts(split.parts + 1, 0);
  split.Run(parallel, [&](int64_t part, int64_t begin, int64_t end) {
    int64_t number = 0;
    for (int64_t i = begin; i < end; ++i) number += first[i] = is_first(i);
    starts[part + 1] = number;
  });
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  const int64_t total = starts.back();
  split.Run(parallel, [&](int64_t part, int64_t begin, int64_t end) {
    int64_t place = starts[part] - 1;
    for (int64_t i = begin; i < end; ++i) {
      const int32_t* row = rows[order[i]];
      place += first[i];
      const bool kept = place < p.capacity && row[0] != kPad;
      if (kept && first[i]) std::copy_n(row, width, p.coords + place * width);
      p.inverse[order[i]] = kept ? static_cast<int32_t>(place) : -1;
    }
  });
  const int64_t count = std::min(total, p.capacity);
  std::fill(p.coords + count * width, p.coords + p.capacity * width, kPad);
  return total;
}

}  // namespace voxax
