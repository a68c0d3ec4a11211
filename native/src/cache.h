// How much this processor's caches hold.
#pragma once

#include <cstdint>

namespace voxax {

// Bytes of the last level, or 0 where the system does not tell.
int64_t LastCacheBytes();

}  // namespace voxax
