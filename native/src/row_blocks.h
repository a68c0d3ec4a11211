// What operators on rows share: arrays that are checked while they are read, blocks of rows, and sums.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "buffer.h"
#include "elements.h"
#include "norm.h"
#include "operators.h"

namespace voxax::VOXAX_ISA {

template <typename T>
inline constexpr Kind kKindOf = Kind::kKinds;
template <>
inline constexpr Kind kKindOf<float> = Kind::kFloat32;
template <>
inline constexpr Kind kKindOf<double> = Kind::kFloat64;
template <>
inline constexpr Kind kKindOf<BFloat16> = Kind::kBFloat16;
template <>
inline constexpr Kind kKindOf<Float16> = Kind::kFloat16;
template <>
inline constexpr Kind kKindOf<int32_t> = Kind::kInt32;
template <>
inline constexpr Kind kKindOf<uint32_t> = Kind::kUInt32;
template <>
inline constexpr Kind kKindOf<bool> = Kind::kBool;

// Hands out the arrays of a call, and remembers whether each has the type and shape asked for.
class Checked {
 public:
  explicit Checked(const Call& call) : call_(call) {}

  template <typename T>
  const T* In(size_t place, std::initializer_list<int64_t> shape) {
    return Get<T>(call_.in, place, shape, false);
  }
  // Null where the first axis has length 0 and should not.
  template <typename T>
  const T* Optional(size_t place, std::initializer_list<int64_t> shape) {
    return Get<T>(call_.in, place, shape, true);
  }
  template <typename T>
  T* Out(size_t place, std::initializer_list<int64_t> shape) {
    return Get<T>(call_.out, place, shape, false);
  }
  int64_t size(size_t place) { return Number(call_.sizes, place); }
  double number(size_t place) { return Number(call_.numbers, place); }

  // Length of an axis of an argument, for the shapes of others.
  int64_t in_axis(size_t place, size_t axis) { return Axis(call_.in, place, axis); }
  int64_t out_axis(size_t place, size_t axis) { return Axis(call_.out, place, axis); }

  void Require(bool good) { good_ = good_ && good; }
  bool good() const { return good_; }

 private:
  template <typename T>
  T* Get(const std::vector<Array>& arrays, size_t place, std::initializer_list<int64_t> shape,
         bool optional) {
    if (place >= arrays.size()) {
      good_ = false;
      return nullptr;
    }
    const Array& array = arrays[place];
    const std::vector<int64_t> wanted(shape);
    if (optional && array.shape.size() == wanted.size() && array.shape[0] == 0 && wanted[0] != 0) {
      return nullptr;
    }
    Require(array.kind == kKindOf<T> && array.shape == wanted);
    return static_cast<T*>(array.data);
  }
  template <typename T>
  T Number(const std::vector<T>& values, size_t place) {
    Require(place < values.size());
    return place < values.size() ? values[place] : T{};
  }
  int64_t Axis(const std::vector<Array>& arrays, size_t place, size_t axis) {
    Require(place < arrays.size() && axis < arrays[place].shape.size());
    return good_ ? arrays[place].shape[axis] : 0;
  }

  const Call& call_;
  bool good_ = true;
};

// RUN<Stored>(call, parallel) by the type of the first argument.
#define VOXAX_BY_FEATURES(RUN, call, parallel)                                    \
  if (call.in.empty()) return "features first";                                   \
  switch (call.in[0].kind) {                                                      \
    case Kind::kFloat32:                                                          \
      return RUN<float>(call, parallel);                                          \
    case Kind::kFloat64:                                                          \
      return RUN<double>(call, parallel);                                         \
    case Kind::kBFloat16:                                                         \
      return RUN<BFloat16>(call, parallel);                                       \
    case Kind::kFloat16:                                                          \
      return RUN<Float16>(call, parallel);                                        \
    default:                                                                      \
      return "features of float32, float64, bfloat16 or float16";                 \
  }

inline bool IsValid(const bool* valid, int64_t row) { return valid == nullptr || valid[row]; }

// full(begin, end) for stretches of valid rows and empty(begin, end) for the others.
template <typename Full, typename Empty>
void ForStretches(const bool* valid, int64_t begin, int64_t end, const Full& full, const Empty& empty) {
  while (begin < end) {
    const bool kind = IsValid(valid, begin);
    int64_t after = begin + 1;
    while (after < end && IsValid(valid, after) == kind) ++after;
    kind ? full(begin, after) : empty(begin, after);
    begin = after;
  }
}

// total[c] = the sum of parts [blocks, channels], in order.
template <typename T>
void JoinParts(const T* parts, int64_t blocks, int64_t channels, T* total) {
  std::vector<double> sum(channels);
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t c = 0; c < channels; ++c) sum[c] += parts[b * channels + c];
  }
  for (int64_t c = 0; c < channels; ++c) total[c] = static_cast<T>(sum[c]);
}

// The sum over so many channels of term(lanes, c).
template <typename T, typename Term>
T SumOverChannels(int64_t channels, const Term& term) {
  typename Simd<T>::Vec vectors{};
  T rest{};
  ForChannels<T>(channels, [&](auto lanes, int64_t c) {
    if constexpr (lanes.value == 1) {
      rest += term(lanes, c);
    } else {
      vectors += term(lanes, c);
    }
  });
  for (int i = 0; i < Simd<T>::kLanes; ++i) rest += vectors[i];
  return rest;
}

}  // namespace voxax::VOXAX_ISA
