// Sums and norms over the rows of each scene of a batch.
#pragma once

#include "row_blocks.h"

namespace voxax::VOXAX_ISA {

// Which scene each row is of. In: valid [N] and scene [N], at `place` and behind it.
struct SceneIndex {
  SceneIndex(Checked* checked, size_t place, int64_t rows, int64_t scenes)
      : valid(checked->Optional<bool>(place, {rows})),
        scene(checked->In<int32_t>(place + 1, {rows})),
        rows(rows),
        scenes(scenes) {}

  // Whether the row is valid, and of one of the scenes.
  bool Has(int64_t r) const { return IsValid(valid, r) && scene[r] >= 0 && scene[r] < scenes; }

  const bool* valid;
  const int32_t* scene;
  int64_t rows, scenes;
};

// The valid rows, scene after scene, cut into units of one scene each. Rows of no scene are left out.
class RowsByScene {
 public:
  RowsByScene(const SceneIndex& index, int64_t channels) : starts_(index.scenes + 1), order_(index.rows) {
    const int32_t* scene = index.scene;
    const int64_t rows = index.rows, scenes = index.scenes;
    for (int64_t r = 0; r < rows; ++r) {
      if (index.Has(r)) ++starts_[scene[r] + 1];
    }
    for (int64_t s = 0; s < scenes; ++s) starts_[s + 1] += starts_[s];
    std::vector<int64_t> next(starts_.begin(), starts_.end() - 1);
    for (int64_t r = 0; r < rows; ++r) {
      if (index.Has(r)) order_[next[scene[r]]++] = static_cast<int32_t>(r);
    }
    const int64_t length = NormBlock(channels);
    for (int64_t s = 0; s < scenes; ++s) {
      first_unit_.push_back(units_.size());
      for (int64_t at = starts_[s]; at < starts_[s + 1]; at += length) {
        units_.push_back({s, at, std::min(at + length, starts_[s + 1])});
      }
    }
    first_unit_.push_back(units_.size());
  }

  int64_t count(int64_t scene) const { return starts_[scene + 1] - starts_[scene]; }
  int64_t scenes() const { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t units() const { return units_.size(); }
  int64_t first_unit(int64_t scene) const { return first_unit_[scene]; }

  // call(scene, unit, rows, count) for every unit; rows are listed.
  template <typename Call>
  void ForUnits(const Parallel& parallel, const Call& call) const {
    parallel.Run(units_.size(), [&](int64_t u) {
      const Unit& unit = units_[u];
      call(unit.scene, u, order_.get() + unit.begin, unit.end - unit.begin);
    });
  }

  // total [scenes, channels] = the sums of the rows of x.
  template <typename T, typename Stored>
  void SumRows(const Parallel& parallel, const Stored* x, int64_t channels, T* total) const {
    Sum(parallel, channels,
        [&](int64_t, const int32_t* own, int64_t number, auto lanes, int64_t c) {
          using C = Lane<T, lanes.value>;
          typename C::Value sum{};
          for (int64_t i = 0; i < number; ++i) sum += C::Load(x + own[i] * channels + c);
          return sum;
        },
        total);
  }

  // total [scenes, channels] = the sums over units of what add(scene, rows, count, lanes, c) returns.
  template <typename T, typename Term>
  void Sum(const Parallel& parallel, int64_t channels, const Term& term, T* total) const {
    Buffer<T> parts(units_.size() * channels);
    ForUnits(parallel, [&](int64_t scene, int64_t unit, const int32_t* rows, int64_t count) {
      ForChannels<T>(channels, [&](auto lanes, int64_t c) {
        using C = Lane<T, lanes.value>;
        C::Store(&parts[unit * channels + c], term(scene, rows, count, lanes, c));
      });
    });
    for (int64_t s = 0; s < scenes(); ++s) {
      JoinParts(parts.get() + first_unit_[s] * channels, first_unit_[s + 1] - first_unit_[s], channels,
                total + s * channels);
    }
  }

 private:
  struct Unit {
    int64_t scene, begin, end;
  };
  std::vector<int64_t> starts_, first_unit_;
  Buffer<int32_t> order_;
  std::vector<Unit> units_;
};

// In: x [N, C], valid [N], scene [N]. Out: total [B, C] in the type of the sums, count [B].
template <typename Stored>
const char* RunSceneSums(const Call& call, const Parallel& parallel) {
  using T = typename SumOf<Stored>::type;
  Checked checked(call);
  const int64_t rows = checked.in_axis(0, 0), channels = checked.in_axis(0, 1);
  const int64_t scenes = checked.out_axis(0, 0);
  const Stored* x = checked.In<Stored>(0, {rows, channels});
  const SceneIndex index(&checked, 1, rows, scenes);
  T* total = checked.Out<T>(0, {scenes, channels});
  int32_t* count = checked.Out<int32_t>(1, {scenes});
  if (!checked.good()) return "x [N, C], valid and scene [N], total [B, C], count [B]";
  const RowsByScene by_scene(index, channels);
  by_scene.SumRows(parallel, x, channels, total);
  for (int64_t s = 0; s < scenes; ++s) count[s] = static_cast<int32_t>(by_scene.count(s));
  return nullptr;
}

// The transpose. In: values [B, C], valid [N], scene [N]. Out: y [N, C].
template <typename Stored>
const char* RunSceneRows(const Call& call, const Parallel& parallel) {
  Checked checked(call);
  const int64_t scenes = checked.in_axis(0, 0), channels = checked.in_axis(0, 1);
  const int64_t rows = checked.in_axis(2, 0);
  const Stored* values = checked.In<Stored>(0, {scenes, channels});
  const SceneIndex index(&checked, 1, rows, scenes);
  Stored* y = checked.Out<Stored>(0, {rows, channels});
  if (!checked.good()) return "values [B, C], valid and scene [N], y [N, C]";
  const int64_t used = RowsWithValid(index.valid, rows);
  ForBlocks(parallel, used, channels, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (index.Has(r)) {
        std::copy_n(values + index.scene[r] * channels, channels, y + r * channels);
      } else {
        std::fill_n(y + r * channels, channels, Stored{});
      }
    }
  });
  ClearRows(y, used, rows, channels, parallel);
  return nullptr;
}

