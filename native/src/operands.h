// Locates the features and the gradients of pairs for wgrad.
#pragma once

#include <algorithm>
#include <type_traits>

#include "elements.h"
#include "tile.h"

namespace voxax::VOXAX_ISA {

// The addresses of a pair's values.
template <typename T>
struct Operands {
  const T* x;
  const T* dy;
};

template <typename Stored, typename T>
inline void Copy(const Stored* from, int64_t count, T* to) {
  int64_t i = 0;
  if constexpr (std::is_same_v<Stored, T>) {
    for (; i + Simd<T>::kLanes <= count; i += Simd<T>::kLanes) {
      Simd<T>::Store(to + i, Simd<T>::Load(from + i));
    }
  }
  for (; i < count; ++i) to[i] = Widen(from[i]);
}

// About so many pairs are worked on at a time, and so many channels: their features and one panel of
// gradients stay in the first-level cache.
inline constexpr int64_t kPairs = 64, kMostPairs = 96, kChannels = 64;

// Rows that are further apart are copied side by side: where that is a large power of two, all
// would fall into the same few sets of the first-level cache. So that copies do not, a row of them
// has a cache line that is not used.
inline constexpr int64_t kFarBytes = 256, kLineBytes = 64;

// The columns of one unit of work, of which the last panel may have unused lanes.
struct Columns {
  int64_t begin, width, padded;
};

// Finds the values of pairs: in place where that works well, else in copies.
template <typename Stored, typename T>
class Gathered {
 public:
  static constexpr int64_t kGap = kLineBytes / sizeof(T);

  Gathered(int64_t x_stride, int64_t dy_stride, int64_t most_columns)
      : x_stride_(x_stride),
        dy_stride_(dy_stride),
        x_in_place_(Near(x_stride)),
        dy_in_place_(Near(dy_stride)) {
    if (!x_in_place_) x_.Reserve(kMostPairs * (kChannels + kGap));
    dy_.Reserve(kMostPairs * (most_columns + kGap));
  }

  // `x` and `dy` point at the first row's group.
  void ReadGradients(const Stored* dy, Pairs pairs, int64_t count, const Columns& columns) {
    if constexpr (std::is_same_v<Stored, T>) {
      if (dy_in_place_ && columns.width == columns.padded) {
        for (int64_t i = 0; i < count; ++i) {
          operands_[i].dy = dy + pairs.row[i] * dy_stride_ + columns.begin;
        }
        return;
      }
    }
    T* to = dy_.get();
    for (int64_t i = 0; i < count; ++i, to += columns.padded + kGap) {
      Copy(dy + pairs.row[i] * dy_stride_ + columns.begin, columns.width, to);
      std::fill(to + columns.width, to + columns.padded, T(0));
      operands_[i].dy = to;
    }
  }

  void ReadFeatures(const Stored* x, Pairs pairs, int64_t count, int64_t channels) {
    if constexpr (std::is_same_v<Stored, T>) {
      if (x_in_place_) {
        for (int64_t i = 0; i < count; ++i) operands_[i].x = x + pairs.in[i] * x_stride_;
        return;
      }
    }
    T* to = x_.get();
    for (int64_t i = 0; i < count; ++i, to += channels + kGap) {
      Copy(x + pairs.in[i] * x_stride_, channels, to);
      operands_[i].x = to;
    }
  }

  const Operands<T>* operands() const { return operands_; }

 private:
  static bool Near(int64_t stride) {
    return std::is_same_v<Stored, T> && stride * static_cast<int64_t>(sizeof(T)) <= kFarBytes;
  }

  int64_t x_stride_, dy_stride_;
  bool x_in_place_, dy_in_place_;
  Buffer<T> x_, dy_;
  Operands<T> operands_[kMostPairs];
};

// Fetches rows that are needed next while others are multiplied, a few cache lines at a time.
class Ahead {
 public:
  // Rows of `bytes`, `stride` bytes apart.
  Ahead(const void* base, const int32_t* rows, int64_t count, int64_t stride, int64_t bytes)
      : base_(static_cast<const char*>(base)),
        row_(rows),
        end_(rows + count),
        stride_(stride),
        bytes_(bytes) {}

  void Fetch(int lines) {
    for (; lines > 0 && row_ != end_; --lines) {
      __builtin_prefetch(base_ + *row_ * stride_ + at_, 0, 2);
      at_ += kLineBytes;
      if (at_ < bytes_) continue;
      at_ = 0;
      ++row_;
    }
  }

 private:
  const char* base_;
  const int32_t *row_, *end_;
  int64_t stride_, bytes_, at_ = 0;
};

}  // namespace voxax::VOXAX_ISA
