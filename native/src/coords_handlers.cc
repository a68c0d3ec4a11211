// The functions on coordinates that XLA calls: checks of shapes, then the work.
#include "handler.h"
#include "points.h"
#include "rows.h"

namespace voxax {
namespace {

using Ints = ffi::Buffer<ffi::S32>;

// Converts `rows` for the sort, or returns an error.
ffi::Error RowsOf(const Ints& buffer, Rows* rows) {
  const auto shape = buffer.dimensions();
  if (shape.size() != 2 || !Sortable(shape[1])) return Invalid("rows are [N, 1 to 5 columns]");
  if (!Countable({shape[0]})) return TooManyRows();
  *rows = Rows{buffer.typed_data(), shape[0], shape[1]};
  return ffi::Error::Success();
}

ffi::Error RunSortRowsCall(ffi::ThreadPool pool, Ints given, ffi::Result<Ints> order) {
  Rows rows;
  if (ffi::Error error = RowsOf(given, &rows); error.failure()) return error;
  if (!HasShape(order->dimensions(), {rows.count})) return Invalid("rows [N, W], order [N]");
  return OnPool(pool, [&](const Parallel& parallel) {
    SortRows(rows, order->typed_data(), parallel);
  });
}

ffi::Error RunUniqueRowsCall(ffi::ThreadPool pool, Ints given, ffi::Result<Ints> coords,
                             ffi::Result<Ints> count, ffi::Result<Ints> num_dropped,
                             ffi::Result<Ints> inverse) {
  Rows rows;
  if (ffi::Error error = RowsOf(given, &rows); error.failure()) return error;
  const auto out = coords->dimensions();
  if (out.size() != 2 || out[1] != rows.width || !HasShape(count->dimensions(), {}) ||
      !HasShape(num_dropped->dimensions(), {}) ||
      !HasShape(inverse->dimensions(), {rows.count})) {
    return Invalid("rows [N, W], coords [capacity, W], two numbers, inverse [N]");
  }
  const Unique unique{rows, coords->typed_data(), inverse->typed_data(), out[0]};
  return OnPool(pool, [&](const Parallel& parallel) {
    const int64_t total = FindUnique(unique, parallel);
    const int64_t kept = std::min(total, unique.capacity);
    *count->typed_data() = static_cast<int32_t>(kept);
    *num_dropped->typed_data() = static_cast<int32_t>(total - kept);
  });
}

ffi::Error RunInvertTableCall(ffi::ThreadPool pool, Ints neighbors, ffi::Result<Ints> found) {
  const auto from = neighbors.dimensions(), to = found->dimensions();
  if (from.size() != 2 || to.size() != 2 || from[1] != to[1]) {
    return Invalid("a map [M, K], its inverse [N, K]");
  }
  if (!Countable({from[0], to[0]})) return TooManyRows();
  return OnPool(pool, [&](const Parallel& parallel) {
    InvertTable({neighbors.typed_data(), from[0], from[1]}, to[0], found->typed_data(), parallel);
  });
}

ffi::Error RunListPairsCall(ffi::ThreadPool pool, Ints neighbors, ffi::Result<Ints> pairs,
                            ffi::Result<Ints> starts) {
  const auto from = neighbors.dimensions(), to = pairs->dimensions();
  if (from.size() != 2 || to.size() != 2 || to[0] != 2 || to[1] < from[0] * from[1] ||
      !HasShape(starts->dimensions(), {from[1] + 1})) {
    return Invalid("a map [M, K], pairs [2, M * K or more], starts [K + 1]");
  }
  if (!Countable({to[1]})) {
    return Invalid(std::to_string(to[1]) + " places for pairs, and 2^31 - 1 can be numbered: use a "
                   "smaller kernel or capacity");
  }
  return OnPool(pool, [&](const Parallel& parallel) {
    ListPairs({neighbors.typed_data(), from[0], from[1]}, to[1], pairs->typed_data(),
              starts->typed_data(), parallel);
  });
}

template <ffi::DataType Type>
ffi::Error SearchOn(ffi::ThreadPool pool, const ffi::AnyBuffer& points, const Ints& scene,
                    const ffi::AnyBuffer& queries, const Ints& own, const ffi::AnyBuffer& radius,
                    ffi::Result<Ints>& rows, ffi::Result<Ints>& found) {
  using T = ffi::NativeType<Type>;
  const auto from = points.dimensions(), around = queries.dimensions();
  PointSearch<T> search{
      {reinterpret_cast<const T*>(points.untyped_data()), scene.typed_data(), from[0]},
      {reinterpret_cast<const T*>(queries.untyped_data()), own.typed_data(), around[0]},
      from[1],
      *reinterpret_cast<const T*>(radius.untyped_data()),
      rows->dimensions()[1],
      rows->typed_data(),
      found->typed_data()};
  return OnPool(pool, [&](const Parallel& parallel) { SearchPoints(search, parallel); });
}

ffi::Error RunSearchPointsCall(ffi::ThreadPool pool, ffi::AnyBuffer points, Ints scene,
                               ffi::AnyBuffer queries, Ints own, ffi::AnyBuffer radius,
                               ffi::Result<Ints> rows, ffi::Result<Ints> found) {
  const auto from = points.dimensions(), around = queries.dimensions(), out = rows->dimensions();
  const auto type = points.element_type();
  if (from.size() != 2 || around.size() != 2 || from[1] != around[1] || from[1] < 1 ||
      out.size() != 2 || out[0] != around[0] || out[1] < 1 ||
      !HasShape(scene.dimensions(), {from[0]}) || !HasShape(own.dimensions(), {around[0]}) ||
      !HasShape(radius.dimensions(), {}) || !HasShape(found->dimensions(), {around[0]}) ||
      queries.element_type() != type || radius.element_type() != type) {
    return Invalid("points [N, D], scenes [N], queries [M, D], theirs [M], a radius; rows [M, k]");
  }
  if (!Countable({from[0], around[0]})) return TooManyRows();
  if (type == ffi::F32) return SearchOn<ffi::F32>(pool, points, scene, queries, own, radius, rows, found);
  if (type == ffi::F64) return SearchOn<ffi::F64>(pool, points, scene, queries, own, radius, rows, found);
  return Invalid("positions are float32 or float64");
}

}  // namespace
}  // namespace voxax

extern "C" VOXAX_EXPORT XLA_FFI_Error* voxax_sort_rows(XLA_FFI_CallFrame*);
extern "C" VOXAX_EXPORT XLA_FFI_Error* voxax_unique_rows(XLA_FFI_CallFrame*);
extern "C" VOXAX_EXPORT XLA_FFI_Error* voxax_invert_table(XLA_FFI_CallFrame*);
extern "C" VOXAX_EXPORT XLA_FFI_Error* voxax_list_pairs(XLA_FFI_CallFrame*);
extern "C" VOXAX_EXPORT XLA_FFI_Error* voxax_search_points(XLA_FFI_CallFrame*);

XLA_FFI_DEFINE_HANDLER_SYMBOL(voxax_search_points, voxax::RunSearchPointsCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(voxax_sort_rows, voxax::RunSortRowsCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(voxax_unique_rows, voxax::RunUniqueRowsCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(voxax_invert_table, voxax::RunInvertTableCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(voxax_list_pairs, voxax::RunListPairsCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());
