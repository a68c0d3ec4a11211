#include "reach.h"

#include <algorithm>
#include <stdexcept>

namespace voxax {
namespace {

// Numbers keys in the order of their insertion: open addressing, at most half full.
class Numbers {
 public:
  explicit Numbers(int64_t expected) {
    while (size_ < 2 * expected) size_ *= 2;
    slots_.assign(size_, {0, -1});
  }

  // The number of the key, `next` if it is new.
  int32_t Of(uint64_t key, int32_t next) {
    if (2 * int64_t{next} >= size_) Grow();
    Slot& slot = Find(key);
    if (slot.number < 0) slot = {key, next};
    return slot.number;
  }

 private:
  struct Slot {
    uint64_t key;
    int32_t number;
  };

  Slot& Find(uint64_t key) {
    // Fibonacci hashing (Knuth); the high bits are the well mixed ones.
    uint64_t at = (key * 0x9E3779B97F4A7C15u) >> 20 & (size_ - 1);
    while (slots_[at].number >= 0 && slots_[at].key != key) at = (at + 1) & (size_ - 1);
    return slots_[at];
  }

  void Grow() {
    std::vector<Slot> old = std::move(slots_);
    size_ *= 2;
    slots_.assign(size_, {0, -1});
    for (const Slot& slot : old) {
      if (slot.number >= 0) Find(slot.key) = slot;
    }
  }

  int64_t size_ = 16;
  std::vector<Slot> slots_;
};

// A tap along one axis: what it adds to the number of the tap and to the key, and where it leads.
struct Step {
  int32_t tap, at;
  uint64_t key;
};

// The steps of an input coordinate along each axis.
class Steps {
 public:
  explicit Steps(const Reach& p)
      : n_(p.ndim), transposed_(p.transposed), kernel_(p.sizes), stride_(kernel_ + n_),
        padding_(stride_ + n_), dilation_(padding_ + n_), shape_(dilation_ + n_) {
    for (int64_t d = n_ - 1; d >= 0; --d) {
      axes_[d].resize(kernel_[d]);
      tap_radix_[d] = d == n_ - 1 ? 1 : tap_radix_[d + 1] * kernel_[d + 1];
      key_radix_[d] = d == n_ - 1 ? 1 : key_radix_[d + 1] * shape_[d + 1];
    }
  }

  // False where the input reaches no output.
  bool Read(const int32_t* center) {
    for (int64_t d = 0; d < n_; ++d) {
      int64_t count = 0;
      for (int64_t k = 0; k < kernel_[d]; ++k) {
        int64_t at;
        if (transposed_) {
          at = center[d] * stride_[d] - padding_[d] + k * dilation_[d];
        } else {
          at = center[d] + padding_[d] - k * dilation_[d];
          if (at < 0) break;  // so are the following ones
          if (!Divide(stride_[d], &at)) continue;
        }
        if (at < 0 || at >= shape_[d]) continue;
        axes_[d][count++] = {static_cast<int32_t>(k * tap_radix_[d]), static_cast<int32_t>(at),
                             at * key_radix_[d]};
      }
      if (count == 0) return false;
      counts_[d] = count;
    }
    return true;
  }

  // Calls of(tap, key, steps) for every combination, the last axis fastest.
  template <typename Of>
  void ForEach(const Of& of) const {
    const Step* steps[kMostAxes];
    Combine(0, 0, 0, steps, of);
  }

  // What the batch index is multiplied by.
  uint64_t cells() const { return key_radix_[0] * shape_[0]; }

 private:
  // Divides without a remainder, or returns false. In 32 bits, which takes a fraction of the time.
  static bool Divide(int64_t by, int64_t* value) {
    if (by == 1) return true;
    if (*value > INT32_MAX || by > INT32_MAX) {
      if (*value % by != 0) return false;
      *value /= by;
      return true;
    }
    const auto narrow = static_cast<uint32_t>(*value), divisor = static_cast<uint32_t>(by);
    const uint32_t quotient = narrow / divisor;
    *value = quotient;
    return quotient * divisor == narrow;
  }

