// Rows of a matrix that are fetched from front to end while others are worked on.
#pragma once

#include <algorithm>
#include <cstdint>

namespace voxax::VOXAX_ISA {

// To be read, into the second-level cache; or to be written, into the first.
template <bool kWritten = false>
class Frontier {
 public:
  Frontier(const void* base, int64_t row_bytes)
      : base_(static_cast<const char*>(base)), row_bytes_(row_bytes) {}

  // What lies before `row` has to be there soon; leaps where rows are in no order.
  void MoveTo(int64_t row, int64_t most_rows) {
    end_ = row * row_bytes_;
    at_ = std::max(at_, end_ - most_rows * row_bytes_);
  }
  void Fetch(int64_t lines) {
    for (; lines > 0 && at_ < end_; --lines, at_ += 64) {
      if constexpr (kWritten) {
        __builtin_prefetch(base_ + at_, 1, 3);
      } else {
        __builtin_prefetch(base_ + at_, 0, 2);
      }
    }
  }
  int64_t lines() const { return (end_ - at_ + 63) / 64; }

 private:
  const char* base_;
  int64_t row_bytes_, at_ = 0, end_ = 0;
};

}  // namespace voxax::VOXAX_ISA
