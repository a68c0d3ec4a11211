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

template <typename Stored>
struct SumOf {
  using type = Stored;
};
template <>
struct SumOf<BFloat16> {
  using type = float;
};

inline float Widen(BFloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float wide;
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
inline void Narrow(float value, float* to) { *to = value; }
inline void Narrow(double value, double* to) { *to = value; }

}  // namespace voxax::VOXAX_ISA
