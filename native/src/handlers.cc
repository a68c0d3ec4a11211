// The functions that XLA calls: checks of shapes and dtypes, then the kernels.
#include <cstdint>
#include <string>

#include "cache.h"
#include "handler.h"
#include "kernels.h"
#include "maps.h"

namespace voxax {
namespace {

// A tile with more rows than the problem has would only cost memory.
int64_t RowsOfTile(int64_t asked, int64_t rows) {
  return std::min(asked, std::max<int64_t>(rows, 1));
}

// `side`: of the relation, whose rows the map names.
template <typename Call>
ffi::Error Guarded(ffi::ThreadPool pool, int64_t in_rows, const Call& call,
                   const std::string& side = "input") {
  BadRow bad{-1};
  ffi::Error error =
      OnPool(pool, [&](const Parallel& parallel) { call(parallel, &bad); });
  if (const int64_t row = bad.load(); error.success() && row != -1) {
    return Invalid("the kernel map names " + side + " row " + std::to_string(row) + " of " +
                   std::to_string(in_rows) + ": rows are -1 or 0 to one less");
  }
  return error;
}

ffi::Error RunProductCall(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer w,
                          ffi::Buffer<ffi::S32> neighbors, ffi::Result<ffi::AnyBuffer> y,
                          int64_t groups, int64_t tile, bool transposed, bool reversed) {
  Product p{};
  if (!ElementOf(x.element_type(), &p.element) || w.element_type() != x.element_type() ||
      y->element_type() != x.element_type()) {
    return Invalid("features, weights and results are of one dtype: float32, float64 or bfloat16");
  }
  const auto table = neighbors.dimensions();
  if (x.dimensions().size() != 2 || table.size() != 2 || y->dimensions().size() != 2 ||
      groups < 1 || tile < 1 || x.dimensions()[1] % groups || y->dimensions()[1] % groups) {
    return Invalid("features [N, C_in], map [M, K], results [M, C_out], C divisible by groups");
  }
  if (!Countable({x.dimensions()[0], table[0]})) return TooManyRows();
  p.in_rows = x.dimensions()[0];
  p.out_rows = table[0];
  p.taps = table[1];
  p.groups = groups;
  p.depth = x.dimensions()[1] / groups;
  p.columns = y->dimensions()[1] / groups;
  const int64_t first = transposed ? p.columns : p.depth;
  const int64_t second = transposed ? p.depth : p.columns;
  if (!HasShape(w.dimensions(), {p.taps, groups, first, second}) ||
      y->dimensions()[0] != p.out_rows) {
    return Invalid("weights are [K, groups, C_in / groups, C_out / groups]");
  }
  p.x = x.untyped_data();
  p.w = w.untyped_data();
  p.neighbors = neighbors.typed_data();
  p.y = Written(*y);
  p.tap_stride = groups * p.depth * p.columns;
  p.depth_stride = transposed ? 1 : p.columns;
  p.column_stride = transposed ? p.depth : 1;
  p.reversed = reversed;
  p.tile = RowsOfTile(tile, p.out_rows);
  p.last_cache = LastCacheBytes();
  return Guarded(pool, p.in_rows, [&](const Parallel& parallel, BadRow* bad) {
    BestKernels().product(p, parallel, bad);
  });
}

ffi::Error RunWeightProductCall(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer dy,
                                ffi::Buffer<ffi::S32> neighbors, ffi::Result<ffi::AnyBuffer> dw,
                                int64_t tile) {
  WeightProduct p{};
  if (!ElementOf(x.element_type(), &p.element) || dy.element_type() != x.element_type() ||
      dw->element_type() != x.element_type()) {
    return Invalid("features and gradients are of one dtype: float32, float64 or bfloat16");
  }
  const auto table = neighbors.dimensions();
  const auto out = dw->dimensions();
  if (x.dimensions().size() != 2 || dy.dimensions().size() != 2 || table.size() != 2 ||
      out.size() != 4 || out[0] != table[1] || out[1] < 1 || tile < 1 ||
      dy.dimensions()[0] != table[0] || x.dimensions()[1] != out[1] * out[2] ||
      dy.dimensions()[1] != out[1] * out[3]) {
    return Invalid("features [N, C_in], gradients [M, C_out], map [M, K], "
                   "result [K, groups, C_in / groups, C_out / groups]");
  }
  if (!Countable({x.dimensions()[0], table[0]})) return TooManyRows();
  p.in_rows = x.dimensions()[0];
  p.out_rows = table[0];
  p.taps = table[1];
  p.groups = out[1];
  p.depth = out[2];
  p.columns = out[3];
  p.x = x.untyped_data();
  p.dy = dy.untyped_data();
  p.neighbors = neighbors.typed_data();
  p.dw = Written(*dw);
  p.tile = RowsOfTile(tile, p.out_rows);
  return Guarded(pool, p.in_rows, [&](const Parallel& parallel, BadRow* bad) {
    BestKernels().weight_product(p, parallel, bad);
  });
}

// Forward and dgrad, where `weights` are [K, C]; wgrad, where they are dy [M, C].
ffi::Error RunDepthwiseCall(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer weights,
                            ffi::Buffer<ffi::S32> neighbors, ffi::Result<ffi::AnyBuffer> y,
                            int64_t tile, bool wgrad, bool reversed) {
  Depthwise p{};
  if (!ElementOf(x.element_type(), &p.element) || weights.element_type() != x.element_type() ||
      y->element_type() != x.element_type()) {
    return Invalid("features, weights and results are of one dtype: float32, float64 or bfloat16");
  }
  const auto table = neighbors.dimensions();
  if (x.dimensions().size() != 2 || table.size() != 2 || tile < 1) {
    return Invalid("features [N, C], map [M, K]");
  }
  if (!Countable({x.dimensions()[0], table[0]})) return TooManyRows();
  p.in_rows = x.dimensions()[0];
  p.channels = x.dimensions()[1];
  p.out_rows = table[0];
  p.taps = table[1];
  const int64_t weight_rows = wgrad ? p.out_rows : p.taps;
  const int64_t result_rows = wgrad ? p.taps : p.out_rows;
  if (!HasShape(weights.dimensions(), {weight_rows, p.channels}) ||
      !HasShape(y->dimensions(), {result_rows, p.channels})) {
    return Invalid("weights [K, C], gradients and results [M, C]");
  }
  p.x = x.untyped_data();
  p.w = weights.untyped_data();
  p.neighbors = neighbors.typed_data();
  p.y = Written(*y);
  p.reversed = reversed;
  p.tile = RowsOfTile(tile, p.out_rows);
  p.last_cache = LastCacheBytes();
  return Guarded(pool, p.in_rows, [&](const Parallel& parallel, BadRow* bad) {
    const Kernels& kernels = BestKernels();
    (wgrad ? kernels.depthwise_weight : kernels.depthwise)(p, parallel, bad);
  });
}

// dgrad and wgrad at once.
ffi::Error RunDepthwiseGradientsCall(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer x,
                                     ffi::AnyBuffer w, ffi::Buffer<ffi::S32> neighbors,
                                     ffi::Result<ffi::AnyBuffer> dx,
                                     ffi::Result<ffi::AnyBuffer> dw, bool reversed) {
  DepthwiseGradients p{};
  const auto dtype = dy.element_type();
  if (!ElementOf(dtype, &p.element) || x.element_type() != dtype || w.element_type() != dtype ||
      dx->element_type() != dtype || dw->element_type() != dtype) {
    return Invalid("gradients, features and weights are of one dtype: float32, float64 or bfloat16");
  }
  const auto table = neighbors.dimensions();
  if (dy.dimensions().size() != 2 || table.size() != 2) {
    return Invalid("gradients [M, C], map [N, K]");
  }
  if (!Countable({dy.dimensions()[0], table[0]})) return TooManyRows();
  p.out_rows = dy.dimensions()[0];
  p.channels = dy.dimensions()[1];
  p.in_rows = table[0];
  p.taps = table[1];
  if (!HasShape(x.dimensions(), {p.in_rows, p.channels}) ||
      !HasShape(dx->dimensions(), {p.in_rows, p.channels}) ||
      !HasShape(w.dimensions(), {p.taps, p.channels}) ||
      !HasShape(dw->dimensions(), {p.taps, p.channels})) {
    return Invalid("features and their gradients [N, C], weights and theirs [K, C]");
  }
  p.dy = dy.untyped_data();
  p.x = x.untyped_data();
  p.w = w.untyped_data();
  p.neighbors = neighbors.typed_data();
  p.dx = Written(*dx);
  p.dw = Written(*dw);
  p.reversed = reversed;
  p.last_cache = LastCacheBytes();
  const auto call = [&](const Parallel& parallel, BadRow* bad) {
    BestKernels().depthwise_gradients(p, parallel, bad);
  };
  return Guarded(pool, p.out_rows, call, "output");
}

ffi::Error RunExtremeRowsCall(ffi::ThreadPool pool, ffi::AnyBuffer x,
                              ffi::Buffer<ffi::S32> neighbors,
                              ffi::Result<ffi::Buffer<ffi::S32>> found, int64_t tile,
                              bool largest) {
  Extremes p{};
  const auto table = neighbors.dimensions();
  if (!ElementOf(x.element_type(), &p.element)) {
    return Invalid("features are float32, float64 or bfloat16");
  }
  if (x.dimensions().size() != 2 || table.size() != 2 || tile < 1 ||
      !HasShape(found->dimensions(), {table[0], x.dimensions()[1]})) {
    return Invalid("features [N, C], map [M, K], result [M, C]");
  }
  if (!Countable({x.dimensions()[0], table[0]})) return TooManyRows();
  p.x = x.untyped_data();
  p.neighbors = neighbors.typed_data();
  p.found = found->typed_data();
  p.in_rows = x.dimensions()[0];
  p.out_rows = table[0];
  p.taps = table[1];
  p.channels = x.dimensions()[1];
  p.largest = largest;
  p.tile = RowsOfTile(tile, p.out_rows);
  return Guarded(pool, p.in_rows, [&](const Parallel& parallel, BadRow* bad) {
    BestKernels().extremes(p, parallel, bad);
  });
}

ffi::Error RunFindNeighborsCall(ffi::ThreadPool pool, ffi::Buffer<ffi::S32> sorted,
                                ffi::Buffer<ffi::S32> centers, ffi::Buffer<ffi::PRED> valid,
                                ffi::Buffer<ffi::S32> offsets,
                                ffi::Result<ffi::Buffer<ffi::S32>> found) {
  const auto list = sorted.dimensions(), taps = offsets.dimensions();
  if (list.size() != 2 || taps.size() != 2 || centers.dimensions().size() != 2 ||
      centers.dimensions()[1] != list[1] || taps[1] + 1 != list[1] ||
      !HasShape(valid.dimensions(), {centers.dimensions()[0]}) ||
      !HasShape(found->dimensions(), {centers.dimensions()[0], taps[0]})) {
    return Invalid("coordinates [N, 1 + D] and [M, 1 + D], valid [M], offsets [K, D]");
  }
  if (!Countable({list[0], centers.dimensions()[0], taps[0]})) return TooManyRows();
  const Lookup lookup{sorted.typed_data(),       centers.typed_data(), valid.typed_data(),
                      offsets.typed_data(),      found->typed_data(),  list[0],
                      centers.dimensions()[0],   taps[0],              list[1]};
  bool known = true;
  ffi::Error error = Guarded(pool, lookup.rows, [&](const Parallel& parallel, BadRow*) {
    known = FindNeighbors(lookup, parallel);
  });
  return known ? error : Invalid("coordinates have 1 to 4 axes behind the batch index");
}

}  // namespace
}  // namespace voxax