// In `values [scenes, channels]` the sums over channels of a group, each in all channels of it.
template <typename T>
void ShareInGroups(int64_t scenes, int64_t channels, int64_t groups, T* values) {
  const int64_t width = channels / groups;
  for (int64_t at = 0; at < scenes * channels; at += width) {
    double sum = 0;
    for (int64_t c = 0; c < width; ++c) sum += values[at + c];
    std::fill_n(values + at, width, static_cast<T>(sum));
  }
}

// In: x [N, C], valid [N], scene [N], scale and bias [C] or [0]. Out: y [N, C], mean and
// 1 / sqrt(variance + epsilon) [B, C], the same in all channels of a group. Sizes: groups. Numbers: epsilon.
template <typename Stored>
const char* RunSceneNorm(const Call& call, const Parallel& parallel) {
  using T = typename SumOf<Stored>::type;
  Checked checked(call);
  const int64_t rows = checked.in_axis(0, 0), channels = checked.in_axis(0, 1);
  const int64_t scenes = checked.out_axis(1, 0), groups = checked.size(0);
  const Stored* x = checked.In<Stored>(0, {rows, channels});
  const SceneIndex index(&checked, 1, rows, scenes);
  const T *scale = checked.Optional<T>(3, {channels}), *bias = checked.Optional<T>(4, {channels});
  Stored* y = checked.Out<Stored>(0, {rows, channels});
  T *mean = checked.Out<T>(1, {scenes, channels}), *inverse = checked.Out<T>(2, {scenes, channels});
  const T epsilon = static_cast<T>(checked.number(0));
  checked.Require(groups > 0 && channels % std::max<int64_t>(groups, 1) == 0);
  if (!checked.good()) return "x [N, C], valid and scene [N], scale and bias [C], groups that divide C";
  const RowsByScene by_scene(index, channels);
  const auto average = [&](T* values) {
    ShareInGroups(scenes, channels, groups, values);
    for (int64_t s = 0; s < scenes; ++s) {
      const T number = static_cast<T>(std::max<int64_t>(by_scene.count(s), 1) * (channels / groups));
      for (int64_t c = 0; c < channels; ++c) values[s * channels + c] /= number;
    }
  };
  by_scene.SumRows(parallel, x, channels, mean);
  average(mean);
  by_scene.Sum(parallel, channels,
               [&](int64_t s, const int32_t* own, int64_t number, auto lanes, int64_t c) {
                 using C = Lane<T, lanes.value>;
                 typename C::Value sum{};
                 const typename C::Value middle = C::Load(mean + s * channels + c);
                 for (int64_t i = 0; i < number; ++i) {
                   const typename C::Value off = C::Load(x + own[i] * channels + c) - middle;
                   sum += off * off;
                 }
                 return sum;
               },
               inverse);
  average(inverse);
  for (int64_t i = 0; i < scenes * channels; ++i) inverse[i] = 1 / std::sqrt(inverse[i] + epsilon);
  const int64_t used = RowsWithValid(index.valid, rows);
  ForBlocks(parallel, used, channels, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * channels;
      if (!index.Has(r)) {
        std::fill_n(y + at, channels, Stored{});
        continue;
      }
      const int64_t of = index.scene[r] * channels;
      ForChannels<T>(channels, [&](auto lanes, int64_t c) {
        using C = Lane<T, lanes.value>;
        typename C::Value factor = C::Load(inverse + of + c);
        if (scale != nullptr) factor *= C::Load(scale + c);
        typename C::Value value = (C::Load(x + at + c) - C::Load(mean + of + c)) * factor;
        if (bias != nullptr) value += C::Load(bias + c);
        C::Store(y + at + c, value);
      });
    }
  });
  ClearRows(y, used, rows, channels, parallel);
  return nullptr;
}

