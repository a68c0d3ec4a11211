// Compiled once for every instruction set, with -DVOXAX_ISA=<name>.
#include "kernels.h"

#include "activation.h"
#include "attention.h"
#include "cat.h"
#include "cross_entropy.h"
#include "depthwise.h"
#include "depthwise_gradients.h"
#include "linear.h"
#include "norm.h"
#include "pooling.h"
#include "product.h"
#include "random.h"
#include "row_norm.h"
#include "scenes.h"
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

#define VOXAX_BY_DTYPE(NAME, RUN) \
  const char* NAME(const Call& call, const Parallel& parallel) { VOXAX_BY_FEATURES(RUN, call, parallel) }

VOXAX_BY_DTYPE(activation, RunActivation)
VOXAX_BY_DTYPE(row_norm, RunRowNorm)
VOXAX_BY_DTYPE(row_norm_gradients, RunRowNormGradients)
VOXAX_BY_DTYPE(scene_norm, RunSceneNorm)
VOXAX_BY_DTYPE(scene_norm_gradients, RunSceneNormGradients)
VOXAX_BY_DTYPE(scene_sums, RunSceneSums)
VOXAX_BY_DTYPE(scene_rows, RunSceneRows)
VOXAX_BY_DTYPE(scene_extremes, RunSceneExtremes)
VOXAX_BY_DTYPE(scene_extremes_gradients, RunSceneExtremesGradients)
VOXAX_BY_DTYPE(cat, RunCat)
VOXAX_BY_DTYPE(cat_gradients, RunCatGradients)
VOXAX_BY_DTYPE(linear, RunLinear)
VOXAX_BY_DTYPE(linear_gradients, RunLinearGradients)
VOXAX_BY_DTYPE(cross_entropy, RunCrossEntropy)
VOXAX_BY_DTYPE(cross_entropy_gradients, RunCrossEntropyGradients)
VOXAX_BY_DTYPE(attention, RunAttention)
VOXAX_BY_DTYPE(attention_gradients, RunAttentionGradients)
VOXAX_BY_DTYPE(dropout, RunDropout)
const char* permutation(const Call& call, const Parallel& parallel) {
  return RunPermutation(call, parallel);
}
const char* fold_in(const Call& call, const Parallel& parallel) { return RunFoldIn(call, parallel); }

#define VOXAX_OPERATOR(NAME) NAME,
const Operator kOperatorTable[kOperators] = {VOXAX_OPERATORS(VOXAX_OPERATOR)};

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels = {VOXAX_TEXT(VOXAX_ISA), ProductOf, WeightProductOf, DepthwiseOf,
                          DepthwiseWeightOf, DepthwiseGradientsOf, ExtremesOf, BatchNormOf,
                          BatchNormGradientsOf, kOperatorTable};

}  // namespace voxax::VOXAX_ISA
