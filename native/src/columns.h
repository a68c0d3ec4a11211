// The taps of a kernel, in groups that share one position in a sorted list.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace voxax {

// A column ends if the next offset is further than this, since walking there could pass many rows.
inline constexpr int64_t kLongestGap = 8;

struct Step {
  int64_t along;  // lattice steps behind the column's first offset
  int32_t tap;
};

struct Column {
  int32_t offset[5];  // 0 for the batch index, then the first offset
  std::vector<Step> steps;
};

// Offsets [taps, axes] that share all but the last axis, and lie close to each other along it.
inline std::vector<Column> ColumnsOf(const int32_t* offsets, int64_t taps, int64_t axes) {
  std::vector<int32_t> order(taps);
  for (int64_t k = 0; k < taps; ++k) order[k] = static_cast<int32_t>(k);
  const auto row = [&](int32_t k) { return offsets + k * axes; };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return std::lexicographical_compare(row(a), row(a) + axes, row(b), row(b) + axes);
  });
  std::vector<Column> columns;
  for (const int32_t k : order) {
    const int32_t* offset = row(k);
    // In 64 bits: offsets may be as far apart as 32 bits allow.
    const auto along = [&] { return int64_t{offset[axes - 1]} - columns.back().offset[axes]; };
    if (columns.empty() ||
        !std::equal(offset, offset + axes - 1, columns.back().offset + 1) ||
        along() - columns.back().steps.back().along > kLongestGap) {
      Column column{};
      std::copy(offset, offset + axes, column.offset + 1);
      columns.push_back(column);
    }
    columns.back().steps.push_back({along(), k});
  }
  return columns;
}

}  // namespace voxax
