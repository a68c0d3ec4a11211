// Selects one of the compiled instruction sets for this processor.
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace voxax {
namespace portable {
extern const Kernels kKernels;
}
#ifdef VOXAX_X86
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
#endif

namespace {

const Kernels* Runnable(const char* name) {
#ifdef VOXAX_X86
  // The builtins ask the operating system too, whether it saves the wide registers.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx512 && (name == nullptr || !std::strcmp(name, "avx512"))) return &avx512::kKernels;
  if (avx2 && (name == nullptr || !std::strcmp(name, "avx2"))) return &avx2::kKernels;
#endif
  if (name == nullptr || !std::strcmp(name, "portable")) return &portable::kKernels;
  return nullptr;
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

const Kernels& BestKernels() {
  const Kernels* kernels = chosen.load();
  if (kernels == nullptr) chosen.store(kernels = Runnable(nullptr));
  return *kernels;
}

}  // namespace voxax

// For tests and reports: the instruction set in use, and another one in its place. Returns 0 where
// this processor or this build does not have it. NULL means the best one again.
extern "C" __attribute__((visibility("default"))) const char* voxax_simd() { return voxax::BestKernels().name; }
extern "C" __attribute__((visibility("default"))) int voxax_use_simd(const char* name) {
  const voxax::Kernels* kernels = voxax::Runnable(name);
  if (kernels == nullptr) return 0;
  voxax::chosen.store(kernels);
  return 1;
}
