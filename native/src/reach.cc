#include "reach.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace voxax {
namespace {

constexpr int64_t kTooMany = -2;

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

// A tap along one axis, and the output coordinate it leads to.
struct Step {
  int64_t tap, at;
};

}  // namespace

int64_t FindReached(const Reach& p) {
  const int64_t n = p.ndim;
  const int64_t *kernel = p.sizes, *stride = kernel + n, *padding = stride + n,
                *dilation = padding + n, *shape = dilation + n;
  int64_t taps = 1;
  for (int64_t d = 0; d < n; ++d) taps *= kernel[d];
  std::fill(p.found, p.found + p.rows * taps, -1);

  struct Pair {
    int32_t tap, number;
  };
  std::vector<Pair> pairs;
  std::vector<int64_t> ends;
  std::vector<int32_t> first_tap, first_row;  // where each output is reached first
  std::vector<int32_t> coords;
  pairs.reserve(p.rows * 2);
  ends.reserve(p.rows);
  Numbers numbers(p.rows);
  std::vector<Step> steps[kMostAxes];
  for (int64_t row = 0; row < p.rows; ++row) {
    const int32_t* center = p.coords + row * (n + 1);
    bool none = false;
    for (int64_t d = 0; d < n; ++d) {
      steps[d].clear();
      for (int64_t k = 0; k < kernel[d]; ++k) {
        int64_t at;
        if (p.transposed) {
          at = center[d + 1] * stride[d] - padding[d] + k * dilation[d];
        } else {
          at = center[d + 1] + padding[d] - k * dilation[d];
          if (at < 0 || at % stride[d] != 0) continue;
          at /= stride[d];
        }
        if (at >= 0 && at < shape[d]) steps[d].push_back({k, at});
      }
      none |= steps[d].empty();
    }
    if (!none) {
      size_t place[kMostAxes] = {};
      for (bool more = true; more;) {
        uint64_t key = static_cast<uint32_t>(center[0]);
        int64_t tap = 0;
        for (int64_t d = 0; d < n; ++d) {
          const Step& step = steps[d][place[d]];
          if (__builtin_mul_overflow(key, static_cast<uint64_t>(shape[d]), &key)) return kTooMany;
          key += step.at;
          tap = tap * kernel[d] + step.tap;
        }
        const auto next = static_cast<int32_t>(first_tap.size());
        const int32_t number = numbers.Of(key, next);
        if (number == next) {
          if (next == p.capacity || next == INT32_MAX) return kTooMany;
          first_tap.push_back(static_cast<int32_t>(tap));
          first_row.push_back(static_cast<int32_t>(row));
          coords.push_back(center[0]);
          for (int64_t d = 0; d < n; ++d) {
            coords.push_back(static_cast<int32_t>(steps[d][place[d]].at));
          }
        } else if (tap < first_tap[number]) {
          first_tap[number] = static_cast<int32_t>(tap);
          first_row[number] = static_cast<int32_t>(row);
        }
        pairs.push_back({static_cast<int32_t>(tap), number});
        more = false;
        for (int64_t d = n - 1; d >= 0 && !more; --d) {
          more = ++place[d] < steps[d].size();
          if (!more) place[d] = 0;
        }
      }
    }
    ends.push_back(static_cast<int64_t>(pairs.size()));
  }

  // From the order of the rows to that of the taps, rows ascending within one.
  const auto count = static_cast<int64_t>(first_tap.size());
  std::vector<int64_t> next(taps + 1, 0);
  for (const int32_t tap : first_tap) ++next[tap + 1];
  for (int64_t tap = 0; tap < taps; ++tap) next[tap + 1] += next[tap];
  std::vector<int32_t> place_of(count);
  for (int64_t row = 0, at = 0; row < p.rows; ++row) {
    for (; at < ends[row]; ++at) {
      const Pair& pair = pairs[at];
      if (first_tap[pair.number] != pair.tap || first_row[pair.number] != row) continue;
      place_of[pair.number] = static_cast<int32_t>(next[pair.tap]++);
    }
  }
  for (int64_t number = 0; number < count; ++number) {
    std::copy_n(coords.data() + number * (n + 1), n + 1, p.out + place_of[number] * (n + 1));
  }
  for (int64_t row = 0, at = 0; row < p.rows; ++row) {
    for (; at < ends[row]; ++at) p.found[row * taps + pairs[at].tap] = place_of[pairs[at].number];
  }
  return count;
}

}  // namespace voxax
