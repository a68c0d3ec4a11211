// Every native kernel against plain loops, without Python and XLA: for sanitizers, which then see
// this code alone.
//
// Values are small multiples of 1/4, so that sums are exact in every dtype and order: results must
// be equal to the last bit, for every instruction set and whatever the threads do. Maps and lists
// of rows are random and adversarial, and arrays end where their memory ends.
//
// Usage: voxax_driver [rounds [seed [library]]]. Prints what failed; exits with 0 where nothing did.
// Of a library it checks that it loads, with every symbol that it needs.
#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cells.h"
#include "kernels.h"
#include "maps.h"
#include "operators.h"
#include "pages.h"
#include "points.h"
#include "rows.h"
#include "split.h"

extern "C" const char* voxax_simd();
extern "C" int voxax_use_simd(const char* name);

namespace voxax {
namespace {

using Random = std::mt19937_64;

int64_t Draw(Random& random, int64_t low, int64_t high) {  // both ends included
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

std::atomic<int64_t> failures{0}, checks{0};

void Expect(bool good, const std::string& what) {
  ++checks;
  if (good) return;
  if (++failures <= 20) std::printf("FAILED: %s\n", what.c_str());
}

// ---- threads

class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closing_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  void Schedule(std::function<void()> task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }

 private:
  void Work() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return closing_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  bool closing_ = false;
};

// The ways in which a pool may treat the helpers that it is given.
constexpr int kWays = 5;

template <typename Call>
void Scheduled(int way, Pool& pool, const Call& call) {
  const auto onto_pool = [&pool](std::function<void()> task) { pool.Schedule(std::move(task)); };
  if (way == 0) return call(Parallel(1, onto_pool));
  if (way == 1) return call(Parallel(8, onto_pool));
  if (way == 2) {  // a busy pool: helpers start when everything is over
    std::vector<std::function<void()>> late;
    call(Parallel(4, [&late](std::function<void()> task) { late.push_back(std::move(task)); }));
    for (const auto& task : late) task();
    return;
  }
  if (way == 3) {  // a team, which starts and ends together
    return call(Parallel::OnTeam(4, [](const std::function<void()>& work) {
      std::vector<std::thread> team;
      for (int i = 1; i < 4; ++i) team.emplace_back(work);
      work();
      for (std::thread& thread : team) thread.join();
    }));
  }
  int taken = 0;  // out of memory after the first
  call(Parallel(4, [&](std::function<void()> task) {
    if (taken++) throw std::bad_alloc();
    onto_pool(std::move(task));
  }));
}

void TestParallel(Pool& pool) {
  for (int way = 0; way < kWays; ++way) {
    for (const int64_t units : {0, 1, 2, 7, 1000}) {
      std::vector<int> runs(units, 0);  // each by one thread only, and seen here afterwards
      Scheduled(way, pool, [&](const Parallel& p) { p.Run(units, [&](int64_t i) { ++runs[i]; }); });
      Expect(runs == std::vector<int>(units, 1), "each unit runs once, way " + std::to_string(way));
      for (const int64_t most : {1, 5, 1000}) {
        std::fill(runs.begin(), runs.end(), 0);
        std::atomic<int> odd{0};
        Scheduled(way, pool, [&](const Parallel& p) {
          p.RunStretches(units, most, [&](int64_t begin, int64_t end) {
            odd += end <= begin || end - begin > most;
            for (int64_t i = begin; i < end; ++i) ++runs[i];
          });
        });
        Expect(odd == 0 && runs == std::vector<int>(units, 1), "stretches make up all units");
      }
    }
    std::atomic<int> ran{0};
    bool thrown = false;
    try {
      Scheduled(way, pool, [&](const Parallel& p) {
        p.Run(50, [&](int64_t i) {
          ++ran;
          if (i == 49) throw std::runtime_error("the last unit");
        });
      });
    } catch (const std::runtime_error&) {
      thrown = true;
    }
    Expect(thrown && ran == 50, "an exception is thrown again, after all units");
  }
}

// ---- values

constexpr Element kElements[] = {Element::kFloat32, Element::kFloat64, Element::kBFloat16};

// The nearest value of the element, ties to even.
double Rounded(Element element, double value) {
  if (element == Element::kFloat64) return value;
  if (element == Element::kFloat32) return static_cast<float>(value);
  int exponent;
  const double mantissa = std::frexp(value, &exponent);  // 8 significant bits
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
}

// An array of elements. The memory ends where the last one does; the first is aligned to its size
// and not more.
class Values {
  static constexpr size_t kAlignment = 64;
  struct Release {
    void operator()(char* bytes) const {
      operator delete[](bytes, std::align_val_t{kAlignment});
    }
  };

 public:
  // `aligned`: to 64 bytes, as XLA's buffers are; else one value off.
  Values(Element element, int64_t size, double fill, bool aligned = false)
      : element_(element), size_(size), lead_(aligned ? kAlignment : Width()) {
    bytes_.reset(static_cast<char*>(
        operator new[](lead_ + size * Width(), std::align_val_t{kAlignment})));
    for (int64_t i = 0; i < size; ++i) Set(i, fill);
  }
  static Values Small(Element element, int64_t size, Random& random) {
    Values values(element, size, 0);
    for (int64_t i = 0; i < size; ++i) values.Set(i, Draw(random, -15, 15) / 4.0);
    return values;
  }
  int64_t size() const { return size_; }
  char* data() const { return bytes_.get() + lead_; }
  int64_t Width() const {
    return element_ == Element::kFloat64 ? 8 : element_ == Element::kFloat32 ? 4 : 2;
  }
  double operator[](int64_t i) const {
    const char* at = data() + i * Width();
    if (element_ == Element::kFloat64) return Read<double>(at);
    if (element_ == Element::kFloat32) return Read<float>(at);
    const uint32_t bits = uint32_t{Read<uint16_t>(at)} << 16;
    return Read<float>(reinterpret_cast<const char*>(&bits));
  }
  void Set(int64_t i, double value) {
    char* at = data() + i * Width();
    const float narrow = static_cast<float>(value);
    if (element_ == Element::kFloat64) {
      std::memcpy(at, &value, 8);
    } else if (element_ == Element::kFloat32) {
      std::memcpy(at, &narrow, 4);
    } else {
      std::memcpy(at, reinterpret_cast<const char*>(&narrow) + 2, 2);  // little endian
    }
  }

 private:
  template <typename T>
  static T Read(const char* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }

  Element element_;
  int64_t size_, lead_;
  std::unique_ptr<char, Release> bytes_;
};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// ---- maps

enum MapKind { kRandom, kNone, kToOne, kFull, kOneBad, kSomeBad, kAllBad, kPadded, kMapKinds };

struct Map {
  std::vector<int32_t> rows;  // [out_rows, taps]
  int64_t in_rows;

