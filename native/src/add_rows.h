// Sums of two arrays of features.
#pragma once

#include "row_blocks.h"

namespace voxax::VOXAX_ISA {

// In: a, b [N, C], valid [N]. Out: y = a + b [N, C]; its memory may be that of a.
template <typename Stored>
const char* RunAddRows(const Call& call, const Parallel& parallel) {
  using T = typename SumOf<Stored>::type;
  Checked checked(call);
  const int64_t rows = checked.in_axis(0, 0), channels = checked.in_axis(0, 1);
  const Stored* a = checked.In<Stored>(0, {rows, channels});
  const Stored* b = checked.In<Stored>(1, {rows, channels});
  const bool* valid = checked.In<bool>(2, {rows});
  Stored* y = checked.Out<Stored>(0, {rows, channels});
  if (!checked.good()) return "a and b [N, C] of one dtype, valid [N]";
  const int64_t used = RowsWithValid(valid, rows);
  ForBlocks(parallel, used, channels, [&](int64_t, int64_t begin, int64_t end) {
    const auto full = [&](int64_t first, int64_t after) {
      const int64_t at = first * channels;
      ForChannels<T>((after - first) * channels, [&](auto lanes, int64_t i) {
        using C = Lane<T, lanes.value>;
        C::Store(y + at + i, C::Load(a + at + i) + C::Load(b + at + i));
      });
    };
    ForStretches(valid, begin, end, full, [&](int64_t first, int64_t after) {
      std::fill(y + first * channels, y + after * channels, Stored{});
    });
  });
  ClearRows(y, used, rows, channels, parallel);
  return nullptr;
}

}  // namespace voxax::VOXAX_ISA
