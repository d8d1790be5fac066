// Runs tasks on the caller's thread pool, or on std::thread if there is none.
#pragma once

#include <cstdint>
#include <functional>

namespace keysift {

int64_t thread_count();

// Calls task(i, scratch) for every i in [0, count) on at most `threads` threads. Threads take the indices in increasing
// order, one at a time. scratch holds `bytes` bytes, belongs to the thread, and starts on a cache line. Returns a
// keysift_status.
int run_tasks(int64_t count, int64_t threads, int64_t bytes, const std::function<void(int64_t, char*)>& task);

}  // namespace keysift
