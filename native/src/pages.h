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

// Makes [begin, begin + bytes) zeros, but for the spans that it returns, of 1 MiB at most, which the
// caller has to clear. Pages that nobody has written to stay as they are: they read as zeros, and take no
// memory. Large pages are given back to the system, of much padding halves of them too, and become such ones:
// else what arrays of other sizes left in a program's temporaries would stay in memory until its end. What
// is written later into a part of a large page finds small ones, which takes longer than to clear it.
//
// `begin` is inside of one allocation of memory without a file, in which the byte before it was written.
// Where the system does not tell, all of it is returned.
std::vector<Span> ReleasePages(char* begin, int64_t bytes);

}  // namespace voxax
