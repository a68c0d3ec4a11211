// Selects one of the compiled instruction sets for this processor.
#include <cstdlib>
#include <cstring>
#ifdef VOXAX_X86
#include <cpuid.h>
#endif

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

#ifdef VOXAX_X86
struct Widths {
  bool avx2 = false, avx512 = false;
};

// Asks the processor itself: the compilers' builtin for this answers "no" where the compiler's own
// run-time library does not fill in its table, as in programs that zig links.
Widths AskProcessor() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_FMA)) return {};
  unsigned low, high;  // which registers the operating system saves
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return {};
  constexpr unsigned kAvx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  Widths found;
  found.avx2 = (b & bit_AVX2) != 0;
  found.avx512 = found.avx2 && (low & 0xe0) == 0xe0 && (b & kAvx512) == kAvx512;
  return found;
}
#endif

const Kernels* Runnable(const char* name) {
#ifdef VOXAX_X86
  static const Widths widths = AskProcessor();
  if (widths.avx512 && (name == nullptr || !std::strcmp(name, "avx512"))) return &avx512::kKernels;
  if (widths.avx2 && (name == nullptr || !std::strcmp(name, "avx2"))) return &avx2::kKernels;
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
