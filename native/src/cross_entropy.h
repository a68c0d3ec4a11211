// The mean cross entropy over rows with a label.
#pragma once

#include "row_blocks.h"
#include "vector_math.h"

namespace voxax::VOXAX_ISA {

// Logits of a row in float32, and the class that it counts for, or -1.
template <typename Stored>
struct Labeled {
  const Stored* logits;
  const int32_t* labels;
  const float* weights;  // [classes] or null
  int64_t rows, classes, ignored;

  bool Read(Checked& checked, size_t first) {
    rows = checked.in_axis(first, 0);
    classes = checked.in_axis(first, 1);
    logits = checked.In<Stored>(first, {rows, classes});
    labels = checked.In<int32_t>(first + 1, {rows});
    weights = checked.Optional<float>(first + 2, {classes});
    ignored = checked.size(0);
    return checked.good();
  }
  int64_t Class(int64_t row) const {
    const int64_t label = labels[row];
    return label >= 0 && label < classes && label != ignored ? label : -1;
  }
  // Up to the last that counts.
  int64_t Counted() const {
    int64_t counted = rows;
    while (counted > 0 && Class(counted - 1) < 0) --counted;
    return counted;
  }
  float Weight(int64_t label) const { return weights == nullptr ? 1.0f : weights[label]; }

  // exps[c] = exp(logit - largest); returns their sum and the largest.
  float Exponentials(int64_t row, float* exps, float* largest) const {
    const Stored* own = logits + row * classes;
    float most = -INFINITY;
    for (int64_t c = 0; c < classes; ++c) {
      exps[c] = Widen(own[c]);
      most = exps[c] > most || exps[c] != exps[c] ? exps[c] : most;
    }
    *largest = most;
    ForChannels<float>(classes, [&](auto lanes, int64_t c) {
      using C = Lane<float, lanes.value>;
      C::Store(exps + c, Exp<typename C::Value>(C::Load(exps + c) - most));
    });
    float sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += exps[c];
    return sum;
  }
};

// In: logits [N, K], labels [N], weights [K] or [0]. Out: loss [] and number [], float32. Sizes: a label
// that does not count.
template <typename Stored>
const char* RunCrossEntropy(const Call& call, const Parallel& parallel) {
  Checked checked(call);
  Labeled<Stored> p;
  const bool good = p.Read(checked, 0);
  float *loss = checked.Out<float>(0, {}), *number = checked.Out<float>(1, {});
  if (!good || !checked.good()) return "logits [N, K], labels [N], weights [K] of float32";
  const int64_t counted = p.Counted(), blocks = Blocks(counted, p.classes);
  std::vector<double> losses(blocks), numbers(blocks);
  ForBlocks(parallel, counted, p.classes, [&](int64_t b, int64_t begin, int64_t end) {
    Buffer<float> exps(p.classes);
    for (int64_t r = begin; r < end; ++r) {
      const int64_t label = p.Class(r);
      if (label < 0) continue;
      float largest;
      const float sum = p.Exponentials(r, exps.get(), &largest);
      const float own = std::log(sum) + (largest - Widen(p.logits[r * p.classes + label]));
      losses[b] += static_cast<double>(own * p.Weight(label));
      numbers[b] += p.Weight(label);
    }
  });
  double total = 0, count = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    total += losses[b];
    count += numbers[b];
  }
  *number = static_cast<float>(count);
  *loss = static_cast<float>(total) / std::max(*number, 1e-6f);
  return nullptr;
}

// In: logits, labels, weights as above, number and the gradient of the loss []. Out: dlogits [N, K].
template <typename Stored>
const char* RunCrossEntropyGradients(const Call& call, const Parallel& parallel) {
  Checked checked(call);
  Labeled<Stored> p;
  const bool good = p.Read(checked, 0);
  const float *number = checked.In<float>(3, {}), *ct = checked.In<float>(4, {});
  Stored* dlogits = good ? checked.Out<Stored>(0, {p.rows, p.classes}) : nullptr;
  if (!good || !checked.good()) return "logits [N, K], labels [N], weights [K], number and ct of float32";
  const float share = *ct / std::max(*number, 1e-6f);
  const int64_t counted = p.Counted();
  ForBlocks(parallel, counted, p.classes, [&](int64_t, int64_t begin, int64_t end) {
    Buffer<float> exps(p.classes);
    for (int64_t r = begin; r < end; ++r) {
      Stored* to = dlogits + r * p.classes;
      const int64_t label = p.Class(r);
      if (label < 0) {
        std::fill_n(to, p.classes, Stored{});
        continue;
      }
      float largest;
      const float sum = p.Exponentials(r, exps.get(), &largest);
      const float weight = share * p.Weight(label);
      for (int64_t c = 0; c < p.classes; ++c) {
        Narrow(weight * (exps[c] / sum - (c == label ? 1.0f : 0.0f)), to + c);
      }
    }
  });
  ClearRows(dlogits, counted, p.rows, p.classes, parallel);
  return nullptr;
}

}  // namespace voxax::VOXAX_ISA
