// Threads for callers that have no pool of their own.
#pragma once

#include "parallel.h"

namespace voxax {

// Work on at most so many threads, the caller's among them. Where PyTorch has loaded GNU's OpenMP,
// they are that library's, which PyTorch computes with too: its threads spin for a while after work,
// and would take the processors from others. Else they are started at the first use and wait for
// work. A forked process starts its own.
Parallel OwnThreads(int64_t threads);

}  // namespace voxax
