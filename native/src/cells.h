// The cell of a position: voxax/geometry/cells.py has the definition, and this has its bits.
#pragma once

#include <cstdint>

namespace voxax {

template <typename T>
struct Cells {
  const T* local;       // [rows, axes], from the lattice's origin; any values
  int64_t rows, axes;   // 1 to 4 axes
  const float* scale;   // [axes] each of these: as in Lattice of cells.py
  const float* inverse;
  const int32_t* edge;
  const T* size;
  int32_t* cell;        // [rows, axes]
  bool* known;          // [rows]
};

// Instantiated for float and double. On the calling thread.
template <typename T>
void FindCells(const Cells<T>& p);

}  // namespace voxax
