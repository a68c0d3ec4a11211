// Linear layers: products of valid rows under one tap.
#pragma once

#include "kernels.h"
#include "row_blocks.h"

namespace voxax::VOXAX_ISA {

// The valid rows. Where they are the first ones, as in Voxels, row i of the list is row i.
struct ValidRows {
  ValidRows(const bool* valid, int64_t rows) : list(rows) {
    for (int64_t r = 0; r < rows; ++r) {
      if (IsValid(valid, r)) list[count++] = static_cast<int32_t>(r);
    }
    leading = count == 0 || list[count - 1] == count - 1;
  }
  const int32_t* order() const { return leading ? nullptr : list.get(); }

  Buffer<int32_t> list;
  int64_t count = 0;
  bool leading;
};

// RUN<Stored>(call, parallel) for the types that products have.
#define VOXAX_BY_PRODUCT(RUN, call, parallel)                  \
  if (call.in.empty()) return "features first";                \
  switch (call.in[0].kind) {                                   \
    case Kind::kFloat32:                                       \
      return RUN<float>(call, parallel);                       \
    case Kind::kFloat64:                                       \
      return RUN<double>(call, parallel);                      \
    case Kind::kBFloat16:                                      \
      return RUN<BFloat16>(call, parallel);                    \
    default:                                                   \
      return "features of float32, float64 or bfloat16";       \
  }

// As measured for products over kernel maps, voxax/kernels/implicit_gemm/cpu.py.
inline constexpr int64_t kLinearTile = 256, kLinearTileOfFew = 128, kLinearFewRows = 8192, kLinearWeightTile = 2048;

// y = x w + bias over the valid rows; w [depth, columns] with strides. Zero in all others.
template <typename Stored>
void MultiplyRows(const Stored* x, const ValidRows& valid, int64_t rows, const Stored* w, int64_t depth,
                  int64_t columns, int64_t depth_stride, int64_t column_stride, const Stored* bias,
                  Stored* y, const Parallel& parallel) {
  Product p{};
  p.element = static_cast<Element>(kKindOf<Stored>);
  p.x = x;
  p.w = w;
  p.neighbors = valid.list.get();
  p.y = y;
  p.in_rows = rows;
  p.out_rows = valid.count;
  p.taps = p.groups = 1;
  p.depth = depth;
  p.columns = columns;
  p.tap_stride = depth * columns;
  p.depth_stride = depth_stride;
  p.column_stride = column_stride;
  p.tile = std::min(valid.count < kLinearFewRows ? kLinearTileOfFew : kLinearTile,
                    std::max<int64_t>(valid.count, 1));
  p.rows = valid.order();
  p.bias = bias;
  BadRow bad{-1};
  BestKernels().product(p, parallel, &bad);
  if (valid.leading) {
    return ClearRows(y, valid.count, rows, columns, parallel);
  }
  int64_t next = 0;
  for (int64_t i = 0; i <= valid.count; ++i) {
    const int64_t row = i < valid.count ? valid.list[i] : rows;
    std::fill(y + next * columns, y + row * columns, Stored{});
    next = row + 1;
  }
}

// In: x [N, C], valid [N], w [C, D], bias [D] or [0]. Out: y [N, D]. All of one type.
template <typename Stored>
const char* RunLinear(const Call& call, const Parallel& parallel) {
  Checked checked(call);
  const int64_t rows = checked.in_axis(0, 0), depth = checked.in_axis(0, 1);
  const int64_t columns = checked.in_axis(2, 1);
  const Stored* x = checked.In<Stored>(0, {rows, depth});
  const bool* valid = checked.Optional<bool>(1, {rows});
  const Stored *w = checked.In<Stored>(2, {depth, columns}), *bias = checked.Optional<Stored>(3, {columns});
  Stored* y = checked.Out<Stored>(0, {rows, columns});
  if (!checked.good()) return "x [N, C], valid [N], w [C, D], bias [D] of one dtype";
  const ValidRows list(valid, rows);
  MultiplyRows(x, list, rows, w, depth, columns, columns, int64_t{1}, bias, y, parallel);
  return nullptr;
}

// In: dy [N, D], x [N, C], valid [N], w [C, D]. Out: dx, dw, dbias [D] in the type of the sums.
template <typename Stored>
const char* RunLinearGradients(const Call& call, const Parallel& parallel) {
  using T = typename SumOf<Stored>::type;
  Checked checked(call);
  const int64_t rows = checked.in_axis(0, 0), columns = checked.in_axis(0, 1);
  const int64_t depth = checked.in_axis(1, 1);
  const Stored *dy = checked.In<Stored>(0, {rows, columns}), *x = checked.In<Stored>(1, {rows, depth});
  const bool* valid = checked.Optional<bool>(2, {rows});
  const Stored* w = checked.In<Stored>(3, {depth, columns});
  Stored *dx = checked.Out<Stored>(0, {rows, depth}), *dw = checked.Out<Stored>(1, {depth, columns});
  T* dbias = checked.Out<T>(2, {columns});
  if (!checked.good()) return "dy [N, D], x [N, C], valid [N], w [C, D] of one dtype";
  const ValidRows list(valid, rows);
  MultiplyRows<Stored>(dy, list, rows, w, columns, depth, int64_t{1}, columns, nullptr, dx, parallel);
  WeightProduct p{};
  p.element = static_cast<Element>(kKindOf<Stored>);
  p.x = x;
  p.dy = dy;
  p.neighbors = list.list.get();
  p.rows = list.order();
  p.dw = dw;
  p.in_rows = rows;
  p.out_rows = list.count;
  p.taps = p.groups = 1;
  p.depth = depth;
  p.columns = columns;
  p.tile = std::min(kLinearWeightTile, std::max<int64_t>(list.count, 1));
  BadRow bad{-1};
  BestKernels().weight_product(p, parallel, &bad);
  const int64_t blocks = Blocks(list.count, columns);
  Buffer<T> parts(blocks * columns);
  ForBlocks(parallel, list.count, columns, [&](int64_t b, int64_t begin, int64_t end) {
    ForChannels<T>(columns, [&](auto lanes, int64_t c) {
      using C = Lane<T, lanes.value>;
      typename C::Value sum{};
      for (int64_t i = begin; i < end; ++i) sum += C::Load(dy + list.list[i] * columns + c);
      C::Store(&parts[b * columns + c], sum);
    });
  });
  JoinParts(parts.get(), blocks, columns, dbias);
  return nullptr;
}

}  // namespace voxax::VOXAX_ISA
