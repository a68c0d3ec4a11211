// Threads for callers that have no pool of their own.
#pragma once

#include "parallel.h"

namespace voxax {

// Work on at most so many threads, the caller's among them. The others are started at the first use
// and wait for work; a forked process starts its own.
Parallel OwnThreads(int64_t threads);

}  // namespace voxax
