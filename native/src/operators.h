// Operators on rows of features with two callers, XLA and ctypes: arrays and numbers in, arrays out.
//
// Rows that are not valid are read by nothing and written as zeros. Results have the same bits for any
// number of threads: sums run over blocks whose length depends on the shapes alone.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel.h"

namespace voxax {

// In the order of voxax/_native/operators.py.
enum class Kind : int64_t { kFloat32, kFloat64, kBFloat16, kFloat16, kInt32, kUInt32, kBool, kKinds };

struct Array {
  Kind kind;
  void* data;  // dense
  std::vector<int64_t> shape;
};

struct Call {
  std::vector<Array> in, out;
  std::vector<int64_t> sizes;
  std::vector<double> numbers;
};

// Does the work. Returns what does not fit, or null.
using Operator = const char* (*)(const Call&, const Parallel&);

#define VOXAX_OPERATORS(X)                                                                    \
  X(activation)                                                                               \
  X(row_norm)                                                                                 \
  X(row_norm_gradients)                                                                       \
  X(scene_norm)                                                                               \
  X(scene_norm_gradients)                                                                     \
  X(scene_sums)                                                                               \
  X(scene_rows)                                                                               \
  X(scene_extremes)                                                                           \
  X(scene_extremes_gradients)                                                                 \
  X(linear)                                                                                   \
  X(linear_gradients)                                                                         \
  X(cross_entropy)                                                                            \
  X(cross_entropy_gradients)                                                                  \
  X(add_rows)                                                                                 \
  X(cat)                                                                                      \
  X(cat_gradients)                                                                            \
  X(attention)                                                                                \
  X(attention_gradients)                                                                      \
  X(dropout)                                                                                  \
  X(fold_in)                                                                                  \
  X(permutation)

#define VOXAX_OPERATOR_PLACE(NAME) kPlaceOf_##NAME,
enum OperatorPlace { VOXAX_OPERATORS(VOXAX_OPERATOR_PLACE) kOperators };
#undef VOXAX_OPERATOR_PLACE

}  // namespace voxax
