// Batch normalization with what follows it: an added residual and max(., 0).
//
// Rows that are not valid are read by nothing and written as zeros. Sums run over blocks of rows whose
// length depends on the channels alone, and blocks are added in order, in float64: results have the same
// bits for any number of threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "elements.h"
#include "kernels.h"
#include "padding.h"

namespace voxax::VOXAX_ISA {

// Rows of a block: of about 64 KiB in float32, which a second reading finds in the cache.
inline int64_t NormBlock(int64_t channels) {
  return std::clamp<int64_t>(16384 / std::max<int64_t>(channels, 1), 16, 1024);
}

inline int64_t Blocks(int64_t rows, int64_t channels) {
  const int64_t length = NormBlock(channels);
  return (rows + length - 1) / length;
}

// block(number, begin, end) for blocks of rows.
template <typename Block>
void ForBlocks(const Parallel& parallel, int64_t rows, int64_t channels, const Block& block) {
  const int64_t length = NormBlock(channels);
  parallel.Run(Blocks(rows, channels), [&](int64_t b) {
    block(b, b * length, std::min(rows, (b + 1) * length));
  });
}

// Calls step(lanes, c) for all channels: vectors first, then one by one. `lanes` is a constant.
template <typename T, typename Step>
inline void ForChannels(int64_t channels, const Step& step) {
  constexpr int lanes = Simd<T>::kLanes;
  int64_t c = 0;
  for (; c + lanes <= channels; c += lanes) step(std::integral_constant<int, lanes>(), c);
  for (; c < channels; ++c) step(std::integral_constant<int, 1>(), c);
}

// Calls step(lanes, width, c) for all channels, `width` vectors of `lanes` at a time: their sums are chains of
// operations that wait for each other, and several run side by side.
template <typename T, typename Step>
inline void ForChannelGroups(int64_t channels, const Step& step) {
  constexpr int lanes = Simd<T>::kLanes, many = 4 * lanes;
  int64_t c = 0;
  for (; c + many <= channels; c += many) {
    step(std::integral_constant<int, lanes>(), std::integral_constant<int, 4>(), c);
  }
  for (; c + 2 * lanes <= channels; c += 2 * lanes) {
    step(std::integral_constant<int, lanes>(), std::integral_constant<int, 2>(), c);
  }
  for (; c + lanes <= channels; c += lanes) {
    step(std::integral_constant<int, lanes>(), std::integral_constant<int, 1>(), c);
  }
  for (; c < channels; ++c) step(std::integral_constant<int, 1>(), std::integral_constant<int, 1>(), c);
}

// One channel, or a vector of them, in the type of the sums.
template <typename T, int Lanes>
struct Lane {
  using Value = std::conditional_t<Lanes == 1, T, typename Simd<T>::Vec>;

  template <typename Stored>
  static Value Load(const Stored* from) {
    if constexpr (Lanes == 1) {
      return Widen(*from);
    } else {
      return LoadWide<Stored, T>(from);
    }
  }
  template <typename Stored>
  static void Store(Stored* to, Value value) {
    if constexpr (Lanes == 1) {
      Narrow(value, to);
    } else if constexpr (std::is_same_v<Stored, T>) {
      Simd<T>::Store(to, value);
    } else {
      for (int i = 0; i < Lanes; ++i) Narrow(value[i], to + i);
    }
  }
};

// value > 0 ? value : 0, but a NaN stays.
template <typename Value>
inline Value Rectified(Value value) {
  return value < 0 ? Value{} : value;
}

// The normalization's gradient by its result `y`, after which max(., 0) may come.
template <bool Relu, typename C, typename Stored>
inline typename C::Value Passed(const Stored* dy, const Stored* y, int64_t at) {
  typename C::Value value = C::Load(dy + at);
  if constexpr (Relu) value = C::Load(y + at) > 0 ? value : typename C::Value{};
  return value;
}

// Number of valid rows in [begin, end), whose places go to `rows`.
inline int64_t ListValid(const bool* valid, int64_t begin, int64_t end, int64_t* rows) {
  int64_t count = 0;
  for (int64_t r = begin; r < end; ++r) {
    if (valid[r]) rows[count++] = r;
  }
  return count;
}

// Mean and variance of each channel over the valid rows, block by block; blocks are joined as by Chan,
// Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
// Returns the number of valid rows; without any, both are 0.
template <typename Stored, typename T>
int64_t Moments(const BatchNorm& p, const Parallel& parallel, T* mean, T* variance) {
  const Stored* x = static_cast<const Stored*>(p.x);
  const int64_t blocks = Blocks(p.rows, p.channels);
  Buffer<T> means(blocks * p.channels), squares(blocks * p.channels);
  std::vector<int64_t> counts(blocks);
  ForBlocks(parallel, p.rows, p.channels, [&](int64_t b, int64_t begin, int64_t end) {
    int64_t rows[1024];
    const int64_t count = ListValid(p.valid, begin, end, rows);
    counts[b] = count;
    if (count == 0) return;
    ForChannelGroups<T>(p.channels, [&](auto lanes, auto width, int64_t c) {
      using C = Lane<T, lanes.value>;
      typename C::Value middle[width.value]{}, square[width.value]{};
      for (int64_t i = 0; i < count; ++i) {
        const Stored* row = x + rows[i] * p.channels + c;
        for (int w = 0; w < width.value; ++w) middle[w] += C::Load(row + w * lanes.value);
      }
      for (int w = 0; w < width.value; ++w) middle[w] /= static_cast<T>(count);
      for (int64_t i = 0; i < count; ++i) {
        const Stored* row = x + rows[i] * p.channels + c;
        for (int w = 0; w < width.value; ++w) {
          const typename C::Value off = C::Load(row + w * lanes.value) - middle[w];
          square[w] += off * off;
        }
      }
      for (int w = 0; w < width.value; ++w) {
        C::Store(&means[b * p.channels + c + w * lanes.value], middle[w]);
        C::Store(&squares[b * p.channels + c + w * lanes.value], square[w]);
      }
    });
  });
  std::vector<double> middle(p.channels), square(p.channels);
  int64_t total = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    if (counts[b] == 0) continue;
    const double share = static_cast<double>(counts[b]) / (total + counts[b]);
    for (int64_t c = 0; c < p.channels; ++c) {
      const double off = means[b * p.channels + c] - middle[c];
      square[c] += squares[b * p.channels + c] + off * off * share * total;
      middle[c] += off * share;
    }
    total += counts[b];
  }
  for (int64_t c = 0; c < p.channels; ++c) {
    mean[c] = static_cast<T>(middle[c]);
    variance[c] = static_cast<T>(square[c] / std::max<int64_t>(total, 1));
  }
  return total;
}

