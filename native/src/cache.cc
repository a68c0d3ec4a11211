#include "cache.h"

#include <fstream>
#include <string>

namespace voxax {
namespace {

// Linux lists the caches of a processor from the nearest to the last, such as "32768K". sysconf is not
// reliable: on a virtual machine with 32 MB of an AMD EPYC's cache it returned 384 MB.
int64_t Read() {
  int64_t bytes = 0;
  for (int level = 0; level < 8; ++level) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(level) + "/size");
    int64_t size = 0;
    char unit = 0;
    if (!(file >> size)) break;
    file >> unit;
    bytes = unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : size;
  }
  return bytes;
}

}  // namespace

int64_t LastCacheBytes() {
  static const int64_t bytes = Read();
  return bytes;
}

}  // namespace voxax
