// Layer normalization and RMS normalization: each row by its own mean and variance.
#pragma once

#include "row_blocks.h"

namespace voxax::VOXAX_ISA {

// Mean and 1 / sqrt(variance + epsilon) of a row; without `centered` the mean is 0.
template <typename T, typename Stored>
void MomentsOfRow(const Stored* x, int64_t channels, bool centered, T epsilon, T* mean, T* inverse) {
  *mean = 0;
  if (centered) {
    *mean = SumOverChannels<T>(channels, [&](auto lanes, int64_t c) {
              return Lane<T, lanes.value>::Load(x + c);
            }) / static_cast<T>(channels);
  }
  const T square = SumOverChannels<T>(channels, [&](auto lanes, int64_t c) {
    const auto off = Lane<T, lanes.value>::Load(x + c) - *mean;
    return off * off;
  });
  *inverse = 1 / std::sqrt(square / static_cast<T>(channels) + epsilon);
}

// In: x [N, C], valid [N], scale and bias [C] or [0]. Out: y. Sizes: centered. Numbers: epsilon.
template <typename Stored>
const char* RunRowNorm(const Call& call, const Parallel& parallel) {
  using T = typename SumOf<Stored>::type;
  Checked checked(call);
  const int64_t rows = checked.in_axis(0, 0), channels = checked.in_axis(0, 1);
  const Stored* x = checked.In<Stored>(0, {rows, channels});
  const bool* valid = checked.Optional<bool>(1, {rows});
  const T *scale = checked.Optional<T>(2, {channels}), *bias = checked.Optional<T>(3, {channels});
  Stored* y = checked.Out<Stored>(0, {rows, channels});
  const bool centered = checked.size(0) != 0;
  const T epsilon = static_cast<T>(checked.number(0));
  if (!checked.good()) return "x [N, C], valid [N], scale and bias [C] in the type of the sums";
  const int64_t used = RowsWithValid(valid, rows);
  ForBlocks(parallel, used, channels, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * channels;
      if (!IsValid(valid, r)) {
        std::fill_n(y + at, channels, Stored{});
        continue;
      }
      T mean, inverse;
      MomentsOfRow(x + at, channels, centered, epsilon, &mean, &inverse);
      ForChannels<T>(channels, [&](auto lanes, int64_t c) {
        using C = Lane<T, lanes.value>;
        typename C::Value value = (C::Load(x + at + c) - mean) * inverse;
        if (scale != nullptr) value *= C::Load(scale + c);
        if (bias != nullptr) value += C::Load(bias + c);
        C::Store(y + at + c, value);
      });
    }
  });
  ClearRows(y, used, rows, channels, parallel);
  return nullptr;
}

// In: dy, x [N, C], valid [N], scale [C] or [0]. Out: dx, dscale [C], dbias [C]. The rest as above.
template <typename Stored>
const char* RunRowNormGradients(const Call& call, const Parallel& parallel) {
  using T = typename SumOf<Stored>::type;
  Checked checked(call);
  const int64_t rows = checked.in_axis(0, 0), channels = checked.in_axis(0, 1);
  const Stored *dy = checked.In<Stored>(0, {rows, channels}), *x = checked.In<Stored>(1, {rows, channels});
  const bool* valid = checked.Optional<bool>(2, {rows});
  const T* scale = checked.Optional<T>(3, {channels});
  Stored* dx = checked.Out<Stored>(0, {rows, channels});
  T *dscale = checked.Out<T>(1, {channels}), *dbias = checked.Out<T>(2, {channels});
  const bool centered = checked.size(0) != 0;
  const T epsilon = static_cast<T>(checked.number(0));
  if (!checked.good()) return "dy and x [N, C], valid [N], scale [C] in the type of the sums";
  const int64_t used = RowsWithValid(valid, rows), blocks = Blocks(used, channels);
  Buffer<T> scales(blocks * channels), biases(blocks * channels);
  ForBlocks(parallel, used, channels, [&](int64_t b, int64_t begin, int64_t end) {
    T *own_scale = scales.get() + b * channels, *own_bias = biases.get() + b * channels;
    std::fill_n(own_scale, channels, T(0));
    std::fill_n(own_bias, channels, T(0));
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * channels;
      if (!IsValid(valid, r)) {
        std::fill_n(dx + at, channels, Stored{});
        continue;
      }
      T mean, inverse;
      MomentsOfRow(x + at, channels, centered, epsilon, &mean, &inverse);
      const auto scaled = [&](auto lanes, int64_t c) {
        using C = Lane<T, lanes.value>;
        typename C::Value value = C::Load(dy + at + c);
        if (scale != nullptr) value *= C::Load(scale + c);
        return value;
      };
      const auto normed = [&](auto lanes, int64_t c) {
        return (Lane<T, lanes.value>::Load(x + at + c) - mean) * inverse;
      };
      const T slope = SumOverChannels<T>(channels, [&](auto lanes, int64_t c) {
                        return scaled(lanes, c) * normed(lanes, c);
                      }) / static_cast<T>(channels);
      T constant = 0;
      if (centered) constant = SumOverChannels<T>(channels, scaled) / static_cast<T>(channels);
      ForChannels<T>(channels, [&](auto lanes, int64_t c) {
        using C = Lane<T, lanes.value>;
        const typename C::Value value = normed(lanes, c), given = C::Load(dy + at + c);
        C::Store(dx + at + c, (scaled(lanes, c) - constant - value * slope) * inverse);
        C::Store(own_scale + c, C::Load(own_scale + c) + given * value);
        C::Store(own_bias + c, C::Load(own_bias + c) + given);
      });
    }
  });
  ClearRows(dx, used, rows, channels, parallel);
  JoinParts(scales.get(), blocks, channels, dscale);
  JoinParts(biases.get(), blocks, channels, dbias);
  return nullptr;
}

}  // namespace voxax::VOXAX_ISA
