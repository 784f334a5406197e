// Tensors with different partition sizes, in a BytePS that has one number for all.
//
// Rule of this file: whose turn it is when BytePS reads the number, and its value in that turn. hook.cc calls this.
//
// BytePS reads the number twice: when a tensor is pushed for the first time (InitTensor, which then waits for all
// workers) and at each push (EnqueueTensor). Each read is a turn, in which the number is that tensor's. The first turn
// ends when InitTensor calls SetProfileFlag, long before it waits for anybody. The second ends with EnqueueTensor,
// which waits for nobody. A job's first pushes have no turns. They show whether BytePS's calls of all three functions
// reach the hook: if those of SetProfileFlag did not, a turn would last until the slowest worker arrives.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "layout.h"

namespace prophet {

class Partitions {
 public:
  // True if sizes can be given: the hook sees both reads, and tensors have their names where expected. `number` points
  // to BytePS's number; null if it is unknown.
  bool able(const uint32_t* number) const { return number != nullptr && named_ && first_look_ && later_look_; }

  // Let tensors have sizes of their own from now on. Call it only if `able`.
  void turn_on(uint32_t* number) {
    std::lock_guard<std::mutex> lock(mutex_);
    number_ = number;
    on_ = true;
  }

  // Set the partition size of a tensor, before its first push.
  void give(const char* name, uint32_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    sizes_[name] = bytes;
  }

  // Forget all sizes: BytePS is restarting, and no tensor has been pushed.
  void turn_off() {
    std::lock_guard<std::mutex> lock(mutex_);
    on_ = false;
    sizes_.clear();
  }

  // Wraps InitTensor. Only one thread at a time opens a given tensor. Others wait for it, as they would in BytePS, but
  // without holding a turn.
  class FirstLook {
   public:
    FirstLook(Partitions& all, const void* context) : all_(all), context_(context), turn_(all.on_) {
      if (!turn_) {
        watching() = true;
        if (!all_.looked_.exchange(true)) all_.named_ = is_named(context);
        return;
      }
      {
        std::unique_lock<std::mutex> lock(all_.opening_mutex_);
        all_.opened_.wait(lock, [&] { return all_.opening_.insert(context_).second; });
      }
      all_.begin(context_);
    }
    ~FirstLook() {
      watching() = false;
      if (!turn_) return;
      all_.end();  // if the tensor was already open, BytePS has not called SetProfileFlag
      {
        std::lock_guard<std::mutex> lock(all_.opening_mutex_);
        all_.opening_.erase(context_);
      }
      all_.opened_.notify_all();
    }

   private:
    Partitions& all_;
    const void* context_;
    const bool turn_;
  };

  // Called by SetProfileFlag.
  void first_look_is_over() {
    if (watching()) first_look_ = true;
    end();
  }

  // Wraps EnqueueTensor.
  class LaterLook {
   public:
    LaterLook(Partitions& all, const void* context) : all_(all) {
      all_.later_look_ = true;
      if (all_.on_) all_.begin(context);
    }
    ~LaterLook() { all_.end(); }

   private:
    Partitions& all_;
  };

 private:
  // Begin a turn of this thread.
  void begin(const void* context) {
    mutex_.lock();
    in_turn() = true;
    auto size = sizes_.empty() ? sizes_.end() : sizes_.find(context_name(context));
    if (size != sizes_.end()) number_before_ = std::exchange(*number_, size->second);
  }

  // End this thread's turn, if it has one.
  void end() {
    if (!std::exchange(in_turn(), false)) return;
    if (number_before_ != 0) *number_ = std::exchange(number_before_, 0);
    mutex_.unlock();
  }

  static bool& in_turn() {
    thread_local bool in_turn = false;
    return in_turn;
  }
  static bool& watching() {
    thread_local bool watching = false;
    return watching;
  }

  std::mutex mutex_;  // held during a turn
  uint32_t* number_ = nullptr;
  uint32_t number_before_ = 0;  // BytePS's number while a turn has another; otherwise 0
  std::unordered_map<std::string, uint32_t> sizes_;
  std::atomic<bool> on_{false}, looked_{false}, named_{false}, first_look_{false}, later_look_{false};

  std::mutex opening_mutex_;
  std::condition_variable opened_;
  std::set<const void*> opening_;
};

}  // namespace prophet
