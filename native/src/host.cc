// The functions on coordinates for plain arrays, called through ctypes from processes that run only
// NumPy.
//
// On so many threads as the caller asks for: input pipelines have a process for each core and ask for
// one. Negative results are errors (voxax/_native/host.py has them in
// words). Shapes are checked there; what the arrays hold may be anything.
#include <exception>

#include "cells.h"
#include "maps.h"
#include "rows.h"
#include "threads.h"

namespace {

using voxax::Parallel;

constexpr int64_t kNoMemory = -1;
constexpr int64_t kNotSupported = -2;

template <typename Call>
int64_t OnThreads(int64_t threads, const Call& call) {
  try {
    return call(voxax::OwnThreads(threads));
  } catch (const std::exception&) {
    return kNoMemory;
  }
}

bool Countable(int64_t rows) { return 0 <= rows && rows <= INT32_MAX; }

}  // namespace

#define VOXAX_EXPORT extern "C" __attribute__((visibility("default")))

// coords [rows, width], inverse [rows]; the number of distinct rows. None of them is padding.
VOXAX_EXPORT int64_t voxax_host_unique_rows(const int32_t* data, int64_t rows, int64_t width,
                                            int64_t threads, int32_t* coords,
                                            int32_t* inverse) {
  if (!Countable(rows) || !voxax::Sortable(width)) return kNotSupported;
  return OnThreads(threads, [&](const Parallel& parallel) {
    return voxax::FindUnique({{data, rows, width}, coords, inverse, rows}, parallel);
  });
}

// As voxax::Lookup.
VOXAX_EXPORT int64_t voxax_host_find_neighbors(const int32_t* sorted, int64_t rows,
                                               const int32_t* centers, const bool* valid,
                                               int64_t centers_rows, const int32_t* offsets,
                                               int64_t taps, int64_t width, int64_t threads,
                                               int32_t* found) {
  if (!Countable(rows) || !Countable(centers_rows) || taps < 0) return kNotSupported;
  const voxax::Lookup lookup{sorted, centers, valid,        offsets, found,
                             rows,   centers_rows, taps, width};
  return OnThreads(threads, [&](const Parallel& parallel) {
    return voxax::FindNeighbors(lookup, parallel) ? 0 : kNotSupported;
  });
}

// As voxax::InvertTable.
VOXAX_EXPORT int64_t voxax_host_invert_table(const int32_t* neighbors, int64_t rows, int64_t taps,
                                             int64_t in_rows, int64_t threads,
                                             int32_t* found) {
  if (!Countable(rows) || !Countable(in_rows) || taps < 0) return kNotSupported;
  return OnThreads(threads, [&](const Parallel& parallel) {
    voxax::InvertTable({neighbors, rows, taps}, in_rows, found, parallel);
    return int64_t{0};
  });
}

// As voxax::ListPairs.
VOXAX_EXPORT int64_t voxax_host_list_pairs(const int32_t* neighbors, int64_t rows, int64_t taps,
                                           int64_t places, int64_t threads, int32_t* pairs,
                                           int32_t* starts) {
  if (!Countable(rows) || taps < 0 || !Countable(places) || places < rows * taps) {
    return kNotSupported;
  }
  return OnThreads(threads, [&](const Parallel& parallel) {
    voxax::ListPairs({neighbors, rows, taps}, places, pairs, starts, parallel);
    return int64_t{0};
  });
}

// As voxax::Cells; `local` and `size` are doubles where `wide`, else floats.
VOXAX_EXPORT int64_t voxax_host_find_cells(const void* local, int64_t wide, int64_t rows,
                                           int64_t axes, const float* scale, const float* inverse,
                                           const int32_t* edge, const void* size, int32_t* cell,
                                           bool* known) {
  if (!Countable(rows) || axes < 1 || axes > 4) return kNotSupported;
  const auto find = [&](auto number) {
    using T = decltype(number);
    voxax::FindCells<T>({static_cast<const T*>(local), rows, axes, scale, inverse, edge,
                         static_cast<const T*>(size), cell, known});
    return int64_t{0};
  };
  return wide ? find(double{}) : find(float{});
}
