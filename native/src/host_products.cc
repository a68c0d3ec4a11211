// The products and the kernel maps of strided layers for plain arrays, called through ctypes.
//
// Shapes are checked in voxax/_native/host_products.py; maps may name any row.
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "cache.h"
#include "host_call.h"
#include "kernels.h"
#include "reach.h"
#include "rows.h"
#include "split.h"

using namespace voxax;

namespace {

// Rows that occur once each and are not outside.
bool Distinct(const int32_t* rows, int64_t count) {
  if (rows == nullptr) return true;
  std::vector<bool> seen(count, false);
  for (int64_t i = 0; i < count; ++i) {
    if (rows[i] < 0 || rows[i] >= count || seen[rows[i]]) return false;
    seen[rows[i]] = true;
  }
  return true;
}

}  // namespace

// As voxax::Product, of one group; strides: those of taps, depth and columns.
VOXAX_EXPORT int64_t voxax_host_product(const void* x, int64_t in_rows, const void* w,
                                        const int32_t* neighbors, const int32_t* rows,
                                        int64_t out_rows, int64_t taps, int64_t depth,
                                        int64_t columns, int64_t element, const void* bias,
                                        int64_t relu, const int64_t* strides,
                                        int64_t reversed, int64_t tile, int64_t threads,
                                        void* y) {
  Product p{};
  if (!ElementOf(element, &p.element) || !Countable(in_rows) || !Countable(out_rows)) {
    return kNotSupported;
  }
  p.x = x;
  p.w = w;
  p.neighbors = neighbors;
  p.rows = rows;
  p.y = y;
  p.in_rows = in_rows;
  p.out_rows = out_rows;
  p.taps = taps;
  p.groups = 1;
  p.depth = depth;
  p.columns = columns;
  p.bias = bias;
  p.relu = relu != 0;
  p.tap_stride = strides[0];
  p.depth_stride = strides[1];
  p.column_stride = strides[2];
  p.reversed = reversed != 0;
  p.tile = TileOf(tile, out_rows);
  p.last_cache = LastCacheBytes();
  return OnThreads(threads, [&](const Parallel& parallel, BadRow* bad) {
    if (!Distinct(rows, out_rows)) {
      bad->store(-2);
      return;
    }
    BestKernels().product(p, parallel, bad);
  });
}

// As voxax::WeightProduct, of one group.
VOXAX_EXPORT int64_t voxax_host_weight_product(const void* x, int64_t in_rows, const void* dy,
                                               const int32_t* neighbors, const int32_t* rows,
                                               int64_t out_rows, int64_t taps, int64_t depth,
                                               int64_t columns, int64_t element, int64_t tile,
                                               int64_t threads, void* dw) {
  WeightProduct p{};
  if (!ElementOf(element, &p.element) || !Countable(in_rows) || !Countable(out_rows)) {
    return kNotSupported;
  }
  p.x = x;
  p.dy = dy;
  p.neighbors = neighbors;
  p.rows = rows;
  p.dw = dw;
  p.in_rows = in_rows;
  p.out_rows = out_rows;
  p.taps = taps;
  p.groups = 1;
  p.depth = depth;
  p.columns = columns;
  p.tile = TileOf(tile, out_rows);
  return OnThreads(threads, [&](const Parallel& parallel, BadRow* bad) {
    if (!Distinct(rows, out_rows)) {
      bad->store(-2);
      return;
    }
    BestKernels().weight_product(p, parallel, bad);
  });
}

// As voxax::Extremes.
VOXAX_EXPORT int64_t voxax_host_extreme_rows(const void* x, int64_t in_rows,
                                             const int32_t* neighbors, int64_t out_rows,
                                             int64_t taps, int64_t channels, int64_t element,
                                             int64_t largest, int64_t tile, int64_t threads,
                                             int32_t* found) {
  Extremes p{};
  if (!ElementOf(element, &p.element) || !Countable(in_rows) || !Countable(out_rows)) {
    return kNotSupported;
  }
  p.x = x;
  p.neighbors = neighbors;
  p.found = found;
  p.in_rows = in_rows;
  p.out_rows = out_rows;
  p.taps = taps;
  p.channels = channels;
  p.largest = largest != 0;
  p.tile = TileOf(tile, out_rows);
  return OnThreads(threads, [&](const Parallel& parallel, BadRow* bad) {
    BestKernels().extremes(p, parallel, bad);
  });
}

// As voxax::FindReached. Returns the number of outputs and, in `found`, what the next function takes.
VOXAX_EXPORT int64_t voxax_host_find_reached(const int32_t* coords, int64_t rows, int64_t ndim,
                                             const int64_t* sizes, int64_t transposed,
                                             Reached** found) {
  if (!Countable(rows) || ndim < 1 || ndim > kMostAxes) return kNotSupported;
  try {
    *found = new Reached(FindReached({coords, rows, ndim, sizes, transposed != 0}));
    return (*found)->count();
  } catch (const std::length_error&) {
    return kNotSupported;
  } catch (const std::exception&) {
    return kNoMemory;
  }
}

// As voxax::Reached::Write, unless `out` is null; frees what was found.
VOXAX_EXPORT int64_t voxax_host_write_reached(Reached* found, int32_t* out, int32_t* neighbors) {
  if (out != nullptr) found->Write(out, neighbors);
  delete found;
  return 0;
}

// table [rows, taps] names places in an order, each of them or -1; it then names rows: place i is row
// order[i].
VOXAX_EXPORT int64_t voxax_host_renumber_table(int32_t* table, int64_t rows, int64_t taps,
                                               const int32_t* order, int64_t threads) {
  if (!Countable(rows) || taps < 0) return kNotSupported;
  return OnThreads(threads, [&](const Parallel& parallel, BadRow*) {
    // Behind a place for -1, so that there is no branch, which no predictor could learn.
    std::vector<int32_t> row_of(rows + 1);
    row_of[0] = -1;
    std::copy_n(order, rows, row_of.begin() + 1);
    const Split split(rows, parallel);
    split.Run(parallel, [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t i = begin * taps; i < end * taps; ++i) table[i] = row_of[table[i] + 1];
    });
  });
}
