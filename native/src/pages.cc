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
constexpr uintptr_t kLargePage = 2 << 20;

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

#if defined(__linux__)
// Adds the pages of [begin, end) that are in memory. False: the system does not tell.
bool AppendPresent(const PageMap& map, char* begin, char* end, std::vector<Span>* spans) {
  static const auto size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  constexpr int64_t kAtOnce = 512;
  uint64_t entries[kAtOnce];
  if (begin == end) return true;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(end) - 1) / size;
  char* at = begin;       // what lies before is in spans, or zero
  char* written = begin;  // the end of what is to be cleared from `at` on
  for (uintptr_t page = reinterpret_cast<uintptr_t>(begin) / size; page <= last;) {
    const int64_t count = std::min<int64_t>(last - page + 1, kAtOnce);
    if (!map.Read(page, count, entries)) return false;
    for (int64_t i = 0; i < count; ++i, ++page) {
      char* const to = std::min(end, reinterpret_cast<char*>((page + 1) * size));
      if (entries[i] & (kPresent | kSwapped)) {
        written = to;
      } else {
        Append(at, written, spans);
        at = written = to;
      }
    }
  }
  Append(at, written, spans);
  return true;
}

// Whether a page that was written is of memory without a file.
bool IsPrivate(const PageMap& map, const char* written) {
  static const auto size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  uint64_t entry;
  return map.Read(reinterpret_cast<uintptr_t>(written) / size, 1, &entry) && (entry & kPresent) &&
         !(entry & kOfFile);
}
#endif

}  // namespace

void PreferLargePages(void* data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
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

std::vector<Span> ReleasePages(char* begin, int64_t bytes) {
  std::vector<Span> spans;
  char* const end = begin + bytes;
#if defined(__linux__)
  const PageMap map;
  // A page of a file that nobody has read yet is not zero, and one that is given back has the file's bytes.
  if (bytes >= kWorthACall && IsPrivate(map, begin - 1)) {
    const auto from = reinterpret_cast<uintptr_t>(begin), to = reinterpret_cast<uintptr_t>(end);
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    uintptr_t first = (from + kLargePage - 1) / kLargePage * kLargePage;
    uintptr_t last = to / kLargePage * kLargePage;
    if (to - from >= 2 * kLargePage) {
      if (first - from >= kLargePage / 2) first = (from + page - 1) / page * page;
      if (to - last >= kLargePage / 2) last = to / page * page;
    }
    const bool released =
        first < last && madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) == 0;
    char* const until = released ? begin + (first - from) : end;
    char* const after = released ? end - (to - last) : end;
    if (AppendPresent(map, begin, until, &spans) && AppendPresent(map, after, end, &spans)) {
      return spans;
    }
    spans.clear();
  }
#endif
  Append(begin, end, &spans);
  return spans;
}

}  // namespace voxax