  bool Has(int64_t i) const { return rows[i] >= 0 && rows[i] < in_rows; }
  bool IsBad(int64_t row) const { return row < -1 || row >= in_rows; }
};

Map MakeMap(MapKind kind, int64_t in_rows, int64_t out_rows, int64_t taps, Random& random) {
  Map map{std::vector<int32_t>(out_rows * taps, -1), in_rows};
  map.rows.shrink_to_fit();
  const auto bad = [&] {
    const int64_t rows[] = {in_rows, INT32_MAX, INT32_MIN, -2};
    return static_cast<int32_t>(rows[Draw(random, 0, 3)]);
  };
  const int64_t same = Draw(random, 0, std::max<int64_t>(in_rows - 1, 0));
  for (int32_t& row : map.rows) {
    const bool there = in_rows > 0 && (kind == kFull || Draw(random, 0, 9) < 3);
    if (kind == kToOne && in_rows > 0) row = static_cast<int32_t>(same);
    if (kind != kToOne && kind != kNone && there) {
      row = static_cast<int32_t>(Draw(random, 0, in_rows - 1));
    }
    if (kind == kAllBad || (kind == kSomeBad && Draw(random, 0, 99) == 0)) row = bad();
  }
  if (kind == kOneBad && !map.rows.empty()) {
    map.rows[Draw(random, 0, out_rows * taps - 1)] = bad();
  }
  if (kind == kPadded) {
    std::fill(map.rows.begin() + Draw(random, 0, out_rows) * taps, map.rows.end(), -1);
  }
  return map;
}

// ---- products

struct Shape {
  int64_t in_rows, out_rows, taps, groups, depth, columns;
};

int64_t DrawTile(Random& random) {
  return Draw(random, 1, 2) == 1 ? 128 << Draw(random, 0, 4) : Draw(random, 1, 40);
}

std::string Text(const char* kernel, const Shape& s, Element element, int64_t tile, int kind) {
  return std::string(kernel) + " " + voxax_simd() + " element " +
         std::to_string(static_cast<int>(element)) + " rows " + std::to_string(s.in_rows) + " to " +
         std::to_string(s.out_rows) + " taps " + std::to_string(s.taps) + " groups " +
         std::to_string(s.groups) + " channels " + std::to_string(s.depth) + " to " +
         std::to_string(s.columns) + " tile " + std::to_string(tile) + " map " +
         std::to_string(kind);
}

void ExpectReported(int64_t row, const Map& map, int64_t size, const std::string& what) {
  const bool any_bad = std::any_of(map.rows.begin(), map.rows.end(),
                                   [&](int64_t entry) { return map.IsBad(entry); });
  const bool named = map.IsBad(row) && std::count(map.rows.begin(), map.rows.end(), row);
  // Where nothing is to be written, nothing needs to read the map.
  Expect(any_bad ? named || size == 0 : row == -1, what + ": reports row " + std::to_string(row));
}

// Calls `kernel` in every way, and compares what it writes and reports.
template <typename Problem, typename Kernel>
void Compare(Problem problem, void* Problem::*result, int64_t size, const Map& map,
             const std::vector<double>& wanted, Pool& pool, const Kernel& kernel,
             const std::string& what) {
  for (int way = 0; way < kWays; ++way) {
    const Values found(problem.element, size, kNan, way % 2 == 1);
    problem.*result = found.data();
    BadRow bad{-1};
    Scheduled(way, pool, [&](const Parallel& parallel) { kernel(problem, parallel, &bad); });
    ExpectReported(bad.load(), map, size, what);
    int64_t wrong = 0;
    for (int64_t i = 0; i < size; ++i) {
      wrong += !(found[i] == Rounded(problem.element, wanted[i]));
    }
    Expect(wrong == 0, what + ", way " + std::to_string(way) + ": " + std::to_string(wrong) +
                           " of " + std::to_string(size) + " values");
  }
}

void TestProduct(const Shape& s, Element element, MapKind kind, Random& random, Pool& pool) {
  const Map map = MakeMap(kind, s.in_rows, s.out_rows, s.taps, random);
  const int64_t in_width = s.groups * s.depth, out_width = s.groups * s.columns;
  const Values x = Values::Small(element, s.in_rows * in_width, random);
  const Values w = Values::Small(element, s.taps * s.groups * s.depth * s.columns, random);
  Product p{};
  p.element = element, p.x = x.data(), p.w = w.data(), p.neighbors = map.rows.data();
  p.in_rows = s.in_rows, p.out_rows = s.out_rows, p.taps = s.taps;
  p.groups = s.groups, p.depth = s.depth, p.columns = s.columns;
  const bool transposed = Draw(random, 0, 1);
  p.tap_stride = s.groups * s.depth * s.columns;
  p.depth_stride = transposed ? 1 : s.columns, p.column_stride = transposed ? s.depth : 1;
  p.reversed = Draw(random, 0, 1);
  p.tile = DrawTile(random);
  p.last_cache = Draw(random, 0, 1);  // Unknown, or too small for any result.
  std::vector<double> wanted(s.out_rows * out_width, 0);
  for (int64_t i = 0; i < s.out_rows * s.taps; ++i) {
    if (!map.Has(i)) continue;
    const int64_t m = i / s.taps, k = p.reversed ? s.taps - 1 - i % s.taps : i % s.taps;
    for (int64_t g = 0; g < s.groups; ++g) {
      for (int64_t d = 0; d < s.depth; ++d) {
        const double value = x[map.rows[i] * in_width + g * s.depth + d];
        for (int64_t c = 0; c < s.columns; ++c) {
          const int64_t inner = transposed ? c * s.depth + d : d * s.columns + c;
          wanted[m * out_width + g * s.columns + c] +=
              value * w[(k * s.groups + g) * s.depth * s.columns + inner];
        }
      }
    }
  }
  Compare(p, &Product::y, s.out_rows * out_width, map, wanted, pool, BestKernels().product,
          Text("product", s, element, p.tile, kind));
}

void TestWeightProduct(const Shape& s, Element element, MapKind kind, Random& random, Pool& pool) {
  const Map map = MakeMap(kind, s.in_rows, s.out_rows, s.taps, random);
  const int64_t in_width = s.groups * s.depth, out_width = s.groups * s.columns;
  const Values x = Values::Small(element, s.in_rows * in_width, random);
  const Values dy = Values::Small(element, s.out_rows * out_width, random);
  WeightProduct p{};
  p.element = element, p.x = x.data(), p.dy = dy.data(), p.neighbors = map.rows.data();
  p.in_rows = s.in_rows, p.out_rows = s.out_rows, p.taps = s.taps;
  p.groups = s.groups, p.depth = s.depth, p.columns = s.columns;
  p.tile = DrawTile(random);
  std::vector<double> wanted(s.taps * s.groups * s.depth * s.columns, 0);
  for (int64_t i = 0; i < s.out_rows * s.taps; ++i) {
    if (!map.Has(i)) continue;
    const int64_t m = i / s.taps, k = i % s.taps;
    for (int64_t g = 0; g < s.groups; ++g) {
      for (int64_t d = 0; d < s.depth; ++d) {
        const double value = x[map.rows[i] * in_width + g * s.depth + d];
        for (int64_t c = 0; c < s.columns; ++c) {
          wanted[((k * s.groups + g) * s.depth + d) * s.columns + c] +=
              value * dy[m * out_width + g * s.columns + c];
        }
      }
    }
  }
  Compare(p, &WeightProduct::dw, wanted.size(), map, wanted, pool, BestKernels().weight_product,
          Text("weight product", s, element, p.tile, kind));
}

void TestDepthwise(const Shape& s, Element element, MapKind kind, bool wgrad, Random& random,
                   Pool& pool) {
  const Map map = MakeMap(kind, s.in_rows, s.out_rows, s.taps, random);
  const int64_t channels = s.columns;
  const Values x = Values::Small(element, s.in_rows * channels, random);
  const Values w = Values::Small(element, (wgrad ? s.out_rows : s.taps) * channels, random);
  Depthwise p{};
  p.element = element, p.x = x.data(), p.w = w.data(), p.neighbors = map.rows.data();
  p.in_rows = s.in_rows, p.out_rows = s.out_rows, p.taps = s.taps, p.channels = channels;
  p.reversed = !wgrad && Draw(random, 0, 1);
  p.last_cache = Draw(random, 0, 1);
  p.tile = Draw(random, 1, 2) == 1 ? 256 : Draw(random, 1, 40);
  std::vector<double> wanted((wgrad ? s.taps : s.out_rows) * channels, 0);
  for (int64_t i = 0; i < s.out_rows * s.taps; ++i) {
    if (!map.Has(i)) continue;
    const int64_t m = i / s.taps, k = i % s.taps, tap = p.reversed ? s.taps - 1 - k : k;
    for (int64_t c = 0; c < channels; ++c) {
      wanted[(wgrad ? k : m) * channels + c] +=
          x[map.rows[i] * channels + c] * w[(wgrad ? m : tap) * channels + c];
    }
  }
  const Kernels& kernels = BestKernels();
  Compare(p, &Depthwise::y, wanted.size(), map, wanted, pool,
          wgrad ? kernels.depthwise_weight : kernels.depthwise,
          Text(wgrad ? "depthwise wgrad" : "depthwise", s, element, p.tile, kind));
}

void TestDepthwiseGradients(const Shape& s, Element element, MapKind kind, Random& random,
                            Pool& pool) {
  // The table has a row for each input row, and names output rows.
  const Map map = MakeMap(kind, s.out_rows, s.in_rows, s.taps, random);
  const int64_t channels = s.columns;
  const Values dy = Values::Small(element, s.out_rows * channels, random);
  const Values x = Values::Small(element, s.in_rows * channels, random);
  const Values w = Values::Small(element, s.taps * channels, random);
  DepthwiseGradients p{};
  p.element = element, p.dy = dy.data(), p.x = x.data(), p.w = w.data();
  p.neighbors = map.rows.data();
  p.in_rows = s.in_rows, p.out_rows = s.out_rows, p.taps = s.taps, p.channels = channels;
  p.reversed = Draw(random, 0, 1);
  p.last_cache = Draw(random, 0, 1);
  std::vector<double> dx(s.in_rows * channels, 0), dw(s.taps * channels, 0);
  for (int64_t i = 0; i < s.in_rows * s.taps; ++i) {
    if (!map.Has(i)) continue;
    const int64_t n = i / s.taps, tap = p.reversed ? s.taps - 1 - i % s.taps : i % s.taps;
    for (int64_t c = 0; c < channels; ++c) {
      const double gradient = dy[map.rows[i] * channels + c];
      dx[n * channels + c] += gradient * w[tap * channels + c];
      dw[tap * channels + c] += gradient * x[n * channels + c];
    }
  }
  const std::string what = Text("depthwise gradients", s, element, 0, kind);
  const auto kernel = BestKernels().depthwise_gradients;
  // One result is compared while the other goes elsewhere.
  for (const bool weights : {false, true}) {
    const Values other(element, weights ? dx.size() : dw.size(), kNan, weights);
    (weights ? p.dx : p.dw) = other.data();
    Compare(p, weights ? &DepthwiseGradients::dw : &DepthwiseGradients::dx,
            weights ? dw.size() : dx.size(), map, weights ? dw : dx, pool, kernel,
            what + (weights ? " dw" : " dx"));
  }
}

// Whether `value` takes the place of `best`: a NaN beats every number, and of equal values, which 0
// and -0 are, the first stays.
bool Beats(bool largest, double value, double best) {
  if (std::isnan(best)) return false;
  return std::isnan(value) || (largest ? value > best : value < best);
}

void TestExtremes(const Shape& s, Element element, MapKind kind, Random& random, Pool& pool) {
  const Map map = MakeMap(kind, s.in_rows, s.out_rows, s.taps, random);
  const int64_t channels = s.columns;
  // Few values, so that many are equal.
  constexpr double infinity = std::numeric_limits<double>::infinity();
  constexpr double few[] = {kNan, -infinity, -0.25, -0.0, 0.0, 0.25, infinity};
  const int64_t first = Draw(random, 0, 3);  // only some have NaN
  Values x(element, s.in_rows * channels, 0);
  for (int64_t i = 0; i < x.size(); ++i) x.Set(i, few[Draw(random, first, 6 - first)]);
  Extremes p{};
  p.element = element, p.x = x.data(), p.neighbors = map.rows.data();
  p.in_rows = s.in_rows, p.out_rows = s.out_rows, p.taps = s.taps, p.channels = channels;
  p.largest = Draw(random, 0, 1), p.tile = Draw(random, 1, 40);
  std::vector<int32_t> wanted(s.out_rows * channels, -1);
  for (int64_t i = 0; i < s.out_rows * s.taps; ++i) {
    if (!map.Has(i)) continue;
    for (int64_t c = 0; c < channels; ++c) {
      int32_t& best = wanted[i / s.taps * channels + c];
      const double value = x[map.rows[i] * channels + c];
      if (best < 0 || Beats(p.largest, value, x[best * channels + c])) {
        best = static_cast<int32_t>(map.rows[i]);
      }
    }
  }
  for (int way = 0; way < kWays; ++way) {
    std::vector<int32_t> found(wanted.size(), -99);
    p.found = found.data();
    BadRow bad{-1};
    Scheduled(way, pool, [&](const Parallel& parallel) {
      BestKernels().extremes(p, parallel, &bad);
    });
    const std::string what = Text("extremes", s, element, p.tile, kind);
    Expect(found == wanted, what);
    ExpectReported(bad.load(), map, found.size(), what);
  }
}

// ---- neighbors

using Coordinates = std::vector<int32_t>;  // [rows, width]

int32_t DrawCoordinate(Random& random, bool extreme) {
  if (!extreme || Draw(random, 0, 3)) return static_cast<int32_t>(Draw(random, -4, 4));
  return static_cast<int32_t>(Draw(random, 0, 1) ? INT32_MAX - Draw(random, 0, 3)
                                                 : INT32_MIN + Draw(random, 0, 3));
}

Coordinates DrawRows(int64_t rows, int64_t width, bool extreme, bool sort, Random& random) {
  std::vector<Coordinates> list(rows, Coordinates(width));
  for (Coordinates& row : list) {
    for (int32_t& value : row) value = DrawCoordinate(random, extreme);
    if (!extreme) row[0] = static_cast<int32_t>(Draw(random, 0, 1));
  }
  if (sort) std::sort(list.begin(), list.end());
  Coordinates flat;
  for (const Coordinates& row : list) flat.insert(flat.end(), row.begin(), row.end());
  flat.shrink_to_fit();
  return flat;
}

void TestNeighbors(int64_t width, Random& random, Pool& pool) {
  const bool extreme = Draw(random, 0, 1), sorted = Draw(random, 0, 3) > 0;
  const int64_t rows = Draw(random, 0, 3) ? Draw(random, 0, 500) : Draw(random, 0, 9000);
  const int64_t centers_rows = Draw(random, 0, 2) ? Draw(random, 0, 300) : Draw(random, 0, 9000);
  const int64_t taps = Draw(random, 0, 30);
  const Coordinates list = DrawRows(rows, width, extreme, sorted, random);
  const Coordinates centers = DrawRows(centers_rows, width, extreme, Draw(random, 0, 1), random);
  const std::unique_ptr<bool[]> valid(new bool[centers_rows]);
  for (int64_t m = 0; m < centers_rows; ++m) valid[m] = Draw(random, 0, 9) > 0;
  Coordinates offsets = DrawRows(taps, width - 1, extreme && Draw(random, 0, 1), false, random);

  std::map<Coordinates, int32_t> known;  // the first of equal rows
  const auto row_of = [&](int64_t i) {
    return Coordinates(list.begin() + i * width, list.begin() + (i + 1) * width);
  };
  for (int64_t i = 0; i < rows; ++i) known.emplace(row_of(i), static_cast<int32_t>(i));

  std::vector<int32_t> found(centers_rows * taps, -99);
  found.shrink_to_fit();
  const Lookup lookup{list.data(),  centers.data(), valid.get(), offsets.data(), found.data(),
                      rows,         centers_rows,   taps,        width};
  bool answered = true;
  Scheduled(static_cast<int>(Draw(random, 0, kWays - 1)), pool,
            [&](const Parallel& parallel) { answered = FindNeighbors(lookup, parallel); });
  int64_t wrong = answered != (width <= 5);
  for (int64_t i = 0; answered && i < centers_rows * taps; ++i) {
    const int64_t m = i / taps, k = i % taps;
    Coordinates query(width);
    bool inside = valid[m];
    for (int64_t d = 0; d < width; ++d) {
      const int64_t offset = d == 0 ? 0 : offsets[k * (width - 1) + d - 1];
      const int64_t value = centers[m * width + d] + offset;
      inside = inside && value >= INT32_MIN && value <= INT32_MAX;
      query[d] = static_cast<int32_t>(value);
    }
    const auto hit = known.find(query);
    const int32_t wanted = inside && hit != known.end() ? hit->second : -1;
    // A list out of order has no wrong rows, but some may be missed.
    const bool excused = !sorted && (found[i] == -1 || (inside && row_of(found[i]) == query));
    wrong += found[i] != wanted && !excused;
  }
  Expect(wrong == 0, "neighbors, width " + std::to_string(width) + " rows " + std::to_string(rows) +
                         " centers " + std::to_string(centers_rows) + " taps " +
                         std::to_string(taps) + ": " + std::to_string(wrong) + " wrong");
}

// ---- points

// The definition in whole numbers of 64 bits, which do not wrap around.
template <typename T>
bool CellOf(T local, double size, int32_t* cell) {
  int exponent;
  const double fraction = std::frexp(size, &exponent);
  const float x = static_cast<float>(local) * std::ldexp(1.0f, 1 - exponent);
  if (std::fabs(x) < (sizeof(T) == 8 ? 1 << 17 : 1 << 22)) {
    const auto edge = std::llrint(std::ldexp(fraction, 29));
    const bool normal = std::fabs(x) >= std::numeric_limits<float>::min();
    const float above = std::nextafter(x, std::numeric_limits<float>::infinity());
    const float power = std::ldexp(1.0f, std::ilogb(std::fabs(above) < std::fabs(x) ? above : x));
    const auto room = normal ? static_cast<int64_t>(power * 18) : 0;
    const auto place = static_cast<int64_t>(std::floor(normal ? std::ldexp(x, 28) : 0.0)) + room;
    const int64_t found = place / edge - (place % edge < 0);
    *cell = static_cast<int32_t>(normal && x < 0 ? std::min<int64_t>(found, -1) : found);
    return true;
  }
  double number = 0;
  bool inside = false;
  if (sizeof(T) == 8) {
    number = std::rint(local / size);
    const double length = std::fabs(local);
    const double spacing = std::nextafter(length, std::numeric_limits<double>::infinity()) - length;
    number -= number * size > local + 2 * spacing;
    inside = number >= -0x1p30 && number < 0x1p30;
  }
  *cell = inside ? static_cast<int32_t>(number) : 0;
  return inside;
}

template <typename T>
void TestCells(int64_t axes, Random& random) {
  const int64_t rows = Draw(random, 0, 1) ? Draw(random, 0, 5) : Draw(random, 0, 700);
  std::vector<T> size(axes), local(rows * axes);
  std::vector<float> scale(axes), inverse(axes);
  std::vector<int32_t> edge(axes);
  for (int64_t a = 0; a < axes; ++a) {
    const double value = std::ldexp(Draw(random, 1 << 20, 1 << 21), Draw(random, -40, 0));
    int exponent;
    const double fraction = std::frexp(value, &exponent);
    size[a] = static_cast<T>(value);
    scale[a] = std::ldexp(1.0f, 1 - exponent);
    inverse[a] = static_cast<float>(0.5 / fraction);
    edge[a] = static_cast<int32_t>(std::llrint(std::ldexp(fraction, 29)));
  }
  const T infinity = std::numeric_limits<T>::infinity();
  const T special[] = {infinity, -infinity, static_cast<T>(kNan), T{0}, -T{0},
                       std::numeric_limits<T>::denorm_min(), -std::numeric_limits<float>::min()};
  for (int64_t i = 0; i < rows * axes; ++i) {
    const int64_t reach = int64_t{1} << Draw(random, 1, 31);
    local[i] = static_cast<T>(Draw(random, -reach, reach)) * size[i % axes] / Draw(random, 1, 3);
    const auto way = Draw(random, 0, 9);
    if (way == 0) local[i] = special[Draw(random, 0, 6)];
    if (way == 1) local[i] = std::nextafter(local[i], infinity);
    if (way == 2) local[i] = std::nextafter(local[i], -infinity);
  }
  std::vector<int32_t> cell(rows * axes, -99);
  const auto known = std::make_unique<bool[]>(rows);
  FindCells<T>({local.data(), rows, axes, scale.data(), inverse.data(), edge.data(), size.data(),
                cell.data(), known.get()});
  int64_t wrong = 0;
  for (int64_t row = 0; row < rows; ++row) {
    bool all = true;
    for (int64_t i = row * axes; i < (row + 1) * axes; ++i) {
      int32_t wanted;
      all &= CellOf(local[i], static_cast<double>(size[i % axes]), &wanted);
      wrong += cell[i] != wanted;
    }
    wrong += known[row] != all;
  }
  Expect(wrong == 0, "cells of " + std::to_string(axes) + " axes: " + std::to_string(wrong));
}

template <typename T>
void TestPoints(Random& random, Pool& pool) {
  const int64_t axes = Draw(random, 1, 4), nearest = Draw(random, 1, 20);
  const int64_t scenes = Draw(random, 1, 3), places = Draw(random, 1, 40);
  const auto cloud = [&](int64_t count, std::vector<T>* positions, std::vector<int32_t>* scene) {
    for (int64_t i = 0; i < count * axes; ++i) {  // on a grid: many lie in one place
      positions->push_back(static_cast<T>(Draw(random, -places, places)) / 4);
    }
    for (int64_t i = 0; i < count; ++i) {
      scene->push_back(static_cast<int32_t>(Draw(random, -1, scenes - 1)));
    }
  };
  std::vector<T> points, queries;
  std::vector<int32_t> scene, own;
  const int64_t count = Draw(random, 0, 600), asked = Draw(random, 0, 400);
  cloud(count, &points, &scene);
  cloud(asked, &queries, &own);
  const T radius = Draw(random, 0, 1) ? std::numeric_limits<T>::infinity()
                                      : static_cast<T>(Draw(random, 1, 12)) / 2;
  std::vector<int32_t> rows(asked * nearest, -99), found(asked, -99);
  const PointSearch<T> search{{points.data(), scene.data(), count},
                              {queries.data(), own.data(), asked},
                              axes,
                              radius,
                              nearest,
                              rows.data(),
                              found.data()};
  Scheduled(static_cast<int>(Draw(random, 0, kWays - 1)), pool,
            [&](const Parallel& parallel) { SearchPoints(search, parallel); });
  int64_t wrong = 0;
  for (int64_t m = 0; m < asked; ++m) {
    std::vector<std::pair<T, int32_t>> hits;
    for (int64_t i = 0; i < count && own[m] >= 0; ++i) {
      T apart = 0;
      for (int64_t a = 0; a < axes; ++a) {
        const T step = queries[m * axes + a] - points[i * axes + a];
        apart += step * step;
      }
      if (scene[i] == own[m] && apart <= radius * radius) hits.emplace_back(apart, i);
    }
    std::sort(hits.begin(), hits.end());
    wrong += found[m] != static_cast<int64_t>(hits.size());
    for (int64_t i = 0; i < nearest; ++i) {
      const int32_t wanted = i < static_cast<int64_t>(hits.size()) ? hits[i].second : -1;
      wrong += rows[m * nearest + i] != wanted;
    }
  }
  Expect(wrong == 0, "points, axes " + std::to_string(axes) + " of " + std::to_string(count) +
                         " for " + std::to_string(asked) + ": " + std::to_string(wrong) + " wrong");
}

// ---- rows and tables

// Half of them are so many that there are several parts for threads.
int64_t DrawCount(Random& random) {
  constexpr int64_t least = 2 * Split::kLeast;
  if (Draw(random, 0, 1)) return Draw(random, least, 2 * least);
  return Draw(random, 0, 1) ? Draw(random, 0, 3) : Draw(random, 0, 3000);
}

std::vector<int32_t> StableOrder(const Rows& rows) {
  std::vector<int32_t> order(rows.count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return std::lexicographical_compare(rows[a], rows[a] + rows.width, rows[b],
                                        rows[b] + rows.width);
  });
  return order;
}

enum ListKind { kFew, kExtreme, kAnywhere, kEqual, kOneAstray, kListKinds };

Coordinates DrawList(ListKind kind, int64_t count, int64_t width, Random& random) {
  Coordinates list(count * width);
  for (int32_t& value : list) {
    value = kind == kEqual      ? 7
            : kind == kAnywhere ? static_cast<int32_t>(Draw(random, INT32_MIN, INT32_MAX))
                                : DrawCoordinate(random, kind == kExtreme);
  }
  const int64_t padding_in_ten = Draw(random, 0, 3) ? Draw(random, 0, 1) : Draw(random, 9, 10);
  for (int64_t i = 0; i < count; ++i) {
    if (Draw(random, 1, 10) <= padding_in_ten) std::fill_n(list.begin() + i * width, width, kPad);
  }
  if (kind != kOneAstray || count == 0) return list;
  Coordinates sorted;
  for (const int32_t i : StableOrder({list.data(), count, width})) {
    sorted.insert(sorted.end(), list.begin() + i * width, list.begin() + (i + 1) * width);
  }
  sorted.shrink_to_fit();
  // A small row further behind, often the first of a part: only the row before it tells.
  const Split split(count, int64_t{4});
  const int64_t at = Draw(random, 0, 1) ? split.Begin(Draw(random, 0, split.parts - 1))
                                        : Draw(random, 0, count - 1);
  std::copy_n(sorted.begin(), width, sorted.begin() + at * width);
  return sorted;
}

void TestRows(ListKind kind, int64_t width, Random& random, Pool& pool) {
  const int64_t count = DrawCount(random);
  const Coordinates list = DrawList(kind, count, width, random);
  const Rows rows{list.data(), count, width};
  const std::vector<int32_t> order = StableOrder(rows);

  std::vector<int32_t> place(count, -1);  // of each row among the distinct ones
  Coordinates distinct;
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t* row = rows[order[i]];
    if (row[0] == kPad) continue;
    if (i == 0 || !std::equal(row, row + width, rows[order[i - 1]])) {
      distinct.insert(distinct.end(), row, row + width);
      ++total;
    }
    place[order[i]] = static_cast<int32_t>(total - 1);
  }
  const int64_t capacities[] = {0, Draw(random, 0, total), total, total + Draw(random, 1, 9)};
  const int64_t capacity = capacities[Draw(random, 0, 3)];
  distinct.resize(capacity * width, kPad);
  for (int32_t& number : place) number = number < capacity ? number : -1;