extern "C" VOXAX_EXPORT XLA_FFI_Error* voxax_product(XLA_FFI_CallFrame*);
extern "C" VOXAX_EXPORT XLA_FFI_Error* voxax_weight_product(XLA_FFI_CallFrame*);
extern "C" VOXAX_EXPORT XLA_FFI_Error* voxax_depthwise(XLA_FFI_CallFrame*);
extern "C" VOXAX_EXPORT XLA_FFI_Error* voxax_depthwise_gradients(XLA_FFI_CallFrame*);
extern "C" VOXAX_EXPORT XLA_FFI_Error* voxax_extreme_rows(XLA_FFI_CallFrame*);
extern "C" VOXAX_EXPORT XLA_FFI_Error* voxax_find_neighbors(XLA_FFI_CallFrame*);

XLA_FFI_DEFINE_HANDLER_SYMBOL(voxax_product, voxax::RunProductCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("groups")
                                  .Attr<int64_t>("tile")
                                  .Attr<bool>("transposed")
                                  .Attr<bool>("reversed"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(voxax_weight_product, voxax::RunWeightProductCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("tile"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(voxax_depthwise, voxax::RunDepthwiseCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("tile")
                                  .Attr<bool>("wgrad")
                                  .Attr<bool>("reversed"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(voxax_depthwise_gradients, voxax::RunDepthwiseGradientsCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<bool>("reversed"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(voxax_extreme_rows, voxax::RunExtremeRowsCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Attr<int64_t>("tile")
                                  .Attr<bool>("largest"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(voxax_find_neighbors, voxax::RunFindNeighborsCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());

// Counts the changes of what Python (_ABI in voxax/_native) and this library expect of each other.
extern "C" VOXAX_EXPORT int voxax_abi() { return 12; }

// The interface that this file was compiled against: Python registers the handlers only where the
// installed jaxlib has the same major version and at least this minor one.
extern "C" VOXAX_EXPORT int voxax_ffi_major() { return XLA_FFI_API_MAJOR; }
extern "C" VOXAX_EXPORT int voxax_ffi_minor() { return XLA_FFI_API_MINOR; }
