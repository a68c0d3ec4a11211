// The operators of one instruction set. Compiled once for each, with -DVOXAX_ISA=<name>.
#include "operators.h"

#include "activation.h"
#include "add_rows.h"
#include "attention.h"
#include "cat.h"
#include "cross_entropy.h"
#include "linear.h"
#include "random.h"
#include "row_norm.h"
#include "scenes.h"

namespace voxax::VOXAX_ISA {
namespace {

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
const char* linear(const Call& call, const Parallel& parallel) {
  VOXAX_BY_PRODUCT(RunLinear, call, parallel)
}
const char* linear_gradients(const Call& call, const Parallel& parallel) {
  VOXAX_BY_PRODUCT(RunLinearGradients, call, parallel)
}
VOXAX_BY_DTYPE(cross_entropy, RunCrossEntropy)
VOXAX_BY_DTYPE(cross_entropy_gradients, RunCrossEntropyGradients)
VOXAX_BY_DTYPE(add_rows, RunAddRows)
VOXAX_BY_DTYPE(cat, RunCat)
VOXAX_BY_DTYPE(cat_gradients, RunCatGradients)
VOXAX_BY_DTYPE(attention, RunAttention)
VOXAX_BY_DTYPE(attention_gradients, RunAttentionGradients)
VOXAX_BY_DTYPE(dropout, RunDropout)
const char* permutation(const Call& call, const Parallel& parallel) {
  return RunPermutation(call, parallel);
}
const char* fold_in(const Call& call, const Parallel& parallel) { return RunFoldIn(call, parallel); }

}  // namespace

#define VOXAX_OPERATOR(NAME) NAME,
extern const Operator kOperatorTable[];
const Operator kOperatorTable[] = {VOXAX_OPERATORS(VOXAX_OPERATOR)};

}  // namespace voxax::VOXAX_ISA