  const std::string what = " width " + std::to_string(width) + " rows " + std::to_string(count) +
                           " capacity " + std::to_string(capacity) + " of " +
                           std::to_string(total) + " list " + std::to_string(kind) + " way ";
  for (int way = 0; way < kWays; ++way) {
    std::vector<int32_t> found(count, -99), inverse(count, -99);
    Scheduled(way, pool, [&](const Parallel& parallel) { SortRows(rows, found.data(), parallel); });
    Expect(found == order, "sort" + what + std::to_string(way));
    Coordinates coords(capacity * width, -99);
    int64_t number = -1;
    Scheduled(way, pool, [&](const Parallel& parallel) {
      number = FindUnique({rows, coords.data(), inverse.data(), capacity}, parallel);
    });
    Expect(number == total && coords == distinct && inverse == place,
           "unique" + what + std::to_string(way));
  }
}

void TestTables(MapKind kind, Random& random, Pool& pool) {
  const int64_t in_rows = DrawCount(random), out_rows = DrawCount(random);
  const int64_t taps = Draw(random, 0, 5);
  const Map map = MakeMap(kind, in_rows, out_rows, taps, random);
  const Table table{map.rows.data(), out_rows, taps};
  const int64_t entries = out_rows * taps, places = entries + DrawCount(random);

  std::vector<int32_t> inverse(in_rows * taps, -1);
  for (int64_t i = 0; i < entries; ++i) {
    if (map.Has(i)) inverse[map.rows[i] * taps + i % taps] = static_cast<int32_t>(i / taps);
  }
  std::vector<int32_t> in, out, starts{0};
  for (int64_t k = 0; k < taps; ++k) {
    for (int64_t m = 0; m < out_rows; ++m) {
      if (map.rows[m * taps + k] < 0) continue;
      in.push_back(map.rows[m * taps + k]);
      out.push_back(static_cast<int32_t>(m));
    }
    starts.push_back(static_cast<int32_t>(in.size()));
  }
  in.resize(places, -1), out.resize(places, -1);
  std::vector<int32_t> pairs(in);
  pairs.insert(pairs.end(), out.begin(), out.end());

  const std::string what = " rows " + std::to_string(in_rows) + " to " + std::to_string(out_rows) +
                           " taps " + std::to_string(taps) + " map " + std::to_string(kind) +
                           " way ";
  for (int way = 0; way < kWays; ++way) {
    std::vector<int32_t> found(in_rows * taps, -99);
    Scheduled(way, pool, [&](const Parallel& parallel) {
      InvertTable(table, in_rows, found.data(), parallel);
    });
    Expect(found == inverse, "inverse table" + what + std::to_string(way));
    std::vector<int32_t> listed(2 * places, -99), at(taps + 1, -99);
    Scheduled(way, pool, [&](const Parallel& parallel) {
      ListPairs(table, places, listed.data(), at.data(), parallel);
    });
    Expect(listed == pairs && at == starts, "pairs" + what + std::to_string(way));
  }
}