// In: dy, x [N, C], valid [N], scene [N], scale [C] or [0], mean and inverse [B, C]. Out: dx, dscale [C],
// dbias [C]. Sizes: groups.
template <typename Stored>
const char* RunSceneNormGradients(const Call& call, const Parallel& parallel) {
  using T = typename SumOf<Stored>::type;
  Checked checked(call);
  const int64_t rows = checked.in_axis(0, 0), channels = checked.in_axis(0, 1);
  const int64_t scenes = checked.in_axis(5, 0), groups = checked.size(0);
  const Stored *dy = checked.In<Stored>(0, {rows, channels}), *x = checked.In<Stored>(1, {rows, channels});
  const SceneIndex index(&checked, 2, rows, scenes);
  const T* scale = checked.Optional<T>(4, {channels});
  const T *mean = checked.In<T>(5, {scenes, channels}), *inverse = checked.In<T>(6, {scenes, channels});
  Stored* dx = checked.Out<Stored>(0, {rows, channels});
  T *dscale = checked.Out<T>(1, {channels}), *dbias = checked.Out<T>(2, {channels});
  checked.Require(groups > 0 && channels % std::max<int64_t>(groups, 1) == 0);
  if (!checked.good()) return "dy and x [N, C], valid and scene [N], scale [C], mean and inverse [B, C]";
  const RowsByScene by_scene(index, channels);
  Buffer<T> constant(scenes * channels), slope(scenes * channels);
  by_scene.SumRows(parallel, dy, channels, constant.get());
  by_scene.Sum(parallel, channels,
               [&](int64_t s, const int32_t* own, int64_t number, auto lanes, int64_t c) {
                 using C = Lane<T, lanes.value>;
                 typename C::Value sum{};
                 const typename C::Value middle = C::Load(mean + s * channels + c);
                 for (int64_t i = 0; i < number; ++i) {
                   const int64_t at = own[i] * channels + c;
                   sum += C::Load(dy + at) * (C::Load(x + at) - middle);
                 }
                 return sum * C::Load(inverse + s * channels + c);
               },
               slope.get());
  JoinParts(slope.get(), scenes, channels, dscale);
  JoinParts(constant.get(), scenes, channels, dbias);
  for (T* values : {constant.get(), slope.get()}) {
    if (scale != nullptr) {
      for (int64_t i = 0; i < scenes * channels; ++i) values[i] *= scale[i % channels];
    }
    ShareInGroups(scenes, channels, groups, values);
    for (int64_t i = 0; i < scenes * channels; ++i) {
      values[i] /= static_cast<T>(std::max<int64_t>(by_scene.count(i / channels), 1) * (channels / groups));
    }
  }
  const int64_t used = RowsWithValid(index.valid, rows);
  ForBlocks(parallel, used, channels, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * channels;
      if (!index.Has(r)) {
        std::fill_n(dx + at, channels, Stored{});
        continue;
      }
      const int64_t of = index.scene[r] * channels;
      ForChannels<T>(channels, [&](auto lanes, int64_t c) {
        using C = Lane<T, lanes.value>;
        const typename C::Value factor = C::Load(inverse + of + c);
        typename C::Value value = C::Load(dy + at + c);
        if (scale != nullptr) value *= C::Load(scale + c);
        const typename C::Value normed = (C::Load(x + at + c) - C::Load(mean + of + c)) * factor;
        value = value - C::Load(&constant[of + c]) - normed * C::Load(&slope[of + c]);
        C::Store(dx + at + c, value * factor);
      });
    }
  });
  ClearRows(dx, used, rows, channels, parallel);
  return nullptr;
}

