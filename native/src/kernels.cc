// Compiled once for every instruction set, with -DVOXAX_ISA=<name>.
#include "kernels.h"

#include "depthwise.h"
#include "depthwise_gradients.h"
#include "norm.h"
#include "pooling.h"
#include "product.h"
#include "weight_product.h"

#define VOXAX_TEXT_(name) #name
#define VOXAX_TEXT(name) VOXAX_TEXT_(name)

namespace voxax::VOXAX_ISA {
namespace {

// Calls RUN<Stored> for the problem's element.
#define VOXAX_FOR_ELEMENT(NAME, PROBLEM, RUN)                              \
  void NAME(const PROBLEM& p, const Parallel& parallel, BadRow* bad) {     \
    switch (p.element) {                                                   \
      case Element::kFloat32:                                              \
        return RUN<float>(p, parallel, bad);                               \
      case Element::kFloat64:                                              \
        return RUN<double>(p, parallel, bad);                              \
      case Element::kBFloat16:                                             \
        return RUN<BFloat16>(p, parallel, bad);                            \
    }                                                                      \
  }

VOXAX_FOR_ELEMENT(ProductOf, Product, RunProduct)
VOXAX_FOR_ELEMENT(WeightProductOf, WeightProduct, RunWeightProduct)
VOXAX_FOR_ELEMENT(DepthwiseOf, Depthwise, RunDepthwise)
VOXAX_FOR_ELEMENT(DepthwiseWeightOf, Depthwise, RunDepthwiseWeight)
VOXAX_FOR_ELEMENT(DepthwiseGradientsOf, DepthwiseGradients, RunDepthwiseGradients)
VOXAX_FOR_ELEMENT(ExtremesOf, Extremes, RunExtremes)
VOXAX_FOR_ELEMENT(BatchNormOf, BatchNorm, RunBatchNorm)
VOXAX_FOR_ELEMENT(BatchNormGradientsOf, BatchNormGradients, RunBatchNormGradients)

}  // namespace

extern const Operator kOperatorTable[];  // of operators.cc

extern const Kernels kKernels;
const Kernels kKernels = {VOXAX_TEXT(VOXAX_ISA), ProductOf, WeightProductOf, DepthwiseOf,
                          DepthwiseWeightOf, DepthwiseGradientsOf, ExtremesOf, BatchNormOf,
                          BatchNormGradientsOf, kOperatorTable};

}  // namespace voxax::VOXAX_ISA
