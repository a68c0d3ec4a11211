// Functions of one value or a vector of them. Of float32 they are within a few units in the last place;
// of float64 they are the standard library's.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simd.h"

namespace voxax::VOXAX_ISA {

template <typename V>
struct ElementOfValue {
  using type = std::decay_t<decltype(std::declval<V>()[0])>;
};
template <>
struct ElementOfValue<float> {
  using type = float;
};
template <>
struct ElementOfValue<double> {
  using type = double;
};
template <typename V>
using ScalarOf = typename ElementOfValue<V>::type;

// function(x) for each lane.
template <typename V, typename Function>
inline V ByLane(V x, const Function& function) {
  if constexpr (std::is_arithmetic_v<V>) {
    return function(x);
  } else {
    for (size_t i = 0; i < sizeof(V) / sizeof(x[0]); ++i) x[i] = function(x[i]);
    return x;
  }
}

// 2^whole for whole numbers from -126 to 127 in `magic`, to which 1.5 * 2^23 was added.
template <typename V>
inline V PowerOfTwo(V magic) {
  if constexpr (std::is_arithmetic_v<V>) {
    uint32_t bits;
    std::memcpy(&bits, &magic, sizeof bits);
    bits = (bits + 127) << 23;
    std::memcpy(&magic, &bits, sizeof bits);
    return magic;
  } else {
    typedef uint32_t Bits __attribute__((vector_size(sizeof(V))));
    return (V)(((Bits)magic + 127) << 23);
  }
}

template <typename V>
inline V Exp(V x) {
  using T = ScalarOf<V>;
  if constexpr (std::is_same_v<T, double>) {
    return ByLane(x, [](double value) { return std::exp(value); });
  } else {
    x = x < -104.0f ? V{} - 104.0f : x;
    x = x > 89.0f ? V{} + 89.0f : x;
    constexpr float kMagic = 12582912.0f;  // adding it rounds to a whole number
    const V whole = (x * 1.44269504f + kMagic) - kMagic;
    const V rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    V sum = V{} + 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    // In two steps, each of which has an exponent: the whole has not where the result is tiny.
    const V half = (whole * 0.5f + kMagic);
    return sum * PowerOfTwo<V>(half) * PowerOfTwo<V>(whole - (half - kMagic) + kMagic);
  }
}

// 1 - erf(x), of a small relative error far out too. W. H. Press et al., "Numerical Recipes", 6.2.
template <typename V>
inline V Erfc(V x) {
  using T = ScalarOf<V>;
  if constexpr (std::is_same_v<T, double>) {
    return ByLane(x, [](double value) { return std::erfc(value); });
  } else {
    const V size = x < 0.0f ? -x : x;
    const V t = 1.0f / (1.0f + 0.5f * size);
    V sum = V{} + 0.17087277f;
    sum = sum * t - 0.82215223f;
    sum = sum * t + 1.48851587f;
    sum = sum * t - 1.13520398f;
    sum = sum * t + 0.27886807f;
    sum = sum * t - 0.18628806f;
    sum = sum * t + 0.09678418f;
    sum = sum * t + 0.37409196f;
    sum = sum * t + 1.00002368f;
    sum = sum * t - 1.26551223f;
    const V tail = t * Exp<V>(sum - size * size);
    return x < 0.0f ? 2.0f - tail : tail;
  }
}

template <typename V>
inline V Logistic(V x) {
  using T = ScalarOf<V>;
  return T(1) / (T(1) + Exp<V>(-x));
}

template <typename V>
inline V Tanh(V x) {
  using T = ScalarOf<V>;
  if constexpr (std::is_same_v<T, double>) {
    return ByLane(x, [](double value) { return std::tanh(value); });
  } else {
    // Near zero the difference below would have few digits.
    const V square = x * x;
    V sum = V{} - 5.70498872745e-3f;
    sum = sum * square + 2.06390887954e-2f;
    sum = sum * square - 5.37397155531e-2f;
    sum = sum * square + 1.33314422036e-1f;
    sum = sum * square - 3.33332819422e-1f;
    const V near = sum * square * x + x;
    const V far = 1.0f - 2.0f / (Exp<V>(2.0f * x) + 1.0f);
    return (x < 0.625f) & (x > -0.625f) ? near : far;
  }
}

}  // namespace voxax::VOXAX_ISA
