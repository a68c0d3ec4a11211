// Elements as they are stored, and the type that sums are kept in.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simd.h"

namespace voxax::VOXAX_ISA {

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

template <typename Stored>
struct SumOf {
  using type = Stored;
};
template <>
struct SumOf<BFloat16> {
  using type = float;
};
template <>
struct SumOf<Float16> {
  using type = float;
};

inline float Widen(BFloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}
inline float Widen(Float16 value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16, size = value.bits & 0x7fffu;
  float wide;
  if (size < 0x400u) {  // no leading 1
    wide = static_cast<float>(size) * 0x1p-24f;
    return sign != 0 ? -wide : wide;
  }
  const uint32_t bits = sign | (size >= 0x7c00u ? 0x7f800000u | size << 13 : (size << 13) + 0x38000000u);
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}
inline float Widen(float value) { return value; }
inline double Widen(double value) { return value; }

// The values from `from` on, in the type of the sums.
template <typename Stored, typename T>
inline typename Simd<T>::Vec LoadWide(const Stored* from) {
  if constexpr (std::is_same_v<Stored, T>) {
    return Simd<T>::Load(from);
  } else {
    T wide[Simd<T>::kLanes];
    for (int i = 0; i < Simd<T>::kLanes; ++i) wide[i] = Widen(from[i]);
    return Simd<T>::Load(wide);
  }
}

inline void Narrow(float value, BFloat16* to) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  // To nearest, ties to even; a NaN keeps a set bit whatever is cut off.
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  to->bits = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40u : rounded >> 16);
}
inline void Narrow(float value, Float16* to) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) {
    to->bits = static_cast<uint16_t>(sign | 0x7e00u);
  } else if (size >= 0x47800000u) {  // 65536 and more
    to->bits = static_cast<uint16_t>(sign | 0x7c00u);
  } else if (size < 0x38800000u) {
    // Less than the smallest normal number: the sum's last bit is the result's.
    float sum;
    std::memcpy(&sum, &size, sizeof sum);
    sum += 0.5f;
    uint32_t rounded;
    std::memcpy(&rounded, &sum, sizeof rounded);
    to->bits = static_cast<uint16_t>(sign | (rounded - 0x3f000000u));
  } else {
    const uint32_t rounded = size - 0x38000000u + 0xfffu + (size >> 13 & 1u);
    to->bits = static_cast<uint16_t>(sign | rounded >> 13);
  }
}
inline void Narrow(float value, float* to) { *to = value; }
inline void Narrow(double value, double* to) { *to = value; }

}  // namespace voxax::VOXAX_ISA