// ---- pages

// What is left out reads as zeros, and what was written is never left out.
void TestPages(Random& random) {
  const int64_t size = Draw(random, 1, 6 << 20);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char* bytes = static_cast<char*>(memory);
  if (Draw(random, 0, 1)) PreferLargePages(bytes, size);
  const int64_t begin = Draw(random, 1, size);
  std::fill(bytes, bytes + begin, 1);
  for (int64_t i = Draw(random, 0, 9); i > 0 && begin < size; --i) bytes[Draw(random, begin, size - 1)] = 1;
  int64_t cleared = 0;
  const char* end = bytes + begin;
  for (const Span& span : ReleasePages(bytes + begin, size - begin)) {
    Expect(end <= span.begin && span.begin + span.bytes <= bytes + size, "spans are in order");
    std::fill(span.begin, span.begin + span.bytes, 0);
    end = span.begin + span.bytes;
    cleared += span.bytes;
  }
  Expect(std::all_of(bytes + begin, bytes + size, [](char byte) { return byte == 0; }),
         "all of " + std::to_string(size - begin) + " bytes are zero, " + std::to_string(cleared) +
             " of them were cleared");
  munmap(memory, size);
}

// ---- normalization

// Near the formulas in float64, and the same bits whatever the threads do.
void TestBatchNorm(int64_t rows, int64_t channels, Element element, Random& random, Pool& pool) {
  const Element sums = element == Element::kFloat64 ? element : Element::kFloat32;
  const int64_t size = rows * channels;
  const Values x = Values::Small(element, size, random), dy = Values::Small(element, size, random);
  const Values residual = Values::Small(element, size, random);
  const Values scale = Values::Small(sums, channels, random);
  const Values bias = Values::Small(sums, channels, random);
  const Values old_mean = Values::Small(sums, channels, random);
  const Values old_variance(sums, channels, 2.25);
  const std::unique_ptr<bool[]> valid(new bool[rows]);
  int64_t count = 0;
  const int64_t padding = Draw(random, 0, 1) * Draw(random, 0, rows);
  for (int64_t r = 0; r < rows; ++r) count += valid[r] = r < rows - padding && Draw(random, 0, 4) > 0;
  BatchNorm p{};
  p.element = element, p.x = x.data(), p.valid = valid.get(), p.rows = rows, p.channels = channels;
  p.scale = scale.data(), p.bias = bias.data();
  p.old_mean = old_mean.data(), p.old_variance = old_variance.data();
  p.momentum = 0.75, p.epsilon = 0.5, p.training = Draw(random, 0, 1), p.relu = Draw(random, 0, 1);
  if (Draw(random, 0, 1)) p.residual = residual.data();
  const std::string what = "batch norm " + std::to_string(rows) + " x " + std::to_string(channels) +
                           " element " + std::to_string(static_cast<int>(element));
  std::vector<double> first;
  for (int way = 0; way < kWays; ++way) {
    const Values y(element, size, kNan, way % 2 == 1), dx(element, size, kNan);
    const Values dresidual(element, size, kNan);
    const Values mean(sums, channels, kNan), inverse(sums, channels, kNan);
    const Values new_mean(sums, channels, kNan), new_variance(sums, channels, kNan);
    const Values dscale(sums, channels, kNan), dbias(sums, channels, kNan);
    p.y = y.data(), p.mean = mean.data(), p.inverse = inverse.data();
    p.new_mean = new_mean.data(), p.new_variance = new_variance.data();
    BatchNormGradients g{};
    g.element = element, g.dy = dy.data(), g.x = x.data(), g.y = p.relu ? y.data() : nullptr;
    g.valid = valid.get(), g.mean = mean.data(), g.inverse = inverse.data();
    g.scale = scale.data(), g.training = p.training, g.relu = p.relu;
    g.rows = rows, g.channels = channels, g.dx = dx.data();
    g.dresidual = p.residual == nullptr ? nullptr : dresidual.data();
    g.dscale = dscale.data(), g.dbias = dbias.data();
    Scheduled(way, pool, [&](const Parallel& parallel) {
      BestKernels().batch_norm(p, parallel, nullptr);
      BestKernels().batch_norm_gradients(g, parallel, nullptr);
    });
    std::vector<double> found;
    for (const Values* values : {&y, &dx, &mean, &inverse, &new_mean, &new_variance, &dscale, &dbias}) {
      for (int64_t i = 0; i < values->size(); ++i) found.push_back((*values)[i]);
    }
    if (way == 0) first = found;
    Expect(found == first, what + ", way " + std::to_string(way));
    int64_t wrong = 0;
    const double tolerance = element == Element::kBFloat16 ? 0.05 : 1e-3;
    for (int64_t c = 0; c < channels; ++c) {
      double middle = old_mean[c], variance = old_variance[c];
      if (p.training) {
        middle = variance = 0;
        for (int64_t r = 0; r < rows; ++r) middle += valid[r] ? x[r * channels + c] / count : 0;
        for (int64_t r = 0; r < rows; ++r) {
          const double off = x[r * channels + c] - middle;
          variance += valid[r] ? off * off / count : 0;
        }
      }
      const double factor = 1 / std::sqrt(variance + p.epsilon);
      double sum = 0, product = 0;
      const auto passed = [&](int64_t at) { return p.relu && !(y[at] > 0) ? 0 : dy[at]; };
      for (int64_t r = 0; r < rows; ++r) {
        if (!valid[r]) continue;
        sum += passed(r * channels + c);
        product += passed(r * channels + c) * (x[r * channels + c] - middle) * factor;
      }
      const auto differs = [&](double value, double wanted) {
        return !(std::abs(value - wanted) <= tolerance * (1 + std::abs(wanted)));
      };
      wrong += differs(dscale[c], product) + differs(dbias[c], sum);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = r * channels + c;
        const double off = (x[at] - middle) * factor;
        double value = off * scale[c] + bias[c] + (p.residual == nullptr ? 0 : residual[at]);
        if (p.relu) value = std::max(value, 0.0);
        double slope = passed(at);
        if (p.training && count > 0) slope -= sum / count + off * product / count;
        wrong += differs(y[at], valid[r] ? value : 0);
        wrong += differs(dx[at], valid[r] ? slope * scale[c] * factor : 0);
      }
    }
    Expect(wrong == 0, what + ": " + std::to_string(wrong) + " values are off");
  }
}

