#include "threads.h"

#include <dlfcn.h>
#include <unistd.h>

#include <deque>
#include <system_error>
#include <thread>

namespace voxax {
namespace {

// More would be a mistake of the caller.
constexpr int64_t kMostThreads = 1024;

class Pool {
 public:
  // The pool of this process. Threads do not survive a fork, and a lock that one of them held stays
  // locked, so the child leaves its copy of the parent's pool alone and makes another.
  static Pool& Get() {
    Pool* pool = current.load();
    const pid_t process = getpid();
    while (pool == nullptr || pool->process_ != process) {
      Pool* fresh = new Pool(process);
      if (current.compare_exchange_strong(pool, fresh)) return *fresh;
      delete fresh;
    }
    return *pool;
  }

  // Throws std::system_error where the system starts no thread at all.
  void Schedule(std::function<void()> task, int64_t helpers) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (static_cast<int64_t>(tasks_.size()) >= idle_ && started_ < helpers) {
      try {
        std::thread([this] { Work(); }).detach();
        ++started_;
      } catch (const std::system_error&) {
        if (started_ == 0) throw;
      }
    }
    tasks_.push_back(std::move(task));
    wake_.notify_one();
  }

 private:
  explicit Pool(pid_t process) : process_(process) {}

  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      ++idle_;
      wake_.wait(lock, [this] { return !tasks_.empty(); });
      --idle_;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
  }

  // Never destroyed: at exit its threads still wait.
  static inline std::atomic<Pool*> current{nullptr};

  const pid_t process_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  int64_t idle_ = 0, started_ = 0;
};

// GNU's OpenMP: calls a function with its argument on so many threads.
using TeamCall = void (*)(void (*)(void*), void*, unsigned, unsigned);

// Null where it is not loaded for all libraries, or after a fork, which its threads do not survive.
TeamCall OpenMp() {
  static const pid_t first = getpid();
  if (getpid() != first) return nullptr;
  return reinterpret_cast<TeamCall>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
}

}  // namespace

Parallel OwnThreads(int64_t threads) {
  const int64_t helpers = std::clamp<int64_t>(threads, 1, kMostThreads) - 1;
  if (const TeamCall team_call = helpers == 0 ? nullptr : OpenMp()) {
    // Always as many: a team of another size would start threads anew.
    return Parallel::OnTeam(helpers + 1, [helpers, team_call](const std::function<void()>& work) {
      const auto call = [](void* data) { (*static_cast<const std::function<void()>*>(data))(); };
      team_call(call, const_cast<std::function<void()>*>(&work), helpers + 1, 0);
    });
  }
  return Parallel(helpers + 1, [helpers](std::function<void()> task) {
    Pool::Get().Schedule(std::move(task), helpers);
  });
}

}  // namespace voxax
