// Activations and their derivatives, element by element.
#pragma once

#include "row_blocks.h"
#include "vector_math.h"

namespace voxax::VOXAX_ISA {

// In the order of voxax/nn/functional/pointwise.py.
enum class Act : int64_t { kGelu, kGeluTanh, kSilu, kSigmoid, kTanh, kLeakyRelu, kElu, kSoftplus, kActs };

// The function, and its derivative where `Slope` is set; `p` is the parameter of those that have one.
template <Act A, bool Slope, typename V>
inline V Activated(V x, ScalarOf<V> p) {
  using T = ScalarOf<V>;
  const V one = V{} + T(1);
  if constexpr (A == Act::kGelu) {
    const V share = T(0.5) * Erfc<V>(x * T(-0.70710678118654752440));
    if constexpr (!Slope) return x * share;
    return share + x * (T(0.39894228040143267794) * Exp<V>(x * x * T(-0.5)));
  } else if constexpr (A == Act::kGeluTanh) {
    // tanh of half the argument is 2 * logistic - 1. Far out the factors below would be 0 * infinity.
    const V near = Slope ? (x > T(30) ? V{} + T(30) : (x < T(-30) ? V{} - T(30) : x)) : x;
    const V share = Logistic<V>(T(1.5957691216057307) * (near + T(0.044715) * near * near * near));
    if constexpr (!Slope) return x * share;
    const V inner = T(1.5957691216057307) * (T(1) + T(3 * 0.044715) * near * near);
    return share + near * share * (one - share) * inner;
  } else if constexpr (A == Act::kSilu) {
    const V share = Logistic<V>(x);
    if constexpr (!Slope) return x * share;
    return share * (one + x * (one - share));
  } else if constexpr (A == Act::kSigmoid) {
    const V share = Logistic<V>(x);
    if constexpr (!Slope) return share;
    return share * (one - share);
  } else if constexpr (A == Act::kTanh) {
    const V value = Tanh<V>(x);
    if constexpr (!Slope) return value;
    return one - value * value;
  } else if constexpr (A == Act::kLeakyRelu) {
    const V below = Slope ? V{} + p : x * p;
    return x < T(0) ? below : (Slope ? one : x);
  } else if constexpr (A == Act::kElu) {
    if constexpr (Slope) return x > T(0) ? one : p * Exp<V>(x);
    return x > T(0) ? x : p * ByLane(x, [](T value) { return std::expm1(value); });
  } else {
    if constexpr (Slope) return Logistic<V>(x);
    const V size = x < T(0) ? -x : x;
    const V above = x < T(0) ? V{} : x;
    return above + ByLane(Exp<V>(-size), [](T value) { return std::log1p(value); });
  }
}

// y = f(x), or dy * f'(x) where dy is given.
template <Act A, bool Slope, typename Stored>
void WriteActivated(const Stored* dy, const Stored* x, const bool* valid, int64_t rows,
                    int64_t channels, double parameter, Stored* y, const Parallel& parallel) {
  using T = typename SumOf<Stored>::type;
  const T p = static_cast<T>(parameter);
  const int64_t used = RowsWithValid(valid, rows);
  ForBlocks(parallel, used, channels, [&](int64_t, int64_t begin, int64_t end) {
    const auto full = [&](int64_t first, int64_t after) {
      const int64_t at = first * channels;
      ForChannels<T>((after - first) * channels, [&](auto lanes, int64_t i) {
        using C = Lane<T, lanes.value>;
        typename C::Value value = Activated<A, Slope, typename C::Value>(C::Load(x + at + i), p);
        if constexpr (Slope) value *= C::Load(dy + at + i);
        C::Store(y + at + i, value);
      });
    };
    ForStretches(valid, begin, end, full, [&](int64_t first, int64_t after) {
      std::fill(y + first * channels, y + after * channels, Stored{});
    });
  });
  ClearRows(y, used, rows, channels, parallel);
}

// In: x [N, C], valid [N] or [0], and dy [N, C] for the gradient. Sizes: the function. Numbers: its
// parameter.
template <typename Stored>
const char* RunActivation(const Call& call, const Parallel& parallel) {
  Checked checked(call);
  const int64_t rows = checked.in_axis(0, 0), channels = checked.in_axis(0, 1);
  const Stored* x = checked.In<Stored>(0, {rows, channels});
  const bool* valid = checked.Optional<bool>(1, {rows});
  const bool slope = call.in.size() > 2;
  const Stored* dy = slope ? checked.In<Stored>(2, {rows, channels}) : nullptr;
  Stored* y = checked.Out<Stored>(0, {rows, channels});
  const int64_t which = checked.size(0);
  const double p = checked.number(0);
  if (!checked.good() || which < 0 || which >= static_cast<int64_t>(Act::kActs)) {
    return "x and dy [N, C] of one dtype, valid [N] and a known function";
  }
#define VOXAX_ACT(A)                                                                               \
  case A:                                                                                          \
    slope ? WriteActivated<A, true>(dy, x, valid, rows, channels, p, y, parallel)                  \
          : WriteActivated<A, false>(dy, x, valid, rows, channels, p, y, parallel);                \
    break;
  switch (static_cast<Act>(which)) {
    VOXAX_ACT(Act::kGelu)
    VOXAX_ACT(Act::kGeluTanh)
    VOXAX_ACT(Act::kSilu)
    VOXAX_ACT(Act::kSigmoid)
    VOXAX_ACT(Act::kTanh)
    VOXAX_ACT(Act::kLeakyRelu)
    VOXAX_ACT(Act::kElu)
    VOXAX_ACT(Act::kSoftplus)
    default:
      break;
  }
#undef VOXAX_ACT
  return nullptr;
}

}  // namespace voxax::VOXAX_ISA