// ---- operators

// An array of its own memory, which ends where the array ends.
class Owned {
 public:
  Owned(Kind kind, std::vector<int64_t> shape) : kind_(kind), shape_(std::move(shape)) {
    for (int64_t length : shape_) size_ *= length;
    bytes_.reset(new char[size_ * Width()]);
    std::memset(bytes_.get(), 0x7f, size_ * Width());
  }
  int64_t Width() const {
    if (kind_ == Kind::kBool) return 1;
    if (kind_ == Kind::kBFloat16 || kind_ == Kind::kFloat16) return 2;
    return kind_ == Kind::kFloat64 ? 8 : 4;
  }
  // Small numbers; in rows that are not valid, NaN.
  Owned& Draw(Random& random, const bool* valid = nullptr) {
    const int64_t row = shape_.empty() ? 1 : std::max<int64_t>(size_ / std::max<int64_t>(shape_[0], 1), 1);
    for (int64_t i = 0; i < size_; ++i) {
      const bool known = valid == nullptr || valid[i / row];
      Set(i, known ? voxax::Draw(random, -15, 15) / 4.0 : std::numeric_limits<double>::quiet_NaN());
    }
    return *this;
  }
  Owned& Whole(Random& random, int64_t low, int64_t high) {
    for (int64_t i = 0; i < size_; ++i) Set(i, static_cast<double>(voxax::Draw(random, low, high)));
    return *this;
  }
  void Set(int64_t i, double value) {
    const float narrow = static_cast<float>(value);
    const int32_t whole = std::isnan(value) ? 0 : static_cast<int32_t>(value);
    const bool truth = value > 0;
    uint32_t bits;
    std::memcpy(&bits, &narrow, 4);
    // Half precision has these numbers, in 3 bits of exponent: quarters up to 15 / 4.
    uint16_t half = static_cast<uint16_t>(bits >> 16);
    if (kind_ == Kind::kFloat16) half = Half(narrow);
    const void* from = &narrow;
    if (kind_ == Kind::kFloat64) from = &value;
    if (kind_ == Kind::kInt32 || kind_ == Kind::kUInt32) from = &whole;
    if (kind_ == Kind::kBool) from = &truth;
    if (Width() == 2) from = &half;
    std::memcpy(bytes_.get() + i * Width(), from, Width());
  }
  static uint16_t Half(float value) {
    if (std::isnan(value)) return 0x7e00;
    if (value == 0) return 0;
    int exponent;
    const float share = std::frexp(std::abs(value), &exponent);
    const int mantissa = static_cast<int>(share * 2048) - 1024;
    return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) | (exponent + 14) << 10 | mantissa);
  }
  Array array() const { return {kind_, bytes_.get(), shape_}; }
  const char* data() const { return bytes_.get(); }
  int64_t bytes() const { return size_ * Width(); }

 private:
  Kind kind_;
  std::vector<int64_t> shape_;
  int64_t size_ = 1;
  std::unique_ptr<char[]> bytes_;
};

