// Short vectors of the width that this translation unit is compiled for.
//
// kernels.cc is compiled once for every instruction set (see CMakeLists.txt). VOXAX_ISA names the
// namespace, so that no function of ours of one set can be linked in place of another's.
#pragma once

#include <cstring>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#ifndef VOXAX_ISA
#error "compile with -DVOXAX_ISA=<name>"
#endif

namespace voxax::VOXAX_ISA {

#if defined(__AVX512F__)
inline constexpr int kBytes = 64, kRegisters = 32;
#elif defined(__AVX__)
inline constexpr int kBytes = 32, kRegisters = 16;
#elif defined(__aarch64__)
inline constexpr int kBytes = 16, kRegisters = 32;
#else
inline constexpr int kBytes = 16, kRegisters = 16;
#endif

template <typename T>
struct Simd {
  // GCC's and Clang's vectors: arithmetic is elementwise, a scalar operand is broadcast.
  typedef T Vec __attribute__((vector_size(kBytes)));
  static constexpr int kLanes = kBytes / sizeof(T);

  static Vec Load(const T* from) {
    Vec value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  static void Store(T* to, Vec value) { std::memcpy(to, &value, sizeof value); }
#if defined(__AVX512F__)
  // The first `count` elements of a vector, fewer than it has; the others are 0.
  static Vec LoadFirst(const T* from, int64_t count) {
    if constexpr (sizeof(T) == sizeof(float)) {
      return (Vec)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1 << count) - 1), from);
    } else {
      return (Vec)_mm512_maskz_loadu_pd(static_cast<__mmask8>((1 << count) - 1), from);
    }
  }
  static void StoreFirst(T* to, Vec value, int64_t count) {
    if constexpr (sizeof(T) == sizeof(float)) {
      _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1 << count) - 1), (__m512)value);
    } else {
      _mm512_mask_storeu_pd(to, static_cast<__mmask8>((1 << count) - 1), (__m512d)value);
    }
  }
#endif
  // To memory past the caches, where there is an instruction for it: lines that will be written as a
  // whole are not read first. `to` is a multiple of kBytes; FinishStreams() comes before the
  // results are handed on.
  static void Stream(T* to, Vec value) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)value);
#elif defined(__AVX__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)value);
#else
    Store(to, value);
#endif
  }
};

inline void FinishStreams() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

// Vectors of a panel of columns, at most; and the rows whose sums stay in registers beside them.
// What is left holds the panel's weights and one broadcast value.
inline constexpr int kMostVectors = kRegisters == 32 ? 4 : 2;
constexpr int RowsFor(int vectors) {
  if (kRegisters == 16) return vectors == 2 ? 6 : 12;
  return vectors == 4 ? 6 : vectors == 2 ? 12 : 16;
}

}  // namespace voxax::VOXAX_ISA
