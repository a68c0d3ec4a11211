// Shared by the functions that ctypes calls on arrays: errors, elements, and threads of the library's own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>

#include "problem.h"
#include "threads.h"

#define VOXAX_EXPORT extern "C" __attribute__((visibility("default")))

namespace voxax {

// Negative results are errors, which voxax/_native/host.py has in words.
inline constexpr int64_t kNoMemory = -1;
inline constexpr int64_t kNotSupported = -2;
inline constexpr int64_t kBadRow = -3;

// Runs call(parallel, &bad).
template <typename Call>
int64_t OnThreads(int64_t threads, const Call& call) {
  try {
    BadRow bad{-1};
    call(OwnThreads(threads), &bad);
    return bad.load() == -1 ? 0 : kBadRow;
  } catch (const std::exception&) {
    return kNoMemory;
  }
}

inline bool Countable(int64_t rows) { return 0 <= rows && rows <= INT32_MAX; }

// Rows of a tile, of what a caller asked for.
inline int64_t TileOf(int64_t asked, int64_t rows) {
  return std::clamp<int64_t>(asked, 1, std::max<int64_t>(rows, 1));
}

// 0: float32, 1: float64, 2: bfloat16.
inline bool ElementOf(int64_t number, Element* element) {
  constexpr Element elements[] = {Element::kFloat32, Element::kFloat64, Element::kBFloat16};
  if (number < 0 || number > 2) return false;
  *element = elements[number];
  return true;
}

}  // namespace voxax
