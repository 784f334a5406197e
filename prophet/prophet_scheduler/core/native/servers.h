// Servers of the simulated cluster: the sums of their keys, and the time that servers take.
//
// Rule of this file: a server's state, and when it is ready. simulator.h has the messages. Times are seconds of the
// virtual clock, sizes bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "layouts.h"
#include "simulation_spec.h"

namespace prophet {

class Servers {
 public:
  explicit Servers(const ClusterSpec& spec)
      : workers_(spec.workers),
        synchronous_(spec.exchange == Exchange::kSynchronous),
        rate_(spec.server_rate),
        overhead_s_(spec.server_overhead_s),
        free_at_(spec.servers, 0.0),
        handles_until_(spec.servers, 0.0) {}

  void resize(size_t partitions) {
    for (auto& keys : keys_) keys.resize(partitions);
  }

  // Returns when a server will have handled a message with data that arrives now. It handles one at a time.
  double handled(uint32_t server, double now) {
    if (overhead_s_ == 0) return now;
    double& until = handles_until_[server];
    return until = std::max(until, now) + overhead_s_;
  }

  // Records a push. Returns the workers whose requests can now be answered.
  std::vector<uint32_t> pushed(uint32_t p, const Partition& partition, uint32_t round, double now) {
    Key& key = keys_[round % 2][p];
    if (rate_ > 0) {
      double& free_at = free_at_[partition.server];
      key.summed_at = free_at = std::max(free_at, now) + partition.bytes / rate_;
    }
    if (!synchronous_ || ++key.pushed < workers_) return {};
    return std::exchange(key.waiting, {});
  }

  // Records a worker's request. Returns false if the answer has to wait for other workers.
  bool requested(uint32_t w, uint32_t p, uint32_t round) {
    Key& key = keys_[round % 2][p];
    if (!synchronous_ || key.pushed >= workers_) return true;
    key.waiting.push_back(w);
    return false;
  }

  // Returns when an answer can leave: now at the earliest.
  double answer(uint32_t p, uint32_t round, double now) {
    Key& key = keys_[round % 2][p];
    if (synchronous_ && ++key.answered == workers_) key.pushed = key.answered = 0;
    return std::max(now, key.summed_at);
  }

 private:
  // A key's sum at its server in one round. Rounds alternate between two keys, as in the front end.
  struct Key {
    uint32_t pushed = 0;
    uint32_t answered = 0;
    double summed_at = 0;
    std::vector<uint32_t> waiting;  // workers whose request arrived before the sum was complete
  };

  const uint32_t workers_;
  const bool synchronous_;
  const double rate_, overhead_s_;
  std::vector<double> free_at_;        // by server: when it will have summed all pushes so far
  std::vector<double> handles_until_;  // by server: when it will have handled all messages so far
  std::vector<Key> keys_[2];           // by parity of the round and partition
};

}  // namespace prophet
