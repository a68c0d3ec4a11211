// The size of this processor's last cache.
#pragma once

#include <cstdint>

namespace voxax {

// Bytes of the last level, or 0 if the system does not report it.
int64_t LastCacheBytes();

}  // namespace voxax
