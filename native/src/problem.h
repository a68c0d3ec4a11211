// What the handlers hand to the kernels: plain structs, the same for every instruction set.
#pragma once

#include <atomic>
#include <cstdint>

namespace voxax {

enum class Element { kFloat32, kFloat64, kBFloat16 };

// y[m] = sum over taps k of x[neighbors[m, k]] * w[k]; groups side by side.
struct Product {
  Element element;
  const void* x;  // [in_rows, groups * depth]
  const void* w;  // [taps, groups, depth, columns] with the strides below
  const int32_t* neighbors;  // [out_rows, taps]; -1 where there is none
  void* y;                   // [out_rows, groups * columns]
  int64_t in_rows, out_rows, taps, groups, depth, columns;
  // Weights between one and the next along each axis of w but groups; a group's are dense.
  int64_t tap_stride, depth_stride, column_stride;
  bool reversed;       // tap k of the table multiplies w[taps - 1 - k]
  int64_t tile;        // output rows whose sums are kept in cache
  int64_t last_cache;  // bytes that the processor's last cache holds; 0 if unknown
  // The rest is zero unless asked for. Row m of the table is row rows[m] of y, distinct for each.
  const int32_t* rows;
  const void* bias;  // [groups * columns], added to every row
  bool relu;         // then negative values become 0
};

// dw[k] = sum over rows m of x[neighbors[m, k]]^T * dy[m]; groups side by side.
struct WeightProduct {
  Element element;
  const void* x;   // [in_rows, groups * depth]
  const void* dy;  // [out_rows, groups * columns]
  const int32_t* neighbors;
  void* dw;  // [taps, groups, depth, columns]
  int64_t in_rows, out_rows, taps, groups, depth, columns;
  int64_t tile;
  const int32_t* rows;  // row m of the table is row rows[m] of dy; NULL: row m
};

// y[m, c] = sum over taps k of x[neighbors[m, k], c] * w[k, c]. For wgrad w is dy [out_rows,
// channels] and y is dw [taps, channels].
struct Depthwise {
  Element element;
  const void* x;  // [in_rows, channels]
  const void* w;  // [taps, channels]
  const int32_t* neighbors;
  void* y;
  int64_t in_rows, out_rows, taps, channels;
  bool reversed;
  int64_t tile;
  int64_t last_cache;
};

// dx[i, c] = sum over taps k of dy[neighbors[i, k], c] * w[k, c], and dw[k, c] = sum over rows i of
// dy[neighbors[i, k], c] * x[i, c]: the table names the output rows of an input row.
struct DepthwiseGradients {
  Element element;
  const void* dy;  // [out_rows, channels]
  const void* w;   // [taps, channels]
  const void* x;   // [in_rows, channels]
  const int32_t* neighbors;
  void* dx;
  void* dw;
  int64_t in_rows, out_rows, taps, channels;
  bool reversed;  // tap k of the table is the filter taps - 1 - k
  int64_t last_cache;
};

// found[m, c] = the row among neighbors[m] whose x[row, c] is the largest or smallest, or -1.
struct Extremes {
  Element element;
  const void* x;  // [in_rows, channels]
  const int32_t* neighbors;
  int32_t* found;  // [out_rows, channels]
  int64_t in_rows, out_rows, taps, channels;
  bool largest;
  int64_t tile;
};

// y = (x - mean) / sqrt(variance + epsilon) * scale + bias + residual, then max(y, 0) if asked for; 0 in
// rows that are not valid. In training mean and variance are those of the valid rows, else old ones.
// Arrays of one value for each channel have the type of the sums.
struct BatchNorm {
  Element element;
  const void* x;          // [rows, channels]
  const bool* valid;      // [rows]
  const void* residual;   // [rows, channels] or NULL
  const void *scale, *bias, *old_mean, *old_variance;
  double momentum, epsilon;  // momentum: weight of the old averages
  bool training, relu;
  int64_t rows, channels;
  void* y;                          // or NULL: only the statistics are wanted
  void *mean, *inverse;             // what was used: inverse = 1 / sqrt(variance + epsilon)
  void *new_mean, *new_variance;    // running averages; the old ones but for training
};

// The gradients of BatchNorm by dy.
struct BatchNormGradients {
  Element element;
  const void *dy, *x;  // [rows, channels]
  const void* y;       // BatchNorm's result, read with relu alone
  const bool* valid;
  const void *mean, *inverse, *scale;
  bool training, relu;
  int64_t rows, channels;
  void* dx;
  void* dresidual;  // or NULL
  void *dscale, *dbias;
};

// A row outside [-1, in_rows), or -1. Kernels treat such rows as absent.
using BadRow = std::atomic<int64_t>;

}  // namespace voxax
