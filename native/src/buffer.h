// Aligned scratch memory without initialization.
#pragma once

#include <cstdlib>
#include <new>

#include "pages.h"

#ifndef VOXAX_ISA
#define VOXAX_ISA baseline
#endif

namespace voxax::VOXAX_ISA {

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size) { Reserve(size); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  // Holds `size` elements; earlier values are lost when it grows.
  void Reserve(size_t size) {
    if (size <= size_) return;
    std::free(data_);
    size_ = 0;
    const size_t bytes = (size * sizeof(T) + 63) / 64 * 64;
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
    if (data_ == nullptr) throw std::bad_alloc();
    PreferLargePages(data_, static_cast<int64_t>(bytes));
    size_ = size;
  }

  T* get() const { return data_; }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace voxax::VOXAX_ISA
