// Work on the thread pool of XLA, safely from inside that pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace voxax {

// Runs unit(0) .. unit(units - 1), each once, in any order and on any thread. An exception of one
// unit is thrown again by Run, after the others.
//
// The calling thread takes units itself until none is left, so progress never depends on a free
// thread: where the pool is busy (or the caller is its only thread) the helpers start late, find
// nothing to do and touch nothing but their own share of the state. The caller waits only for
// units that a helper is already running.
class Parallel {
 public:
  using Schedule = std::function<void(std::function<void()>)>;

  // Calls its argument on every thread of a team, the caller's among them, and returns after all.
  using Together = std::function<void(const std::function<void()>&)>;

  Parallel(int64_t threads, Schedule schedule)
      : threads_(std::max<int64_t>(threads, 1)), schedule_(std::move(schedule)) {}

  static Parallel OnTeam(int64_t threads, Together together) {
    Parallel made(threads, Schedule());
    made.together_ = std::move(together);
    return made;
  }

  int64_t threads() const { return threads_; }

  template <typename Unit>
  void Run(int64_t units, const Unit& unit) const {
    if (units <= 0) return;
    if (units == 1 || threads_ == 1) {
      for (int64_t i = 0; i < units; ++i) unit(i);
      return;
    }
    auto state = std::make_shared<State>();
    state->units = units;
    // `unit` outlives every call of it: Run returns only when all units are done.
    state->call = [&unit](int64_t i) { unit(i); };
    if (together_) {
      together_([&] { state->Work(); });
    } else {
      try {
        for (int64_t i = 1; i < std::min(threads_, units); ++i) {
          schedule_([state] { state->Work(); });
        }
      } catch (...) {
        // Out of memory: there are fewer helpers, and this thread takes the rest.
      }
      state->Work();
    }
    std::unique_lock<std::mutex> lock(state->mutex);
    state->all_done.wait(lock, [&] { return state->done == state->units; });
    if (state->thrown) std::rethrow_exception(state->thrown);
  }

  // Runs stretch(begin, end) for stretches that make up [0, units): each takes a share of what is left,
  // at most so many units and at least one. Early ones are long, so that a thread's own cache holds
  // rows that neighbors share, and late ones short, so that no thread waits long for another (guided
  // self-scheduling, Polychronopoulos and Kuck, 1987). Variants that were measured:
  // benchmarks/results/native_variants.md.
  template <typename Stretch>
  void RunStretches(int64_t units, int64_t most, const Stretch& stretch) const {
    std::vector<int64_t> begins;
    for (int64_t at = 0; at < units;) {
      begins.push_back(at);
      at += std::clamp<int64_t>((units - at) / (2 * threads_), 1, most);
    }
    const auto count = static_cast<int64_t>(begins.size());
    begins.push_back(units);
    Run(count, [&](int64_t i) { stretch(begins[i], begins[i + 1]); });
  }

 private:
  struct State {
    int64_t units = 0;
    std::function<void(int64_t)> call;
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    std::condition_variable all_done;
    int64_t done = 0;           // guarded by mutex
    std::exception_ptr thrown;  // guarded by mutex

    void Work() {
      int64_t mine = 0;
      for (int64_t i = next.fetch_add(1); i < units; i = next.fetch_add(1)) {
        try {
          call(i);
        } catch (...) {
          std::lock_guard<std::mutex> lock(mutex);
          thrown = std::current_exception();
        }
        ++mine;
      }
      if (mine == 0) return;
      std::lock_guard<std::mutex> lock(mutex);
      done += mine;
      if (done == units) all_done.notify_all();
    }
  };

  int64_t threads_;
  Schedule schedule_;
  Together together_;
};

}  // namespace voxax