// Values are checked in Python. Here: the same bits whatever the threads do, zeros in rows that are not
// valid, nothing of what stands there in the others, and no call for arrays that do not fit.
void TestOperator(OperatorPlace place, Random& random, Pool& pool) {
  constexpr Kind kinds[] = {Kind::kFloat32, Kind::kFloat64, Kind::kBFloat16, Kind::kFloat16};
  const bool multiplies = place == kPlaceOf_linear || place == kPlaceOf_linear_gradients;
  const Kind kind = kinds[Draw(random, 0, multiplies ? 2 : 3)];
  const Kind sums = kind == Kind::kFloat64 ? kind : Kind::kFloat32;
  const int64_t rows = Draw(random, 0, Draw(random, 0, 3) ? 200 : 3000), groups = Draw(random, 1, 3);
  const int64_t channels = groups * (Draw(random, 0, 9) ? Draw(random, 1, 30) : 0);
  const int64_t scenes = Draw(random, 0, 4);
  const int64_t columns = Draw(random, 1, 40);
  const std::unique_ptr<bool[]> valid(new bool[rows]);
  const bool leading = Draw(random, 0, 1);
  for (int64_t r = 0; r < rows; ++r) valid[r] = leading ? r < rows / 2 : Draw(random, 0, 4) > 0;
  Owned mask(Kind::kBool, {rows}), scene(Kind::kInt32, {rows});
  for (int64_t r = 0; r < rows; ++r) mask.Set(r, valid[r]);
  scene.Whole(random, -1, scenes);
  const auto features = [&](int64_t width) {
    return std::move(Owned(kind, {rows, width}).Draw(random, valid.get()));
  };
  const auto channel = [&](int64_t width) {
    return std::move(Owned(sums, {Draw(random, 0, 1) ? width : 0}).Draw(random));
  };
  const auto by_scene = [&](Kind of) { return std::move(Owned(of, {scenes, channels}).Draw(random)); };
  std::vector<Owned> in;
  std::vector<std::pair<Kind, std::vector<int64_t>>> out;
  Call call;
  call.sizes = {1};
  call.numbers = {0.5, 0.5};
  const auto add = [&](auto&&... arrays) { (in.push_back(std::move(arrays)), ...); };
  const auto x_like = std::make_pair(kind, std::vector<int64_t>{rows, channels});
  const auto wide = std::make_pair(sums, std::vector<int64_t>{channels});
  const auto scene_wide = std::make_pair(sums, std::vector<int64_t>{scenes, channels});
  const auto one = std::make_pair(Kind::kFloat32, std::vector<int64_t>{});
  bool by_row = true;  // the first result is features
  switch (place) {
    case kPlaceOf_activation:
      call.sizes = {Draw(random, 0, 7)};
      add(features(channels), std::move(mask));
      if (Draw(random, 0, 1)) add(features(channels));
      out = {x_like};
      break;
    case kPlaceOf_row_norm:
      add(features(channels), std::move(mask), channel(channels), channel(channels));
      out = {x_like};
      break;
    case kPlaceOf_row_norm_gradients:
      add(features(channels), features(channels), std::move(mask), channel(channels));
      out = {x_like, wide, wide};
      break;
    case kPlaceOf_scene_norm:
      call.sizes = {groups};
      add(features(channels), std::move(mask), std::move(scene), channel(channels), channel(channels));
      out = {x_like, scene_wide, scene_wide};
      break;
    case kPlaceOf_scene_norm_gradients:
      call.sizes = {groups};
      add(features(channels), features(channels), std::move(mask), std::move(scene), channel(channels),
          by_scene(sums), by_scene(sums));
      out = {x_like, wide, wide};
      break;
    case kPlaceOf_scene_sums:
      add(features(channels), std::move(mask), std::move(scene));
      out = {scene_wide, {Kind::kInt32, {scenes}}};
      by_row = false;
      break;
    case kPlaceOf_scene_rows:
      add(by_scene(kind), std::move(mask), std::move(scene));
      out = {x_like};
      break;
    case kPlaceOf_scene_extremes:
      add(features(channels), std::move(mask), std::move(scene));
      out = {{kind, {scenes, channels}}};
      by_row = false;
      break;
    case kPlaceOf_scene_extremes_gradients:
      add(features(channels), std::move(mask), std::move(scene), by_scene(kind), by_scene(kind));
      out = {x_like};
      break;
    case kPlaceOf_linear:
      add(features(channels), std::move(mask), std::move(Owned(kind, {channels, columns}).Draw(random)),
          std::move(Owned(kind, {Draw(random, 0, 1) ? columns : 0}).Draw(random)));
      out = {{kind, {rows, columns}}};
      break;
    case kPlaceOf_linear_gradients:
      add(features(columns), features(channels), std::move(mask),
          std::move(Owned(kind, {channels, columns}).Draw(random)));
      out = {x_like, {kind, {channels, columns}}, {sums, {columns}}};
      break;
    case kPlaceOf_cross_entropy:
    case kPlaceOf_cross_entropy_gradients: {
      Owned labels(Kind::kInt32, {rows});
      for (int64_t r = 0; r < rows; ++r) labels.Set(r, valid[r] ? Draw(random, -1, channels) : -1);
      Owned weights(Kind::kFloat32, {Draw(random, 0, 1) ? channels : 0});
      add(features(channels), std::move(labels), std::move(weights.Whole(random, 0, 3)));
      out = {one, one};
      by_row = place == kPlaceOf_cross_entropy_gradients;
      if (by_row) {
        add(std::move(Owned(Kind::kFloat32, {}).Whole(random, 1, 9)),
            std::move(Owned(Kind::kFloat32, {}).Draw(random)));
        out = {x_like};
      }
      break;
    }
    case kPlaceOf_add_rows:
      add(features(channels), features(channels), std::move(mask));
      out = {x_like};
      break;
    case kPlaceOf_cat:
      add(features(channels), features(columns), features(1), std::move(mask));
      out = {{kind, {rows, channels + columns + 1}}};
      break;
    case kPlaceOf_cat_gradients:
      add(features(channels + columns), std::move(mask));
      out = {x_like, {kind, {rows, columns}}};
      break;
    case kPlaceOf_attention:
    case kPlaceOf_attention_gradients: {
      // Every valid row has a slot, some have two.
      const bool gradient = place == kPlaceOf_attention_gradients;
      const int64_t length = Draw(random, 1, 40), width = Draw(random, 1, 20);
      std::vector<int32_t> listed;
      Owned own_slot(Kind::kInt32, {rows});
      for (int64_t r = 0; r < rows; ++r) {
        own_slot.Set(r, valid[r] ? static_cast<double>(listed.size()) : -1);
        for (int64_t i = valid[r] ? Draw(random, 1, 2) : 0; i > 0; --i) listed.push_back(r);
      }
      const int64_t patches = (static_cast<int64_t>(listed.size()) + length - 1) / length;
      listed.resize(patches * length, -1);
      Owned slots(Kind::kInt32, {patches, length});
      for (size_t i = 0; i < listed.size(); ++i) slots.Set(i, listed[i]);
      call.sizes = {groups};
      if (gradient) add(features(groups * width));
      add(features(3 * groups * width), std::move(slots), std::move(own_slot));
      out = {{kind, {rows, gradient ? 3 * groups * width : groups * width}}};
      break;
    }
    case kPlaceOf_dropout:
      call.sizes = {Draw(random, 0, 1)};
      add(features(channels), std::move(mask),
          Draw(random, 0, 1) ? std::move(scene) : Owned(Kind::kInt32, {0}),
          std::move(Owned(Kind::kUInt32, {2}).Whole(random, 0, 1 << 30)));
      out = {x_like};
      break;
    case kPlaceOf_fold_in:
      add(std::move(Owned(Kind::kUInt32, {2}).Whole(random, 0, 1 << 30)),
          std::move(Owned(Kind::kUInt32, {}).Whole(random, 0, 1 << 30)));
      out = {{Kind::kUInt32, {2}}};
      by_row = false;
      break;
    case kPlaceOf_permutation:
      add(std::move(Owned(Kind::kUInt32, {2}).Whole(random, 0, 1 << 30)));
      out = {{Kind::kInt32, {Draw(random, 0, 1000)}}};
      by_row = false;
      break;
    default:
      return Expect(false, "an operator without a test: " + std::to_string(place));
  }
  for (const Owned& array : in) call.in.push_back(array.array());
  const std::string what = "operator " + std::to_string(place) + " of dtype " +
                           std::to_string(static_cast<int>(kind)) + ", " + std::to_string(rows) + " x " +
                           std::to_string(channels);
  std::vector<std::string> first;
  for (int way = 0; way < kWays; ++way) {
    std::vector<Owned> made;
    for (const auto& [of, shape] : out) made.emplace_back(of, shape);
    call.out.clear();
    for (const Owned& array : made) call.out.push_back(array.array());
    const char* wrong = nullptr;
    Scheduled(way, pool, [&](const Parallel& parallel) {
      wrong = BestKernels().operators[place](call, parallel);
    });
    Expect(wrong == nullptr, what + " takes " + (wrong == nullptr ? "" : wrong));
    std::vector<std::string> found;
    for (const Owned& array : made) found.emplace_back(array.data(), array.bytes());
    if (way == 0) first = found;
    Expect(found == first, what + ", way " + std::to_string(way));
  }
  if (by_row && rows > 0) {
    const int64_t width = static_cast<int64_t>(first[0].size()) / rows;
    int64_t kept = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const auto begin = first[0].begin() + r * width;
      kept += !valid[r] && std::any_of(begin, begin + width, [](char byte) { return byte != 0; });
    }
    Expect(kept == 0, what + " leaves something in rows that are not valid");
  }
  call.in.pop_back();
  if (place != kPlaceOf_activation) {
    Expect(BestKernels().operators[place](call, Parallel(1, nullptr)) != nullptr, what + " takes anything");
  }
}

