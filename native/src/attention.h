// Attention of rows to those of their patch, head by head.
//
// Keys of a patch are packed with channels apart, so that a vector holds one channel of several keys;
// logits of a few queries are in work at once, and none are kept for the gradients.
#pragma once

#include <limits>
#include <utility>

#include "row_blocks.h"
#include "vector_math.h"

namespace voxax::VOXAX_ISA {

inline constexpr int64_t kQueries = 4;  // at once

struct Patches {
  const int32_t *rows, *place;  // [patches, length], a row or -1; [rows], its slot or -1
  int64_t patches, length, row_count, heads, width;
};

// Keys and values of a head in a patch, each [width, pitch] with keys side by side, zero behind the last.
template <typename Stored, typename T = typename SumOf<Stored>::type>
class Head {
 public:
  Head(const Patches& p, const Stored* packed, int64_t patch, int64_t head)
      : p_(p), packed_(packed), head_(head), slots_(p.length) {
    const int32_t* rows = p.rows + patch * p.length;
    for (int64_t l = 0; l < p.length; ++l) {
      if (rows[l] < 0 || rows[l] >= p.row_count) continue;
      if (p.place[rows[l]] == patch * p.length + l) queries_.push_back(rows[l]);
      slots_[keys_] = static_cast<int32_t>(l);
      rows_.push_back(rows[l]);
      ++keys_;
    }
    constexpr int64_t lanes = Simd<T>::kLanes;
    padded_ = (keys_ + lanes - 1) / lanes * lanes;
    pitch_ = padded_ + lanes;  // lines of several channels would share their place in the cache
    key.Reserve(p.width * pitch_ + 1);
    value.Reserve(p.width * pitch_ + 1);
    for (auto [buffer, part] : {std::make_pair(&key, 1), std::make_pair(&value, 2)}) {
      std::fill_n(buffer->get(), p.width * pitch_, T(0));
      for (int64_t j = 0; j < keys_; ++j) {
        const Stored* from = Row(rows_[j], part);
        for (int64_t d = 0; d < p.width; ++d) (*buffer)[d * pitch_ + j] = Widen(from[d]);
      }
    }
  }

  const Stored* Row(int64_t row, int64_t part) const {
    return packed_ + (row * 3 + part) * p_.heads * p_.width + head_ * p_.width;
  }
  const std::vector<int32_t>& queries() const { return queries_; }
  int64_t keys() const { return keys_; }
  int64_t padded() const { return padded_; }
  int64_t pitch() const { return pitch_; }
  int64_t slot(int64_t key_number) const { return slots_[key_number]; }

  // result[q, j] = the sum over channels of x[q, d] * columns[d, j]; rows of `result` are padded().
  void Multiply(const T* x, int64_t count, const Buffer<T>& columns, T* result) const {
    for (int64_t j = 0; j < padded_; j += Simd<T>::kLanes) {
      typename Simd<T>::Vec sums[kQueries] = {};
      for (int64_t d = 0; d < p_.width; ++d) {
        const auto column = Simd<T>::Load(&columns[d * pitch_ + j]);
        for (int64_t q = 0; q < count; ++q) sums[q] += x[q * p_.width + d] * column;
      }
      for (int64_t q = 0; q < count; ++q) Simd<T>::Store(result + q * padded_ + j, sums[q]);
    }
  }
  // result[q, d] = the sum over keys of x[q, j] * columns[d, j].
  void Reduce(const T* x, int64_t count, const Buffer<T>& columns, T* result) const {
    for (int64_t d = 0; d < p_.width; ++d) {
      typename Simd<T>::Vec sums[kQueries] = {};
      for (int64_t j = 0; j < padded_; j += Simd<T>::kLanes) {
        const auto column = Simd<T>::Load(&columns[d * pitch_ + j]);
        for (int64_t q = 0; q < count; ++q) sums[q] += Simd<T>::Load(x + q * padded_ + j) * column;
      }
      for (int64_t q = 0; q < count; ++q) {
        T sum = 0;
        for (int i = 0; i < Simd<T>::kLanes; ++i) sum += sums[q][i];
        result[q * p_.width + d] = sum;
      }
    }
  }
  // columns[d, j] += the sum over queries of y[q, d] * x[q, j].
  void AddOuter(const T* y, const T* x, int64_t count, Buffer<T>* columns) const {
    for (int64_t d = 0; d < p_.width; ++d) {
      for (int64_t j = 0; j < padded_; j += Simd<T>::kLanes) {
        T* at = &(*columns)[d * pitch_ + j];
        auto sum = Simd<T>::Load(at);
        for (int64_t q = 0; q < count; ++q) sum += y[q * p_.width + d] * Simd<T>::Load(x + q * padded_ + j);
        Simd<T>::Store(at, sum);
      }
    }
  }
  // Weights of the keys, which add up to 1, from scaled queries.
  void Weights(const T* query, int64_t count, T* weights) const {
    Multiply(query, count, key, weights);
    for (int64_t q = 0; q < count; ++q) {
      T* own = weights + q * padded_;
      T largest = own[0];
      for (int64_t j = 1; j < keys_; ++j) largest = own[j] > largest ? own[j] : largest;
      for (int64_t j = keys_; j < padded_; ++j) own[j] = -std::numeric_limits<T>::infinity();
      typename Simd<T>::Vec sums{};
      for (int64_t j = 0; j < padded_; j += Simd<T>::kLanes) {
        const auto value = Exp<typename Simd<T>::Vec>(Simd<T>::Load(own + j) - largest);
        Simd<T>::Store(own + j, value);
      }
      for (int64_t j = keys_; j < padded_; ++j) own[j] = 0;
      for (int64_t j = 0; j < padded_; j += Simd<T>::kLanes) sums += Simd<T>::Load(own + j);
      T sum = 0;
      for (int i = 0; i < Simd<T>::kLanes; ++i) sum += sums[i];
      for (int64_t j = 0; j < padded_; j += Simd<T>::kLanes) {
        Simd<T>::Store(own + j, Simd<T>::Load(own + j) / sum);
      }
    }
  }
  // Scaled queries from number `first` on, [count, width]; returns count.
  int64_t ReadQueries(int64_t first, T scale, T* query) const {
    const int64_t count = std::min<int64_t>(kQueries, queries_.size() - first);
    for (int64_t q = 0; q < count; ++q) {
      const Stored* from = Row(queries_[first + q], 0);
      for (int64_t d = 0; d < p_.width; ++d) query[q * p_.width + d] = Widen(from[d]) * scale;
    }
    return count;
  }

