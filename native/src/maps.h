// Kernel maps: searches in sorted coordinate lists.
#pragma once

#include <cstdint>

#include "parallel.h"

namespace voxax {

struct Lookup {
  const int32_t* sorted;   // [rows, width], lexicographic
  const int32_t* centers;  // [centers_rows, width], batch index first
  const bool* valid;       // [centers_rows]; others find nothing. NULL: all are
  const int32_t* offsets;  // [taps, width - 1], in any order
  int32_t* found;          // [centers_rows, taps]: the row of center + offset, or -1
  int64_t rows, centers_rows, taps, width;
};

// False where the width is not 2 to 5. Sums beyond 32 bits find nothing.
bool FindNeighbors(const Lookup& p, const Parallel& parallel);

}  // namespace voxax