// y = (x - mean) * factor + bias, with what follows.
template <bool Relu, typename Stored, typename T>
void WriteNormalized(const BatchNorm& p, const Parallel& parallel, const T* mean, const T* factor) {
  const Stored* x = static_cast<const Stored*>(p.x);
  const Stored* residual = static_cast<const Stored*>(p.residual);
  const T* bias = static_cast<const T*>(p.bias);
  Stored* y = static_cast<Stored*>(p.y);
  ForBlocks(parallel, p.rows, p.channels, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * p.channels;
      if (!p.valid[r]) {
        std::fill_n(y + at, p.channels, Stored{});
        continue;
      }
      ForChannels<T>(p.channels, [&](auto lanes, int64_t c) {
        using C = Lane<T, lanes.value>;
        typename C::Value value =
            (C::Load(x + at + c) - C::Load(mean + c)) * C::Load(factor + c) + C::Load(bias + c);
        if (residual != nullptr) value += C::Load(residual + at + c);
        if constexpr (Relu) value = Rectified(value);
        C::Store(y + at + c, value);
      });
    }
  });
}

template <typename Stored>
void RunBatchNorm(const BatchNorm& given, const Parallel& parallel, BadRow*) {
  BatchNorm p = given;
  p.rows = RowsWithValid(p.valid, p.rows);
  using T = typename SumOf<Stored>::type;
  T *mean = static_cast<T*>(p.mean), *inverse = static_cast<T*>(p.inverse);
  std::vector<T> factor(p.channels);
  if (p.training) {
    std::vector<T> variance(p.channels);
    const int64_t count = Moments<Stored, T>(p, parallel, mean, variance.data());
    const T kept = static_cast<T>(count > 0 ? p.momentum : 1.0);
    for (int64_t c = 0; c < p.channels; ++c) {
      inverse[c] = 1 / std::sqrt(variance[c] + static_cast<T>(p.epsilon));
      static_cast<T*>(p.new_mean)[c] =
          kept * static_cast<const T*>(p.old_mean)[c] + (1 - kept) * mean[c];
      static_cast<T*>(p.new_variance)[c] =
          kept * static_cast<const T*>(p.old_variance)[c] + (1 - kept) * variance[c];
    }
  } else {
    for (int64_t c = 0; c < p.channels; ++c) {
      mean[c] = static_cast<const T*>(p.old_mean)[c];
      const T variance = static_cast<const T*>(p.old_variance)[c];
      inverse[c] = 1 / std::sqrt(variance + static_cast<T>(p.epsilon));
      static_cast<T*>(p.new_mean)[c] = mean[c];
      static_cast<T*>(p.new_variance)[c] = variance;
    }
  }
  if (p.y == nullptr) return;  // the averages alone
  for (int64_t c = 0; c < p.channels; ++c) {
    factor[c] = inverse[c] * static_cast<const T*>(p.scale)[c];
  }
  (p.relu ? WriteNormalized<true, Stored, T>
          : WriteNormalized<false, Stored, T>)(p, parallel, mean, factor.data());
  ClearRows(static_cast<Stored*>(p.y), p.rows, given.rows, p.channels, parallel);
}

