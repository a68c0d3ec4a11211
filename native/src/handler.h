// Shared by the functions that XLA calls: checks of shapes, errors, and XLA's threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <string>

#include "operators.h"
#include "pages.h"
#include "parallel.h"
#include "problem.h"
#include "xla/ffi/api/ffi.h"

#define VOXAX_EXPORT __attribute__((visibility("default")))

namespace ffi = xla::ffi;

namespace voxax {

inline ffi::Error Invalid(const std::string& what) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "voxax: " + what);
}

inline bool HasShape(ffi::AnyBuffer::Dimensions dims, std::initializer_list<int64_t> shape) {
  return dims.size() == shape.size() && std::equal(dims.begin(), dims.end(), shape.begin());
}

// Rows are numbered in 32 bits.
inline bool Countable(std::initializer_list<int64_t> rows) {
  return std::all_of(rows.begin(), rows.end(), [](int64_t n) { return n <= INT32_MAX; });
}

inline ffi::Error TooManyRows() { return Invalid("at most 2^31 - 1 rows"); }

inline bool KindOf(ffi::DataType dtype, Kind* kind) {
  switch (dtype) {
    case ffi::DataType::F32:
      *kind = Kind::kFloat32;
      return true;
    case ffi::DataType::F64:
      *kind = Kind::kFloat64;
      return true;
    case ffi::DataType::BF16:
      *kind = Kind::kBFloat16;
      return true;
    case ffi::DataType::F16:
      *kind = Kind::kFloat16;
      return true;
    case ffi::DataType::S32:
      *kind = Kind::kInt32;
      return true;
    case ffi::DataType::U32:
      *kind = Kind::kUInt32;
      return true;
    case ffi::DataType::PRED:
      *kind = Kind::kBool;
      return true;
    default:
      return false;
  }
}

inline bool ElementOf(ffi::DataType dtype, Element* element) {
  Kind kind;
  if (!KindOf(dtype, &kind) || kind > Kind::kBFloat16) return false;
  *element = static_cast<Element>(kind);  // they begin alike
  return true;
}
static_assert(static_cast<int64_t>(Element::kBFloat16) == static_cast<int64_t>(Kind::kBFloat16));

// The memory of a result, which a kernel is about to write.
inline void* Written(ffi::AnyBuffer result) {
  PreferLargePages(result.untyped_data(), static_cast<int64_t>(result.size_bytes()));
  return result.untyped_data();
}

// Runs `call(parallel)` on XLA's threads. If it throws for lack of memory, that is the error.
template <typename Call>
ffi::Error OnPool(ffi::ThreadPool pool, const Call& call) {
  try {
    call(Parallel(pool.num_threads(), [&pool](std::function<void()> task) {
      pool.Schedule(std::move(task));
    }));
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, std::string("voxax: ") + error.what());
  }
}

}  // namespace voxax
