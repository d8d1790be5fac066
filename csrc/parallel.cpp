#include "parallel.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "screening.h"

namespace keysift {
namespace {

std::atomic<keysift_parallel_for> pool_run{nullptr};
std::atomic<keysift_thread_count> pool_size{nullptr};
std::atomic<int64_t> default_threads{0};
std::atomic<bool> forked{false};

// Registered when the library is loaded, so that a fork before the first call is noticed too.
[[maybe_unused]] const int fork_watch = pthread_atfork(nullptr, nullptr, [] { forked = true; });

struct Free {
  void operator()(char* p) const { std::free(p); }
};

// Scratch memory of a thread, kept between calls so that decoding does not allocate. Large buffers are freed.
class Scratch {
 public:
  char* of(int64_t bytes) {
    if (bytes > size_) {
      block_.reset();
      size_ = 0;
      void* p = nullptr;
      if (posix_memalign(&p, 64, static_cast<size_t>(bytes)) != 0) throw std::bad_alloc();
      block_.reset(static_cast<char*>(p));
      size_ = bytes;
    }
    return block_.get();
  }
  void trim() {
    if (size_ > kMaxKept) {
      block_.reset();
      size_ = 0;
    }
  }

 private:
  static constexpr int64_t kMaxKept = int64_t{1} << 20;
  std::unique_ptr<char, Free> block_;
  int64_t size_ = 0;
};

thread_local Scratch thread_scratch;

// Threads take tasks one at a time, because tasks with long windows cost far more than others.
struct Queue {
  int64_t count, bytes;
  const std::function<void(int64_t, char*)>& task;
  std::atomic<int64_t> next{0};
  std::atomic<int> status{KEYSIFT_OK};

  void drain() noexcept {
    try {
      char* scratch = thread_scratch.of(bytes);
      while (status == KEYSIFT_OK) {
        const int64_t i = next++;
        if (i >= count) break;
        task(i, scratch);
      }
      thread_scratch.trim();
    } catch (...) {
      status = KEYSIFT_NO_MEMORY;
    }
  }
};

}  // namespace

int64_t thread_count() {
  const keysift_thread_count count_threads = pool_size;
  uint32_t threads = 0;
  if (count_threads && count_threads(&threads) == 0 && threads > 0) return threads;
  if (default_threads > 0) return default_threads;
  return std::max<int64_t>(1, std::thread::hardware_concurrency());
}

int run_tasks(int64_t count, int64_t threads, int64_t bytes, const std::function<void(int64_t, char*)>& task) {
  Queue queue{count, bytes, task};
  threads = std::min(threads, count);
  const keysift_parallel_for run = pool_run;
  if (threads <= 1) {
    queue.drain();
  } else if (run && !forked) {
    auto body = [](int64_t, int64_t, void* context) { static_cast<Queue*>(context)->drain(); };
    if (run(0, threads, 1, body, &queue) != 0) return KEYSIFT_NO_THREAD;
  } else {
    std::vector<std::thread> workers;
    try {
      workers.reserve(static_cast<size_t>(threads - 1));
      for (int64_t x = 1; x < threads; ++x) workers.emplace_back([&queue] { queue.drain(); });
    } catch (const std::exception&) {
      // Fewer threads than requested still finish the work.
    }
    queue.drain();
    for (std::thread& worker : workers) worker.join();
  }
  return queue.status;
}

}  // namespace keysift

void keysift_set_threads(keysift_parallel_for parallel_for, keysift_thread_count count, int64_t threads) {
  keysift::pool_run = parallel_for;
  keysift::pool_size = count;
  keysift::default_threads = threads;
}
