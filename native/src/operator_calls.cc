// The two ways into every operator of operators.h: a handler for XLA, and a function for ctypes.
#include "handler.h"
#include "kernels.h"
#include "operators.h"
#include "threads.h"

namespace voxax {
namespace {

// The dtypes that no operator has are known as none.
Array ArrayOf(ffi::AnyBuffer buffer, void* data) {
  const auto dims = buffer.dimensions();
  Kind kind = Kind::kKinds;
  KindOf(buffer.element_type(), &kind);
  return {kind, data, {dims.begin(), dims.end()}};
}

// Returns what does not fit, or null.
const char* Run(OperatorPlace place, const Call& call, const Parallel& parallel) {
  for (const auto* arrays : {&call.in, &call.out}) {
    for (const Array& array : *arrays) {
      if (!array.shape.empty() && array.shape[0] > INT32_MAX) return "at most 2^31 - 1 rows";
    }
  }
  return BestKernels().operators[place](call, parallel);
}

ffi::Error FromXla(OperatorPlace place, const char* name, ffi::ThreadPool pool,
                   ffi::RemainingArgs args, ffi::RemainingRets rets,
                   ffi::Span<const int64_t> sizes, ffi::Span<const double> numbers) {
  const char* wrong = nullptr;
  ffi::Error error = OnPool(pool, [&](const Parallel& parallel) {
    Call call;
    call.sizes.assign(sizes.begin(), sizes.end());
    call.numbers.assign(numbers.begin(), numbers.end());
    for (size_t i = 0; i < args.size(); ++i) {
      const ffi::AnyBuffer given = *args.get<ffi::AnyBuffer>(i);
      call.in.push_back(ArrayOf(given, given.untyped_data()));
    }
    for (size_t i = 0; i < rets.size(); ++i) {
      const ffi::AnyBuffer result = **rets.get<ffi::AnyBuffer>(i);
      call.out.push_back(ArrayOf(result, Written(result)));
    }
    wrong = Run(place, call, parallel);
  });
  if (error.failure() || wrong == nullptr) return error;
  return Invalid(std::string(name) + " takes " + wrong);
}

// shapes: for each array its kind, its rank and its shape. Returns 0, -1 without memory, -2 for arrays
// that do not fit.
int64_t FromHost(OperatorPlace place, void* const* data, const int64_t* shapes, int64_t in,
                 int64_t out, const int64_t* sizes, int64_t size_count, const double* numbers,
                 int64_t number_count, int64_t threads) {
  try {
    Call call;
    call.sizes.assign(sizes, sizes + size_count);
    call.numbers.assign(numbers, numbers + number_count);
    for (int64_t i = 0; i < in + out; ++i) {
      const int64_t kind = *shapes++, rank = *shapes++;
      if (kind < 0 || kind >= static_cast<int64_t>(Kind::kKinds)) return -2;
      (i < in ? call.in : call.out).push_back({static_cast<Kind>(kind), data[i], {shapes, shapes + rank}});
      shapes += rank;
    }
    return Run(place, call, OwnThreads(threads)) == nullptr ? 0 : -2;
  } catch (const std::exception&) {
    return -1;
  }
}

}  // namespace
}  // namespace voxax

#define VOXAX_DOORS(NAME)                                                                            \
  namespace voxax {                                                                                  \
  ffi::Error Call_##NAME(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,     \
                         ffi::Span<const int64_t> sizes, ffi::Span<const double> numbers) {          \
    return FromXla(kPlaceOf_##NAME, #NAME, pool, args, rets, sizes, numbers);                        \
  }                                                                                                  \
  }                                                                                                  \
  extern "C" VOXAX_EXPORT XLA_FFI_Error* voxax_##NAME(XLA_FFI_CallFrame*);                           \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(voxax_##NAME, voxax::Call_##NAME,                                    \
                                ffi::Ffi::Bind()                                                     \
                                    .Ctx<ffi::ThreadPool>()                                          \
                                    .RemainingArgs()                                                 \
                                    .RemainingRets()                                                 \
                                    .Attr<ffi::Span<const int64_t>>("sizes")                         \
                                    .Attr<ffi::Span<const double>>("numbers"));                      \
  extern "C" VOXAX_EXPORT int64_t voxax_host_##NAME(                                                 \
      void* const* data, const int64_t* shapes, int64_t in, int64_t out, const int64_t* sizes,       \
      int64_t size_count, const double* numbers, int64_t number_count, int64_t threads) {            \
    return voxax::FromHost(voxax::kPlaceOf_##NAME, data, shapes, in, out, sizes, size_count,         \
                           numbers, number_count, threads);                                          \
  }
VOXAX_OPERATORS(VOXAX_DOORS)