// ---- all of it

const Shape kShapes[] = {
    {0, 5, 3, 1, 4, 4},     {5, 0, 3, 1, 4, 4},     {5, 5, 0, 1, 4, 4},      {5, 5, 3, 1, 0, 4},
    {5, 5, 3, 1, 4, 0},     {0, 0, 0, 1, 0, 0},     {1, 1, 1, 1, 1, 1},      {7, 300, 27, 1, 17, 33},
    {64, 64, 27, 2, 16, 48}, {300, 260, 5, 1, 130, 70}, {90, 90, 3, 1, 40, 144}, {900, 600, 3, 5, 3, 2},
};

// The kernels read a row's taps 32 at a time: these have just as many, one more, and three times as
// many and some. With so many output rows wgrad does not always share out the taps to fewer. Pairs
// are listed for 8 rows and 8 taps at a time: these have just as many taps, less than twice as many,
// and those of a 7x7x7 kernel, with rows that wgrad reads in place and rows that it copies.
const Shape kManyTaps[] = {
    {60, 90, 32, 1, 9, 20}, {60, 200, 33, 2, 5, 7},   {90, 300, 125, 1, 8, 17},
    {70, 603, 8, 1, 70, 16}, {50, 530, 15, 2, 8, 40}, {40, 71, 343, 1, 5, 9},
};

