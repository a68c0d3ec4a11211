// Searches among points: the nearest ones, and those within a radius.
#pragma once

#include <cstdint>

#include "parallel.h"

namespace voxax {

// Points, and the scene of each; those of a negative scene are not there.
template <typename T>
struct Cloud {
  const T* positions;    // [count, axes], finite where the point is there
  const int32_t* scene;  // [count]
  int64_t count;
};

template <typename T>
struct PointSearch {
  Cloud<T> points, queries;  // fewer than 2^31 each
  int64_t axes;              // at least 1
  T radius;                  // may be infinite
  int64_t nearest;           // how many are listed, at least 1
  int32_t* rows;   // [queries.count, nearest]: nearest first, of equal ones the earlier row, then -1
  int32_t* found;  // [queries.count]: points of the query's scene within the radius
};

// Instantiated for float and double.
template <typename T>
void SearchPoints(const PointSearch<T>& p, const Parallel& parallel);

}  // namespace voxax
