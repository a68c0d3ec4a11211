// Compiled without fused multiplications and additions: each product below is rounded, as NumPy
// rounds it.
#include "cells.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace voxax {
namespace {

constexpr int kUnit = 28;
// From here on float32 is too coarse, and float64 is not rounded to float32.
template <typename T>
constexpr float kReach = std::is_same_v<T, double> ? 1 << 17 : 1 << 22;
constexpr double kLimit = 1 << 30;
// Added and subtracted again, it rounds what is at most 2^22 to whole numbers, ties to even.
constexpr float kWhole = 3 << 22;
// Numbers at a time: whole rows of 1 to 4 axes.
constexpr int64_t kBlock = 480;

template <typename To, typename From>
To Bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Of float64 that is not rounded to float32; whether there is one.
bool FarCell(double local, double size, int32_t* cell) {
  double number = std::rint(local / size);
  // The power of two below the position: two spacings of float64 are 2^-51 of it.
  const double power = Bits<double>(Bits<int64_t>(local) & (int64_t{0x7FF} << 52));
  number -= number * size > local + power * 0x1p-51;
  const bool inside = number >= -kLimit && number < kLimit;
  *cell = inside ? static_cast<int32_t>(number) : 0;
  return inside;
}

}  // namespace

template <typename T>
void FindCells(const Cells<T>& p) {
  float scale[kBlock], inverse[kBlock];
  int32_t edge[kBlock];
  for (int64_t i = 0; i < kBlock; ++i) {
    scale[i] = p.scale[i % p.axes];
    inverse[i] = p.inverse[i % p.axes];
    edge[i] = p.edge[i % p.axes];
  }
  int32_t near[kBlock];
  const int64_t total = p.rows * p.axes;
  for (int64_t begin = 0; begin < total; begin += kBlock) {
    const int64_t count = std::min(kBlock, total - begin);
    const T* local = p.local + begin;
    int32_t* cell = p.cell + begin;
    int32_t near_ones = 0;
    for (int64_t i = 0; i < count; ++i) {
      float x = static_cast<float>(local[i]) * scale[i];
      near[i] = std::fabs(x) < kReach<T>;
      near_ones += near[i];
      // No && and no ||, so that the loop becomes one over vectors.
      x = (near[i] & (std::fabs(x) >= std::numeric_limits<float>::min())) ? x : 0.0f;
      const int32_t number = static_cast<int32_t>((x * inverse[i] + kWhole) - kWhole);
      int32_t whole = static_cast<int32_t>(x);
      whole -= static_cast<float>(whole) > x;
      // Without a sign, so that sums and products wrap around.
      const uint32_t fixed = (static_cast<uint32_t>(whole) << kUnit) +
                             static_cast<uint32_t>(static_cast<int32_t>(
                                 (x - static_cast<float>(whole)) * (1 << kUnit)));
      const int32_t bits = Bits<int32_t>(x);
      const float power = Bits<float>((bits + (bits >> 31)) & 0x7F800000);
      const auto room = static_cast<uint32_t>(static_cast<int32_t>(power * 18));  // 9 / 16
      const auto above = static_cast<int32_t>(
          fixed - static_cast<uint32_t>(number) * static_cast<uint32_t>(edge[i]) + room);
      const int32_t found = number - (above < 0) + (above >= edge[i]);
      cell[i] = number == 0 ? -(x < 0) : found;
    }
    bool* known = p.known + begin / p.axes;
    if (near_ones == count) {
      std::fill_n(known, count / p.axes, true);
      continue;
    }
    if constexpr (std::is_same_v<T, double>) {
      for (int64_t i = 0; i < count; ++i) {
        if (!near[i]) near[i] = FarCell(local[i], p.size[i % p.axes], cell + i);
      }
    }
    for (int64_t row = 0; row < count / p.axes; ++row) {
      known[row] = std::all_of(near + row * p.axes, near + (row + 1) * p.axes,
                               [](int32_t is_near) { return is_near; });
    }
  }
}

template void FindCells(const Cells<float>&);
template void FindCells(const Cells<double>&);

}  // namespace voxax