// dscale = sum of dz * (x - mean) * inverse, dbias = sum of dz; dz is dy where y > 0, or all of it.
// Returns the number of valid rows.
template <bool Relu, typename Stored, typename T>
int64_t SumGradients(const BatchNormGradients& p, const Parallel& parallel) {
  const Stored *dy = static_cast<const Stored*>(p.dy), *y = static_cast<const Stored*>(p.y);
  const Stored* x = static_cast<const Stored*>(p.x);
  const T *mean = static_cast<const T*>(p.mean), *inverse = static_cast<const T*>(p.inverse);
  const int64_t blocks = Blocks(p.rows, p.channels);
  Buffer<T> scales(blocks * p.channels), biases(blocks * p.channels);
  std::vector<int64_t> counts(blocks);
  ForBlocks(parallel, p.rows, p.channels, [&](int64_t b, int64_t begin, int64_t end) {
    int64_t rows[1024];
    const int64_t count = ListValid(p.valid, begin, end, rows);
    counts[b] = count;
    if (count == 0) return;
    ForChannelGroups<T>(p.channels, [&](auto lanes, auto width, int64_t c) {
      using C = Lane<T, lanes.value>;
      typename C::Value scale[width.value]{}, bias[width.value]{};
      for (int64_t i = 0; i < count; ++i) {
        for (int w = 0; w < width.value; ++w) {
          const int64_t k = c + w * lanes.value, at = rows[i] * p.channels + k;
          const typename C::Value value = Passed<Relu, C>(dy, y, at);
          scale[w] += value * (C::Load(x + at) - C::Load(mean + k));
          bias[w] += value;
        }
      }
      for (int w = 0; w < width.value; ++w) {
        const int64_t k = c + w * lanes.value;
        C::Store(&scales[b * p.channels + k], scale[w] * C::Load(inverse + k));
        C::Store(&biases[b * p.channels + k], bias[w]);
      }
    });
  });
  std::vector<double> scale(p.channels), bias(p.channels);
  int64_t total = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    if (counts[b] == 0) continue;
    total += counts[b];
    for (int64_t c = 0; c < p.channels; ++c) {
      scale[c] += scales[b * p.channels + c];
      bias[c] += biases[b * p.channels + c];
    }
  }
  for (int64_t c = 0; c < p.channels; ++c) {
    static_cast<T*>(p.dscale)[c] = static_cast<T>(scale[c]);
    static_cast<T*>(p.dbias)[c] = static_cast<T>(bias[c]);
  }
  return total;
}

template <bool Relu, typename Stored>
void WriteGradients(const BatchNormGradients& p, const Parallel& parallel) {
  using T = typename SumOf<Stored>::type;
  const int64_t total = SumGradients<Relu, Stored, T>(p, parallel);
  const Stored *dy = static_cast<const Stored*>(p.dy), *y = static_cast<const Stored*>(p.y);
  const Stored* x = static_cast<const Stored*>(p.x);
  const T *mean = static_cast<const T*>(p.mean), *inverse = static_cast<const T*>(p.inverse);
  const T *dscale = static_cast<const T*>(p.dscale), *dbias = static_cast<const T*>(p.dbias);
  Stored *dx = static_cast<Stored*>(p.dx), *dresidual = static_cast<Stored*>(p.dresidual);
  // dx = factor * (dz - means), of which the second come through mean and variance.
  std::vector<T> factor(p.channels), slope(p.channels), constant(p.channels);
  for (int64_t c = 0; c < p.channels; ++c) {
    factor[c] = inverse[c] * static_cast<const T*>(p.scale)[c];
    if (!p.training || total == 0) continue;
    slope[c] = dscale[c] / static_cast<T>(total) * inverse[c];
    constant[c] = dbias[c] / static_cast<T>(total);
  }
  ForBlocks(parallel, p.rows, p.channels, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * p.channels;
      if (!p.valid[r]) {
        std::fill_n(dx + at, p.channels, Stored{});
        if (dresidual != nullptr) std::fill_n(dresidual + at, p.channels, Stored{});
        continue;
      }
      ForChannels<T>(p.channels, [&](auto lanes, int64_t c) {
        using C = Lane<T, lanes.value>;
        const typename C::Value value = Passed<Relu, C>(dy, y, at + c);
        if (dresidual != nullptr) C::Store(dresidual + at + c, value);
        typename C::Value rest = value;
        if (p.training) {
          const typename C::Value off = C::Load(x + at + c) - C::Load(mean + c);
          rest = value - C::Load(&constant[c]) - off * C::Load(&slope[c]);
        }
        C::Store(dx + at + c, rest * C::Load(&factor[c]));
      });
    }
  });
}

template <typename Stored>
void RunBatchNormGradients(const BatchNormGradients& given, const Parallel& parallel, BadRow*) {
  BatchNormGradients p = given;
  p.rows = RowsWithValid(p.valid, p.rows);
  (p.relu ? WriteGradients<true, Stored> : WriteGradients<false, Stored>)(p, parallel);
  for (void* rows : {p.dx, p.dresidual}) {
    if (rows == nullptr) continue;
    ClearRows(static_cast<Stored*>(rows), p.rows, given.rows, p.channels, parallel);
  }
}

}  // namespace voxax::VOXAX_ISA