  template <typename Of>
  void Combine(int64_t d, int32_t tap, uint64_t key, const Step** steps, const Of& of) const {
    for (int64_t i = 0; i < counts_[d]; ++i) {
      steps[d] = &axes_[d][i];
      const int32_t next_tap = tap + steps[d]->tap;
      const uint64_t next_key = key + steps[d]->key;
      if (d + 1 == n_ || d + 1 == kMostAxes) {
        of(next_tap, next_key, steps);
      } else {
        Combine(d + 1, next_tap, next_key, steps, of);
      }
    }
  }

  const int64_t n_;
  const bool transposed_;
  const int64_t *kernel_, *stride_, *padding_, *dilation_, *shape_;
  std::vector<Step> axes_[kMostAxes];
  int64_t counts_[kMostAxes], tap_radix_[kMostAxes];
  uint64_t key_radix_[kMostAxes];
};

}  // namespace

Reached FindReached(const Reach& p) {
  const int64_t n = p.ndim;
  Reached found{n + 1, 1, {}, {}, {}, {}};
  for (int64_t d = 0; d < n; ++d) found.taps *= p.sizes[d];

  struct First {
    int32_t tap, row;
  };
  std::vector<First> firsts;  // where each output is reached first
  found.pairs.reserve(p.rows * 4);
  found.ends.reserve(p.rows);
  firsts.reserve(p.rows);
  found.coords.reserve(p.rows * (n + 1));
  Numbers numbers(p.rows);
  Steps steps(p);
  for (int64_t row = 0; row < p.rows; ++row) {
    const int32_t* center = p.coords + row * (n + 1);
    if (steps.Read(center + 1)) {
      const uint64_t scene = static_cast<uint32_t>(center[0]) * steps.cells();
      steps.ForEach([&](int32_t tap, uint64_t key, const Step* const* at) {
        const auto next = static_cast<int32_t>(firsts.size());
        const int32_t number = numbers.Of(scene + key, next);
        if (number == next) {
          if (next == INT32_MAX) throw std::length_error("2^31 outputs");
          firsts.push_back({tap, static_cast<int32_t>(row)});
          found.coords.push_back(center[0]);
          for (int64_t d = 0; d < n; ++d) found.coords.push_back(at[d]->at);
        } else if (tap < firsts[number].tap) {
          firsts[number] = {tap, static_cast<int32_t>(row)};
        }
        found.pairs.push_back({tap, number});
      });
    }
    found.ends.push_back(static_cast<int64_t>(found.pairs.size()));
  }

  // From the order of the rows to that of the taps, rows ascending within one.
  std::vector<int64_t> next(found.taps + 1, 0);
  for (const First& first : firsts) ++next[first.tap + 1];
  for (int64_t tap = 0; tap < found.taps; ++tap) next[tap + 1] += next[tap];
  found.places.resize(firsts.size());
  for (int64_t row = 0, at = 0; row < p.rows; ++row) {
    for (; at < found.ends[row]; ++at) {
      const Reached::Pair& pair = found.pairs[at];
      const First& first = firsts[pair.number];
      if (first.tap != pair.tap || first.row != row) continue;
      found.places[pair.number] = static_cast<int32_t>(next[pair.tap]++);
    }
  }
  return found;
}

void Reached::Write(int32_t* out, int32_t* neighbors) const {
  std::fill(neighbors, neighbors + count() * taps, -1);
  for (int64_t number = 0; number < count(); ++number) {
    std::copy_n(coords.data() + number * width, width, out + places[number] * width);
  }
  int64_t at = 0, row = 0;
  for (const int64_t end : ends) {
    for (; at < end; ++at) {
      neighbors[places[pairs[at].number] * taps + pairs[at].tap] = static_cast<int32_t>(row);
    }
    ++row;
  }
}

}  // namespace voxax
