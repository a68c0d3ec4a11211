#include "pages.h"

#include <algorithm>
#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace voxax {
namespace {

constexpr int64_t kWorthACall = 1 << 20, kLongest = 1 << 20;

#if defined(__linux__)
// A page's entry in /proc/self/pagemap, see the kernel's Documentation/admin-guide/mm/pagemap.rst.
constexpr uint64_t kPresent = uint64_t{1} << 63, kSwapped = uint64_t{1} << 62;
constexpr uint64_t kOfFile = uint64_t{1} << 61;

// The entries of pages, read in order.
class PageMap {
 public:
  // Opened anew for each use: in a forked process an open one would be that of the parent.
  PageMap() : file_(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {}
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;
  ~PageMap() {
    if (file_ >= 0) close(file_);
  }

  bool Read(uintptr_t page, int64_t count, uint64_t* entries) const {
    const auto bytes = static_cast<ssize_t>(count * sizeof(uint64_t));
    return file_ >= 0 &&
           pread(file_, entries, bytes, static_cast<off_t>(page * sizeof(uint64_t))) == bytes;
  }

 private:
  int file_;
};
#endif

void Append(char* begin, char* end, std::vector<Span>* spans) {
  for (; begin < end; begin += spans->back().bytes) {
    spans->push_back({begin, std::min<int64_t>(end - begin, kLongest)});
  }
}

}  // namespace

void PreferLargePages(void* data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kLargePage = 2 << 20;
  if (bytes < kWorthACall) return;
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = address / kLargePage * kLargePage;
  const uintptr_t end = (address + bytes + kLargePage - 1) / kLargePage * kLargePage;
  // An error where a part is no memory of this process; the rest is asked for even so.
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data;
  (void)bytes;
#endif
}

std::vector<Span> SpansToClear(char* begin, int64_t bytes) {
  std::vector<Span> spans;
  char* const end = begin + bytes;
#if defined(__linux__)
  if (bytes >= kWorthACall) {
    static const auto size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const PageMap map;
    constexpr int64_t kAtOnce = 512;
    uint64_t entries[kAtOnce];
    // A page of a file that nobody has read yet is not zero: only where the page before is no such one.
    const uintptr_t before = (reinterpret_cast<uintptr_t>(begin) - 1) / size;
    bool known = map.Read(before, 1, entries) && (entries[0] & kPresent) && !(entries[0] & kOfFile);
    const uintptr_t last = (reinterpret_cast<uintptr_t>(end) - 1) / size;
    char* at = begin;       // what lies before is in spans, or zero
    char* written = begin;  // the end of what is to be cleared from `at` on
    for (uintptr_t page = reinterpret_cast<uintptr_t>(begin) / size; known && page <= last;) {
      const int64_t count = std::min<int64_t>(last - page + 1, kAtOnce);
      known = map.Read(page, count, entries);
      for (int64_t i = 0; known && i < count; ++i, ++page) {
        char* const to = std::min(end, reinterpret_cast<char*>((page + 1) * size));
        if (entries[i] & (kPresent | kSwapped)) {
          written = to;
        } else {
          Append(at, written, &spans);
          at = written = to;
        }
      }
    }
    if (known) {
      Append(at, written, &spans);
      return spans;
    }
    spans.clear();
  }
#endif
  Append(begin, end, &spans);
  return spans;
}

}  // namespace voxax
