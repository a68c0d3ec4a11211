// Rows distributed over threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "parallel.h"

namespace voxax {

// One part of consecutive rows for each thread. No result depends on where the parts end.
struct Split {
  // Below this many rows a part is not worth waking a thread for.
  static constexpr int64_t kLeast = 8192;

  int64_t rows, parts;

  Split(int64_t rows, const Parallel& parallel)
      : Split(rows, parallel.threads()) {}
  Split(int64_t rows, int64_t most)
      : rows(rows), parts(std::clamp<int64_t>(rows / kLeast, 1, most)) {}

  int64_t Begin(int64_t part) const { return rows * part / parts; }

  // Calls unit(part, begin, end) for all parts.
  template <typename Unit>
  void Run(const Parallel& parallel, const Unit& unit) const {
    parallel.Run(parts, [&](int64_t part) { unit(part, Begin(part), Begin(part + 1)); });
  }
};

}  // namespace voxax
