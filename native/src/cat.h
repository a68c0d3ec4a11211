// Features of several arrays side by side.
#pragma once

#include "row_blocks.h"

namespace voxax::VOXAX_ISA {

// Arrays [N, C_i], side by side in `whole [N, C]`; copies from or to them, zero in rows that are not valid.
template <bool kSplit, typename Stored>
void CopySides(const std::vector<Array>& sides, Stored* whole, const bool* valid, int64_t rows,
               int64_t channels, const Parallel& parallel) {
  const int64_t used = RowsWithValid(valid, rows);
  ForBlocks(parallel, used, channels, [&](int64_t, int64_t begin, int64_t end) {
    int64_t first = 0;
    for (const Array& side : sides) {
      const int64_t width = side.shape[1];
      for (int64_t r = begin; r < end; ++r) {
        Stored* own = static_cast<Stored*>(side.data) + r * width;
        Stored* shared = whole + r * channels + first;
        Stored* to = kSplit ? own : shared;
        if (IsValid(valid, r)) {
          std::copy_n(kSplit ? shared : own, width, to);
        } else {
          std::fill_n(to, width, Stored{});
        }
      }
      first += width;
    }
  });
  if constexpr (!kSplit) return ClearRows(whole, used, rows, channels, parallel);
  for (const Array& side : sides) {
    ClearRows(static_cast<Stored*>(side.data), used, rows, side.shape[1], parallel);
  }
}

// Whether the arrays are [rows, C_i] of one type, and the sum of C_i is `channels`.
template <typename Stored>
bool AreSides(const std::vector<Array>& sides, int64_t rows, int64_t channels) {
  for (const Array& side : sides) {
    if (side.kind != kKindOf<Stored> || side.shape.size() != 2 || side.shape[0] != rows) return false;
    channels -= side.shape[1];
  }
  return channels == 0;
}

// In: x_i [N, C_i], and valid [N] last. Out: y [N, sum of C_i].
template <typename Stored>
const char* RunCat(const Call& call, const Parallel& parallel) {
  Checked checked(call);
  const int64_t rows = checked.in_axis(0, 0), channels = checked.out_axis(0, 1);
  const std::vector<Array> sides(call.in.begin(), call.in.end() - 1);
  const bool* valid = checked.In<bool>(sides.size(), {rows});
  Stored* y = checked.Out<Stored>(0, {rows, channels});
  if (!checked.good() || !AreSides<Stored>(sides, rows, channels)) {
    return "x_i [N, C_i] of one dtype, valid [N], result [N, sum of C_i]";
  }
  CopySides<false>(sides, y, valid, rows, channels, parallel);
  return nullptr;
}

// In: dy [N, C], valid [N]. Out: dx_i [N, C_i].
template <typename Stored>
const char* RunCatGradients(const Call& call, const Parallel& parallel) {
  Checked checked(call);
  const int64_t rows = checked.in_axis(0, 0), channels = checked.in_axis(0, 1);
  const Stored* dy = checked.In<Stored>(0, {rows, channels});
  const bool* valid = checked.In<bool>(1, {rows});
  if (!checked.good() || !AreSides<Stored>(call.out, rows, channels)) {
    return "dy [N, sum of C_i], valid [N], results [N, C_i] of one dtype";
  }
  CopySides<true>(call.out, const_cast<Stored*>(dy), valid, rows, channels, parallel);
  return nullptr;
}

}  // namespace voxax::VOXAX_ISA
