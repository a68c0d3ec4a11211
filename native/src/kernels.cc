// Compiled once for every instruction set, with -DVOXAX_ISA=<name>.
#include "kernels.h"

#include "product.h"
#include "weight_product.h"

#define VOXAX_TEXT_(name) #name
#define VOXAX_TEXT(name) VOXAX_TEXT_(name)

namespace voxax::VOXAX_ISA {
namespace {

void ProductOf(const Product& p, const Parallel& parallel, BadRow* bad) {
  switch (p.element) {
    case Element::kFloat32:
      return RunProduct<float>(p, parallel, bad);
    case Element::kFloat64:
      return RunProduct<double>(p, parallel, bad);
    case Element::kBFloat16:
      return RunProduct<BFloat16>(p, parallel, bad);
  }
}

void WeightProductOf(const WeightProduct& p, const Parallel& parallel, BadRow* bad) {
  switch (p.element) {
    case Element::kFloat32:
      return RunWeightProduct<float>(p, parallel, bad);
    case Element::kFloat64:
      return RunWeightProduct<double>(p, parallel, bad);
    case Element::kBFloat16:
      return RunWeightProduct<BFloat16>(p, parallel, bad);
  }
}

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels = {VOXAX_TEXT(VOXAX_ISA), ProductOf, WeightProductOf};

}  // namespace voxax::VOXAX_ISA