Shape DrawShape(Random& random) {
  return {Draw(random, 0, 200), Draw(random, 0, 300), Draw(random, 0, 9),
          Draw(random, 1, 3),   Draw(random, 0, 40),  Draw(random, 0, 90)};
}

void TestAll(const Shape& shape, MapKind kind, Random& random, Pool& pool) {
  const Element element = kElements[Draw(random, 0, 2)];
  TestProduct(shape, element, kind, random, pool);
  TestWeightProduct(shape, element, kind, random, pool);
  // Up to sixteen vectors of the widest are in work at once: 256 or more channels, at times.
  Shape filters = shape;
  if (Draw(random, 0, 3) == 0) filters.columns += 256;
  TestDepthwise(filters, element, kind, false, random, pool);
  TestDepthwise(filters, element, kind, true, random, pool);
  TestDepthwiseGradients(filters, element, kind, random, pool);
  TestExtremes(shape, element, kind, random, pool);
}

int Main(int rounds, uint64_t seed) {
  Pool pool(7);
  TestParallel(pool);
  for (const char* simd : {"portable", "avx2", "avx512"}) {
    if (!voxax_use_simd(simd)) {
      std::printf("%s: not on this processor\n", simd);
      continue;
    }
    for (int round = 0; round < rounds; ++round) {
      // Callers that share the pool, as programs of XLA do.
      std::vector<std::thread> callers;
      for (int caller = 0; caller < 3; ++caller) {
        callers.emplace_back([&, caller] {
          Random random(seed + 1000 * round + caller);
          for (size_t i = caller; i < std::size(kShapes); i += 3) {
            TestAll(kShapes[i], static_cast<MapKind>(Draw(random, 0, kMapKinds - 1)), random, pool);
          }
          for (int kind = 0; kind < kMapKinds; ++kind) {
            TestAll(DrawShape(random), static_cast<MapKind>(kind), random, pool);
            for (size_t i = caller; i < std::size(kManyTaps); i += 3) {
              TestAll(kManyTaps[i], static_cast<MapKind>(kind), random, pool);
            }
            TestTables(static_cast<MapKind>(kind), random, pool);
          }
          for (int64_t i = 0; i < 60; ++i) TestNeighbors(2 + i % 5, random, pool);
          for (int64_t i = 0; i < 80; ++i) {
            TestCells<float>(1 + i % 4, random);
            TestCells<double>(1 + i % 4, random);
          }
          for (int i = 0; i < 40; ++i) TestPages(random);
          for (int i = 0; i < 12; ++i) {
            const int64_t most = i % 4 == 0 ? 3000 : 300;
            TestBatchNorm(Draw(random, 0, most), Draw(random, 0, 90), kElements[i % 3], random, pool);
          }
          for (int i = 0; i < 6 * kOperators; ++i) {
            TestOperator(static_cast<OperatorPlace>(i % kOperators), random, pool);
          }
          for (int i = 0; i < 40; ++i) {
            TestPoints<float>(random, pool);
            TestPoints<double>(random, pool);
          }
          for (int kind = 0; kind < kListKinds; ++kind) {
            for (int64_t width = 1; width <= 5; ++width) {
              TestRows(static_cast<ListKind>(kind), width, random, pool);
            }
          }
        });
      }
      for (std::thread& caller : callers) caller.join();
    }
    std::printf("%s: done\n", simd);
  }
  std::printf("%lld checks, %lld failed\n", static_cast<long long>(checks.load()),
              static_cast<long long>(failures.load()));
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace voxax

int main(int count, char** arguments) {
  if (count > 3) {
    void* library = dlopen(arguments[3], RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr || dlsym(library, "voxax_product") == nullptr) {
      std::printf("FAILED: %s\n", dlerror());
      return 1;
    }
    std::printf("%s loads\n", arguments[3]);
  }
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 3;
  return voxax::Main(rounds, count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 0);
}
