// The channels of depthwise products, split into ranges of vectors.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "simd.h"

namespace voxax::VOXAX_ISA {

// Vectors of channels that are worked on at a time, at most: half of the registers hold their sums.
inline constexpr int kMostChannelVectors = kRegisters / 2;

// A range of channels: whole vectors, or fewer channels than one has.
struct Channels {
  int64_t begin, width;
  int vectors;  // 0: less than one
};

// Ranges that make up [0, count), each of at most so many vectors, a power of two.
template <typename T>
std::vector<Channels> SplitChannels(int64_t count, int most_vectors = kMostChannelVectors) {
  constexpr int64_t lanes = Simd<T>::kLanes;
  std::vector<Channels> ranges;
  for (int64_t begin = 0; begin < count;) {
    const int64_t left = (count - begin) / lanes;
    int vectors = most_vectors;
    while (vectors > left) vectors /= 2;
    const int64_t width = vectors > 0 ? vectors * lanes : count - begin;
    ranges.push_back({begin, width, vectors});
    begin += width;
  }
  return ranges;
}

// Calls of(std::integral_constant<int, vectors>).
template <typename Of>
void ForVectors(int vectors, const Of& of) {
  switch (vectors) {
    case 16:
      return of(std::integral_constant<int, 16>());
    case 8:
      return of(std::integral_constant<int, 8>());
    case 4:
      return of(std::integral_constant<int, 4>());
    case 2:
      return of(std::integral_constant<int, 2>());
    case 1:
      return of(std::integral_constant<int, 1>());
    default:
      return of(std::integral_constant<int, 0>());
  }
}

}  // namespace voxax::VOXAX_ISA
