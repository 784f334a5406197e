// Signal that a loop without work waits for.
//
// Rule of this file: the counter, and waiting for it. hook.cc raises the signal.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace prophet {

// Wakes loops that wait for work. A loop reads the counter before it checks a queue, so it cannot miss an add in
// between.
class Signal {
 public:
  uint64_t seen() {
    std::lock_guard<std::mutex> lock(mutex_);
    return count_;
  }
  void raise() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++count_;
    }
    changed_.notify_all();
  }
  uint64_t wait(uint64_t seen, std::chrono::steady_clock::duration limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, limit, [&] { return count_ != seen; });
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t count_ = 0;
};

}  // namespace prophet