  Buffer<T> key, value;

 private:
  const Patches& p_;
  const Stored* packed_;
  int64_t head_, keys_ = 0, padded_ = 0, pitch_ = 0;
  std::vector<int32_t> queries_, rows_, slots_;
};

// The arguments that both directions begin with: packed [N, 3 C], rows [P, L], place [N]. Sizes: heads.
template <typename Stored>
const Stored* ReadPatches(Checked& checked, size_t first, Patches* p) {
  p->row_count = checked.in_axis(first, 0);
  p->heads = checked.size(0);
  checked.Require(p->heads > 0);
  const int64_t channels = checked.in_axis(first, 1);
  checked.Require(channels % (3 * std::max<int64_t>(p->heads, 1)) == 0);
  if (!checked.good()) return nullptr;
  p->width = channels / 3 / p->heads;
  p->patches = checked.in_axis(first + 1, 0);
  p->length = checked.in_axis(first + 1, 1);
  const Stored* packed = checked.In<Stored>(first, {p->row_count, channels});
  p->rows = checked.In<int32_t>(first + 1, {p->patches, p->length});
  p->place = checked.In<int32_t>(first + 2, {p->row_count});
  return packed;
}

// In: as above. Numbers: the scale of logits. Out: y [N, C], zero in rows without a place.
template <typename Stored>
const char* RunAttention(const Call& call, const Parallel& parallel) {
  using T = typename SumOf<Stored>::type;
  Checked checked(call);
  Patches p{};
  const Stored* packed = ReadPatches<Stored>(checked, 0, &p);
  const int64_t channels = p.heads * p.width;
  Stored* y = packed == nullptr ? nullptr : checked.Out<Stored>(0, {p.row_count, channels});
  const T scale = static_cast<T>(checked.number(0));
  if (!checked.good()) return "packed [N, 3 C], rows [P, L], place [N], heads that divide C";
  ForBlocks(parallel, p.row_count, channels, [&](int64_t, int64_t begin, int64_t end) {
    std::fill(y + begin * channels, y + end * channels, Stored{});
  });
  parallel.Run(p.patches * p.heads, [&](int64_t unit) {
    const int64_t number = unit % p.heads;
    const Head<Stored> head(p, packed, unit / p.heads, number);
    Buffer<T> query(kQueries * p.width + 1), weights(kQueries * head.padded() + 1), sums(kQueries * p.width + 1);
    const auto& rows = head.queries();
    for (int64_t first = 0; first < static_cast<int64_t>(rows.size()); first += kQueries) {
      const int64_t count = head.ReadQueries(first, scale, query.get());
      head.Weights(query.get(), count, weights.get());
      head.Reduce(weights.get(), count, head.value, sums.get());
      for (int64_t q = 0; q < count; ++q) {
        Stored* to = y + rows[first + q] * channels + number * p.width;
        for (int64_t d = 0; d < p.width; ++d) Narrow(sums[q * p.width + d], to + d);
      }
    }
  });
  return nullptr;
}

// In: dy [N, C], then as above. Out: dpacked [N, 3 C].
template <typename Stored>
const char* RunAttentionGradients(const Call& call, const Parallel& parallel) {
  using T = typename SumOf<Stored>::type;
  Checked checked(call);
  Patches p{};
  const Stored* packed = ReadPatches<Stored>(checked, 1, &p);
  const int64_t channels = p.heads * p.width;
  const Stored* dy = packed == nullptr ? nullptr : checked.In<Stored>(0, {p.row_count, channels});
  Stored* dpacked = packed == nullptr ? nullptr : checked.Out<Stored>(0, {p.row_count, 3 * channels});
  const T scale = static_cast<T>(checked.number(0));
  if (!checked.good()) return "dy [N, C], packed [N, 3 C], rows [P, L], place [N], heads that divide C";
  // A row may be a key in several patches: the gradients of each slot come first, then their sums.
  const int64_t slots = p.patches * p.length;
  Buffer<T> parts(slots * 2 * channels + 1);
  ForBlocks(parallel, p.row_count, 3 * channels, [&](int64_t, int64_t begin, int64_t end) {
    std::fill(dpacked + begin * 3 * channels, dpacked + end * 3 * channels, Stored{});
  });
  parallel.Run(p.patches * p.heads, [&](int64_t unit) {
    const int64_t patch = unit / p.heads, number = unit % p.heads;
    const Head<Stored> head(p, packed, patch, number);
    const int64_t block = kQueries * head.padded() + 1, narrow = kQueries * p.width + 1;
    Buffer<T> query(narrow), dout(narrow), dquery(narrow), weights(block), dweights(block);
    Buffer<T> dkey(p.width * head.pitch() + 1), dvalue(p.width * head.pitch() + 1);
    std::fill_n(dkey.get(), p.width * head.pitch(), T(0));
    std::fill_n(dvalue.get(), p.width * head.pitch(), T(0));
    const auto& rows = head.queries();
    for (int64_t first = 0; first < static_cast<int64_t>(rows.size()); first += kQueries) {
      const int64_t count = head.ReadQueries(first, scale, query.get());
      for (int64_t q = 0; q < count; ++q) {
        const Stored* from = dy + rows[first + q] * channels + number * p.width;
        for (int64_t d = 0; d < p.width; ++d) dout[q * p.width + d] = Widen(from[d]);
      }
      head.Weights(query.get(), count, weights.get());
      head.Multiply(dout.get(), count, head.value, dweights.get());
      head.AddOuter(dout.get(), weights.get(), count, &dvalue);
      for (int64_t q = 0; q < count; ++q) {
        const T* weight = weights.get() + q * head.padded();
        T* slope = dweights.get() + q * head.padded();
        const T mean = SumOverChannels<T>(head.padded(), [&](auto lanes, int64_t j) {
          using C = Lane<T, lanes.value>;
          return C::Load(weight + j) * C::Load(slope + j);
        });
        ForChannels<T>(head.padded(), [&](auto lanes, int64_t j) {
          using C = Lane<T, lanes.value>;
          C::Store(slope + j, C::Load(weight + j) * (C::Load(slope + j) - mean));
        });
      }
      head.AddOuter(query.get(), dweights.get(), count, &dkey);
      head.Reduce(dweights.get(), count, head.key, dquery.get());
      for (int64_t q = 0; q < count; ++q) {
        Stored* to = dpacked + rows[first + q] * (3 * channels) + number * p.width;
        for (int64_t d = 0; d < p.width; ++d) Narrow(dquery[q * p.width + d] * scale, to + d);
      }
    }
    for (int64_t j = 0; j < head.keys(); ++j) {
      T* to = parts.get() + (patch * p.length + head.slot(j)) * 2 * channels + number * p.width;
      for (int64_t d = 0; d < p.width; ++d) {
        to[d] = dkey[d * head.pitch() + j];
        to[channels + d] = dvalue[d * head.pitch() + j];
      }
    }
  });
  std::vector<int64_t> starts(p.row_count + 1);
  const auto known = [&](int64_t slot) { return p.rows[slot] >= 0 && p.rows[slot] < p.row_count; };
  for (int64_t i = 0; i < slots; ++i) {
    if (known(i)) ++starts[p.rows[i] + 1];
  }
  for (int64_t r = 0; r < p.row_count; ++r) starts[r + 1] += starts[r];
  std::vector<int64_t> next(starts.begin(), starts.end()), order(starts[p.row_count]);
  for (int64_t i = 0; i < slots; ++i) {
    if (known(i)) order[next[p.rows[i]]++] = i;
  }
  ForBlocks(parallel, p.row_count, 3 * channels, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      ForChannels<T>(2 * channels, [&](auto lanes, int64_t c) {
        using C = Lane<T, lanes.value>;
        typename C::Value sum{};
        for (int64_t i = starts[r]; i < starts[r + 1]; ++i) sum += C::Load(&parts[order[i] * 2 * channels + c]);
        C::Store(dpacked + r * 3 * channels + channels + c, sum);
      });
    }
  });
  return nullptr;
}

}  // namespace voxax::VOXAX_ISA
