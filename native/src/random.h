// The random numbers of jax.random, and dropout by them.
#pragma once

#include <memory>

#include "row_blocks.h"

namespace voxax::VOXAX_ISA {

// Threefry with two words of 32 bits and 20 rounds: Salmon et al., "Parallel Random Numbers: As Easy as
// 1, 2, 3", SC 2011.
// `Word` is one of 32 bits, or a vector of them.
template <typename Word>
inline void Threefry(uint32_t key0, uint32_t key1, Word* x0, Word* x1) {
  constexpr int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t keys[3] = {key0, key1, key0 ^ key1 ^ 0x1bd11bdau};
  Word a = *x0 + keys[0], b = *x1 + keys[1];
  for (uint32_t round = 0; round < 5; ++round) {
    for (int rotation : rotations[round % 2]) {
      a += b;
      b = (b << rotation | b >> (32 - rotation)) ^ a;
    }
    a += keys[(round + 1) % 3];
    b += keys[(round + 2) % 3] + round + 1;
  }
  *x0 = a;
  *x1 = b;
}

// In: key [2], number []. Out: key [2], as jax.random.fold_in.
inline const char* RunFoldIn(const Call& call, const Parallel&) {
  Checked checked(call);
  const uint32_t *key = checked.In<uint32_t>(0, {2}), *number = checked.In<uint32_t>(1, {});
  uint32_t* folded = checked.Out<uint32_t>(0, {2});
  if (!checked.good()) return "a key of two words and a number of 32 bits";
  uint32_t high = 0, low = *number;
  Threefry(key[0], key[1], &high, &low);
  folded[0] = high;
  folded[1] = low;
  return nullptr;
}

// In: key [2]. Out: a permutation [n], as jax.random.permutation(key, n); n is at most 1000.
inline const char* RunPermutation(const Call& call, const Parallel&) {
  Checked checked(call);
  const int64_t count = checked.out_axis(0, 0);
  const uint32_t* key = checked.In<uint32_t>(0, {2});
  int32_t* order = checked.Out<int32_t>(0, {count});
  // More are sorted by a second list of random numbers, since two of the first may be equal.
  if (!checked.good() || count > 1000) return "a key of two words, and at most 1000 places";
  uint32_t high = 0, low = 1;  // the second of the two keys that JAX splits it into
  Threefry(key[0], key[1], &high, &low);
  std::vector<uint32_t> drawn(count);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t first = 0, second = static_cast<uint32_t>(i);
    Threefry(high, low, &first, &second);
    drawn[i] = first ^ second;
    order[i] = static_cast<int32_t>(i);
  }
  std::stable_sort(order, order + count, [&](int32_t a, int32_t b) { return drawn[a] < drawn[b]; });
  return nullptr;
}

// For so many places from `first` on, whether jax.random.bernoulli(key, probability) keeps the number.
inline void ListKept(const uint32_t* key, int64_t first, int64_t count, float probability, bool* kept) {
  typedef uint32_t Words __attribute__((vector_size(kBytes)));
  constexpr int64_t lanes = kBytes / sizeof(uint32_t);
  for (int64_t at = 0; at < count; at += lanes) {
    Words high, low;
    for (int64_t i = 0; i < lanes; ++i) {
      high[i] = static_cast<uint32_t>((first + at + i) >> 32);
      low[i] = static_cast<uint32_t>(first + at + i);
    }
    Threefry(key[0], key[1], &high, &low);
    for (int64_t i = 0; i < std::min(lanes, count - at); ++i) {
      const uint32_t bits = (high[i] ^ low[i]) >> 9 | 0x3f800000u;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      kept[at + i] = value - 1.0f < probability;
    }
  }
}

// In: x [N, C], valid [N], scene [N] or [0], key [2]. Out: y = x / divisor where kept. Without scenes
// places are those of rows. Sizes: whether all channels are dropped together. Numbers: the probability of
// keeping, and the divisor.
template <typename Stored>
const char* RunDropout(const Call& call, const Parallel& parallel) {
  using T = typename SumOf<Stored>::type;
  Checked checked(call);
  const int64_t rows = checked.in_axis(0, 0), channels = checked.in_axis(0, 1);
  const Stored* x = checked.In<Stored>(0, {rows, channels});
  const bool* valid = checked.Optional<bool>(1, {rows});
  const int32_t* scene = checked.Optional<int32_t>(2, {rows});
  const uint32_t* key = checked.In<uint32_t>(3, {2});
  Stored* y = checked.Out<Stored>(0, {rows, channels});
  const bool together = checked.size(0) != 0;
  const float probability = static_cast<float>(checked.number(0));
  const T divisor = static_cast<T>(checked.number(1));
  if (!checked.good()) return "x [N, C], valid and scene [N], a key of two words";
  const int64_t drawn = together ? 1 : channels;  // of a row
  const int64_t used = RowsWithValid(valid, rows);
  ForBlocks(parallel, used, channels, [&](int64_t, int64_t begin, int64_t end) {
    const std::unique_ptr<bool[]> kept(new bool[drawn]);
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * channels;
      if (IsValid(valid, r)) {
        ListKept(key, (scene == nullptr ? r : scene[r]) * drawn, drawn, probability, kept.get());
      } else {
        std::fill_n(kept.get(), drawn, false);
      }
      for (int64_t c = 0; c < channels; ++c) {
        Narrow(kept[together ? 0 : c] ? Widen(x[at + c]) / divisor : T(0), y + at + c);
      }
    }
  });
  ClearRows(y, used, rows, channels, parallel);
  return nullptr;
}

}  // namespace voxax::VOXAX_ISA
