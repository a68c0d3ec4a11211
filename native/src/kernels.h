// The kernels of one instruction set, as a table of functions.
#pragma once

#include "operators.h"
#include "parallel.h"
#include "problem.h"

namespace voxax {

struct Kernels {
  const char* name;
  void (*product)(const Product&, const Parallel&, BadRow*);
  void (*weight_product)(const WeightProduct&, const Parallel&, BadRow*);
  void (*depthwise)(const Depthwise&, const Parallel&, BadRow*);
  void (*depthwise_weight)(const Depthwise&, const Parallel&, BadRow*);
  void (*depthwise_gradients)(const DepthwiseGradients&, const Parallel&, BadRow*);
  void (*extremes)(const Extremes&, const Parallel&, BadRow*);
  void (*batch_norm)(const BatchNorm&, const Parallel&, BadRow*);
  void (*batch_norm_gradients)(const BatchNormGradients&, const Parallel&, BadRow*);
  const Operator* operators;  // by OperatorPlace
};

// Those of the widest vectors that this processor has and the build knows.
const Kernels& BestKernels();

}  // namespace voxax