// In: x [N, C], valid [N], scene [N]. Out: best [B, C], 0 in scenes without rows; a NaN beats every number.
// Sizes: whether the largest is looked for.
template <typename Stored>
const char* RunSceneExtremes(const Call& call, const Parallel& parallel) {
  using T = typename SumOf<Stored>::type;
  Checked checked(call);
  const int64_t rows = checked.in_axis(0, 0), channels = checked.in_axis(0, 1);
  const int64_t scenes = checked.out_axis(0, 0);
  const Stored* x = checked.In<Stored>(0, {rows, channels});
  const SceneIndex index(&checked, 1, rows, scenes);
  Stored* best = checked.Out<Stored>(0, {scenes, channels});
  const bool largest = checked.size(0) != 0;
  if (!checked.good()) return "x [N, C], valid and scene [N], best [B, C]";
  const RowsByScene by_scene(index, channels);
  const auto better = [&](T value, T than) {
    return (largest ? value > than : value < than) || value != value;
  };
  Buffer<T> parts(by_scene.units() * channels);
  by_scene.ForUnits(parallel, [&](int64_t, int64_t unit, const int32_t* own, int64_t count) {
    T* found = parts.get() + unit * channels;
    for (int64_t c = 0; c < channels; ++c) found[c] = Widen(x[own[0] * channels + c]);
    for (int64_t i = 1; i < count; ++i) {
      for (int64_t c = 0; c < channels; ++c) {
        const T value = Widen(x[own[i] * channels + c]);
        found[c] = better(value, found[c]) ? value : found[c];
      }
    }
  });
  for (int64_t s = 0; s < scenes; ++s) {
    for (int64_t c = 0; c < channels; ++c) {
      T found{};
      for (int64_t u = by_scene.first_unit(s); u < by_scene.first_unit(s + 1); ++u) {
        const T value = parts[u * channels + c];
        found = u == by_scene.first_unit(s) || better(value, found) ? value : found;
      }
      Narrow(found, best + s * channels + c);
    }
  }
  return nullptr;
}

// Equal rows share the gradient. In: x, valid, scene as above, best and its gradient [B, C]. Out: dx [N, C].
template <typename Stored>
const char* RunSceneExtremesGradients(const Call& call, const Parallel& parallel) {
  using T = typename SumOf<Stored>::type;
  Checked checked(call);
  const int64_t rows = checked.in_axis(0, 0), channels = checked.in_axis(0, 1);
  const int64_t scenes = checked.in_axis(3, 0);
  const Stored* x = checked.In<Stored>(0, {rows, channels});
  const SceneIndex index(&checked, 1, rows, scenes);
  const Stored *best = checked.In<Stored>(3, {scenes, channels}), *ct = checked.In<Stored>(4, {scenes, channels});
  Stored* dx = checked.Out<Stored>(0, {rows, channels});
  if (!checked.good()) return "x [N, C], valid and scene [N], best and its gradient [B, C]";
  const RowsByScene by_scene(index, channels);
  const auto wins = [](T value, T than) { return value == than || value != value; };
  Buffer<T> shares(scenes * channels);
  by_scene.Sum(parallel, channels,
               [&](int64_t s, const int32_t* own, int64_t number, auto lanes, int64_t c) {
                 using C = Lane<T, lanes.value>;
                 typename C::Value sum{};
                 const typename C::Value than = C::Load(best + s * channels + c);
                 for (int64_t i = 0; i < number; ++i) {
                   const typename C::Value value = C::Load(x + own[i] * channels + c);
                   const typename C::Value one = typename C::Value{} + T(1);
                   sum += value == than ? one : (value != value ? one : typename C::Value{});
                 }
                 return sum;
               },
               shares.get());
  for (int64_t i = 0; i < scenes * channels; ++i) shares[i] = Widen(ct[i]) / std::max(shares[i], T(1));
  const int64_t used = RowsWithValid(index.valid, rows);
  ForBlocks(parallel, used, channels, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const bool counts = index.Has(r);
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t at = r * channels + c, of = counts ? index.scene[r] * channels + c : 0;
        Narrow(counts && wins(Widen(x[at]), Widen(best[of])) ? shares[of] : T(0), dx + at);
      }
    }
  });
  ClearRows(dx, used, rows, channels, parallel);
  return nullptr;
}

}  // namespace voxax::VOXAX_ISA
