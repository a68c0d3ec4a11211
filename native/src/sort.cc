// Lexicographic order of coordinate rows by radix sort.
//
// Columns are counted from their least value, and as many of them as fit are packed into one 64-bit
// word, with the row's place in the low bits. A LiDAR sweep at 5 cm takes 34 bits for its coordinates
// and 17 for the place, so one word holds it all; where coordinates are further apart, the last columns
// are sorted first, then those before them, as far as it takes.
//
// There is only one stable order, so it is the same for any number of threads.
#include <algorithm>
#include <vector>

#include "buffer.h"
#include "rows.h"
#include "split.h"

namespace voxax {
namespace {

using baseline::Buffer;

int BitsOf(uint64_t value) { return value == 0 ? 0 : 64 - __builtin_clzll(value); }

template <int W>
bool IsPadding(const int32_t* row) {
  for (int w = 0; w < W; ++w) {
    if (row[w] != kPad) return false;
  }
  return true;
}

template <int W>
bool Less(const int32_t* a, const int32_t* b) {
  for (int w = 0; w < W; ++w) {
    if (a[w] != b[w]) return a[w] < b[w];
  }
  return false;
}

// Facts found in one pass over all rows. Rows of kPad alone are the largest: they need no key, and
// would widen every range.
template <int W>
struct Survey {
  int32_t low[W], high[W];
  int64_t padding = 0;
  bool sorted = true;

  Survey() {
    std::fill_n(low, W, INT32_MAX);
    std::fill_n(high, W, INT32_MIN);
  }

  void Look(const Rows& rows, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t* row = rows[i];
      if (i > 0 && Less<W>(row, rows[i - 1])) sorted = false;
      if (IsPadding<W>(row)) {
        ++padding;
        continue;
      }
      for (int w = 0; w < W; ++w) {
        low[w] = std::min(low[w], row[w]);
        high[w] = std::max(high[w], row[w]);
      }
    }
  }

  void Add(const Survey& other) {
    for (int w = 0; w < W; ++w) {
      low[w] = std::min(low[w], other.low[w]);
      high[w] = std::max(high[w], other.high[w]);
    }
    padding += other.padding;
    sorted &= other.sorted;
  }

  int Bits(int w) const { return BitsOf(static_cast<uint64_t>(int64_t{high[w]} - low[w])); }
};

// Columns [first, end), packed into one word above `place_bits` for the place of the row.
struct Group {
  int first, end, bits;
};

// The last columns first: that is the order in which they are sorted.
template <int W>
std::vector<Group> GroupsOf(const Survey<W>& all, int place_bits) {
  std::vector<Group> groups;
  for (int w = W - 1; w >= 0; --w) {
    const int bits = all.Bits(w);
    // Any one column fits: it has at most 32 bits, and the place at most 31.
    if (groups.empty() || groups.back().bits + bits + place_bits > 64) {
      groups.push_back({w, w + 1, 0});
    }
    groups.back().first = w;
    groups.back().bits += bits;
  }
  return groups;
}

template <int W>
uint64_t KeyOf(const int32_t* row, const Group& group, const Survey<W>& all) {
  uint64_t key = 0;
  for (int w = group.first; w < group.end; ++w) {
    key = key << all.Bits(w) | static_cast<uint64_t>(int64_t{row[w]} - all.low[w]);
  }
  return key;
}

// Sorts `words`, whose low `from` bits count up, by the `bits` above these: then any order by the
// whole word is the stable one. `spare` holds as many; one of the two is returned, sorted.
uint64_t* SortWords(uint64_t* words, uint64_t* spare, int64_t count, int from, int bits,
                    const Parallel& parallel) {
  if (count < 1024) {  // digits would have more values than there are words
    std::sort(words, words + count);
    return words;
  }
  const int passes = (bits + 10) / 11;  // 2^11 counters fit in the first-level cache
  const int digit = passes ? (bits + passes - 1) / passes : 0;
  const int64_t values = int64_t{1} << digit;
  const Split split(count, parallel);
  Buffer<int32_t> places(split.parts * values);
  for (int pass = 0; pass < passes; ++pass, from += digit) {
    const auto digit_of = [&](uint64_t word) { return word >> from & (values - 1); };
    split.Run(parallel, [&](int64_t part, int64_t begin, int64_t end) {
      int32_t* mine = places.get() + part * values;
      std::fill_n(mine, values, 0);
      for (int64_t i = begin; i < end; ++i) ++mine[digit_of(words[i])];
    });
    int32_t place = 0;
    for (int64_t value = 0; value < values; ++value) {
      for (int64_t part = 0; part < split.parts; ++part) {
        int32_t& mine = places[part * values + value];
        const int32_t number = mine;
        mine = place;
        place += number;
      }
    }
    split.Run(parallel, [&](int64_t part, int64_t begin, int64_t end) {
      int32_t* mine = places.get() + part * values;
      for (int64_t i = begin; i < end; ++i) spare[mine[digit_of(words[i])]++] = words[i];
    });
    std::swap(words, spare);
  }
  return words;
}

template <int W>
void Sort(const Rows& rows, int32_t* order, const Parallel& parallel) {
  const Split split(rows.count, parallel);
  std::vector<Survey<W>> parts(split.parts);
  split.Run(parallel, [&](int64_t part, int64_t begin, int64_t end) {
    Survey<W> mine;  // on the stack: neighbors in `parts` share cache lines
    mine.Look(rows, begin, end);
    parts[part] = mine;
  });
  Survey<W> all;
  for (const Survey<W>& part : parts) all.Add(part);

  // Padding goes to the end. What is sorted already needs no more than that, which moves nothing.
  const int64_t valid = rows.count - all.padding;
  split.Run(parallel, [&](int64_t part, int64_t begin, int64_t end) {
    int64_t padding = 0;
    for (int64_t before = 0; before < part; ++before) padding += parts[before].padding;
    int64_t at = begin - padding, last = valid + padding;
    for (int64_t i = begin; i < end; ++i) {
      order[IsPadding<W>(rows[i]) ? last++ : at++] = static_cast<int32_t>(i);
    }
  });
  if (all.sorted) return;

  const Split sorting(valid, parallel);
  const int place_bits = BitsOf(valid - 1);
  const uint64_t place_mask = (uint64_t{1} << place_bits) - 1;
  Buffer<uint64_t> words(valid), spare(valid);
  Buffer<int32_t> before(valid);
  for (const Group& group : GroupsOf(all, place_bits)) {
    sorting.Run(parallel, [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        before[i] = order[i];
        words[i] = KeyOf(rows[order[i]], group, all) << place_bits | static_cast<uint64_t>(i);
      }
    });
    const uint64_t* sorted =
        SortWords(words.get(), spare.get(), valid, place_bits, group.bits, parallel);
    sorting.Run(parallel, [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) order[i] = before[sorted[i] & place_mask];
    });
  }
}

}  // namespace

void SortRows(const Rows& rows, int32_t* order, const Parallel& parallel) {
  switch (rows.width) {
    case 1:
      return Sort<1>(rows, order, parallel);
    case 2:
      return Sort<2>(rows, order, parallel);
    case 3:
      return Sort<3>(rows, order, parallel);
    case 4:
      return Sort<4>(rows, order, parallel);
    case 5:
      return Sort<5>(rows, order, parallel);
  }
}

}  // namespace voxax
