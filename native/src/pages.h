// What the system knows of the memory that results are written to.
#pragma once

#include <cstdint>
#include <vector>

namespace voxax {

// Asks the system to back an array, and what shares a large page with it, with large pages. A program's
// temporaries are new memory in each of its runs, and the system clears a page when it is first
// written: 4 KiB took 2.5 us, as long as a kernel takes to fill 64 KiB of known pages, and 2 MiB took
// 120 us (a virtual machine on an AMD EPYC). It is only a hint, and contents stay.
void PreferLargePages(void* data, int64_t bytes);

struct Span {
  char* begin;
  int64_t bytes;
};

// The parts of [begin, begin + bytes) that may be other than zero, in spans of 1 MiB at most: without the
// pages that nobody has written to, which read as zeros and take no memory. `begin` is inside of one
// allocation of memory without a file, in which the byte before it was written. Where the system does not tell, all of it.
std::vector<Span> SpansToClear(char* begin, int64_t bytes);

}  // namespace voxax
