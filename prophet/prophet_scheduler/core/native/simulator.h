// A cluster on a virtual clock: workers that compute, the same TwoLaneQueue as in a job, links and servers.
//
// Rule of this file: discrete events, nothing random and nothing real. Whatever varies (computing times, link rates)
// is input, so the same input gives the same output, bit for bit. simulation_spec.h has the input and output, and
// simulate/ makes the input. Events with equal times happen in the order in which they were scheduled.
//
// The model:
//   - A worker has one processor and, for each iteration, the same graph of operations. When the processor is free, it
//     starts the ready operation with the lowest index. The end of an operation may generate tensors. An operation may
//     need tensors of the previous iteration, or of the same one.
//   - A tensor travels as partitions. A layout has the tensors of one cut of the job's gradients. It may change at the
//     start of a round, for all workers alike.
//   - With servers: push, acknowledgement, pull request and answer as in BytePS. The server answers when every worker
//     has pushed (synchronous) or at once (asynchronous). Collective: one channel for all. A tensor is ready when every
//     worker has generated it. An operation uses the channel and the processors at the same time, and ends when both
//     are done. Operations take turns on each.
//   - A server takes time for each message with data, in and out, one after another. A push is acknowledged and summed
//     after that.
//   - Each direction of a node's link is first come, first served. A message of s bytes takes overhead + s / rate
//     there; the rate may change over time. Messages cut through: the receiver's link is busy while the last bytes
//     arrive, so a single narrow link costs only its own time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "events.h"
#include "layouts.h"
#include "link.h"
#include "servers.h"
#include "simulation_spec.h"
#include "two_lane_queue.h"

namespace prophet {

class Simulation {
 public:
  // Throws std::invalid_argument or std::out_of_range if the spec is invalid.
  explicit Simulation(ClusterSpec spec)
      : spec_(std::move(spec)),
        layouts_(spec_.operations.size(), spec_.partition_bytes, spec_.servers),
        servers_(spec_) {
    if (spec_.partition_bytes == 0) throw std::invalid_argument("partitions of 0 bytes");
    if (spec_.servers == 0 && spec_.exchange != Exchange::kCollective) throw std::invalid_argument("no server");
    for (const OperationSpec& operation : spec_.operations) {
      for (uint32_t successor : operation.successors) spec_.operations.at(successor);
    }
    up_.resize(spec_.workers + spec_.servers);
    down_.resize(spec_.workers + spec_.servers);
    workers_.resize(spec_.workers);
    for (Worker& worker : workers_) {
      worker.waiting.assign(spec_.operations.size(), 0);
      worker.queue = std::make_unique<TwoLaneQueue>(spec_.watchdog_s);
    }
    marks_.assign(static_cast<size_t>(spec_.workers) * spec_.iterations, Mark{});
    recorded_.assign(spec_.workers, false);
    std::vector<std::vector<uint32_t>> generates;
    for (const OperationSpec& operation : spec_.operations) generates.push_back(operation.generates);
    layouts_.use_from(0, add_layout(spec_.tensors, generates));
  }

  // Adds a cut of the same gradients; see Layouts::add.
  uint32_t add_layout(const std::vector<TensorSpec>& tensors, const std::vector<std::vector<uint32_t>>& generates) {
    uint32_t number = layouts_.add(tensors, generates);
    size_t count = layouts_.tensors();
    if (spec_.exchange == Exchange::kCollective) {
      for (auto& generated_by : generated_by_) generated_by.resize(count, 0);
    } else {
      servers_.resize(layouts_.partitions());
    }
    for (Worker& worker : workers_) {
      for (auto* by_tensor : {&worker.round, &worker.completed, &worker.partitions_left}) by_tensor->resize(count, 0);
    }
    return number;
  }

  // Uses a layout from the next round on that no worker has begun and that is a multiple of `every`. Returns that
  // round.
  uint32_t use_layout(uint32_t number, uint32_t every) {
    if (every == 0) throw std::invalid_argument("a layout from every 0th round on");
    uint32_t begun = 0;
    for (const Worker& worker : workers_) begun = std::max(begun, worker.iteration);
    uint32_t round = (begun / every + 1) * every;
    layouts_.use_from(round, number);
    return round;
  }

  // Nodes are the workers, then the servers. With collectives, node 0's uplink is the channel.
  void set_link(uint32_t node, std::vector<std::pair<double, double>> up, std::vector<std::pair<double, double>> down,
                double overhead_s, double burst_bytes) {
    up_.at(node).rate = Rate(std::move(up));
    down_.at(node).rate = Rate(std::move(down));
    up_[node].overhead_s = down_[node].overhead_s = overhead_s;
    up_[node].burst_bytes = down_[node].burst_bytes = burst_bytes;
  }

  // Sets factors of the operations' times, by worker, then iteration. Missing factors are 1.
  void set_compute_scale(std::vector<std::vector<double>> scale) { scale_ = std::move(scale); }

  // Records the events of a worker's tasks, its messages, and when it computes.
  void record(uint32_t worker) { recorded_.at(worker) = true; }

  // Gives all workers the plan. Returns its number in their records, kNoPlan for no plan.
  uint32_t set_plan(const TwoLanePlan& plan) {
    uint32_t number = plan.push == nullptr ? kNoPlan : plans_++;
    for (uint32_t w = 0; w < workers_.size(); ++w) {
      workers_[w].queue->set_plan(plan);
      if (recorded_[w]) workers_[w].events.push_back(queue_event(EventKind::kPlan, now_, number));
      if (!begun_) continue;
      pump(w, kPush);
      pump(w, kPull);
    }
    return number;
  }

  // Runs until `until_s` or for `events` events. Returns true if every worker has finished its iterations. Throws
  // std::logic_error if no events are left before then.
  bool run(double until_s, uint64_t events) {
    if (!begun_) {
      begun_ = true;
      for (uint32_t w = 0; w < workers_.size(); ++w) begin_iteration(w);
    }
    for (; finished_ < spec_.workers && events > 0; --events) {
      if (agenda_.empty()) throw std::logic_error("the simulation stands still: " + where_it_stands());
      if (agenda_.top().time_s > until_s) {
        now_ = until_s;
        return false;
      }
      Happening event = agenda_.top();
      agenda_.pop();
      now_ = event.time_s;
      ++events_;
      happen(event);
    }
    return finished_ == spec_.workers;
  }

  double now() const { return now_; }
  uint64_t events() const { return events_; }
  uint32_t iterations_done() const {
    uint32_t least = spec_.iterations;
    for (const Worker& worker : workers_) least = std::min(least, worker.iteration);
    return least;
  }
  const std::vector<Mark>& marks() const { return marks_; }
  // Returns the events of a recorded worker since the last call, by time.
  std::vector<Event> take_events(uint32_t worker) { return std::exchange(workers_.at(worker).events, {}); }
  const std::vector<ComputeRecord>& computing() const { return computing_; }
  const std::vector<LinkRecord>& links() const { return links_; }
  uint64_t watchdog_releases() const {
    uint64_t count = 0;
    for (const Worker& worker : workers_) count += worker.queue->watchdog_releases();
    return count;
  }
  const ClusterSpec& spec() const { return spec_; }

 private:
  static constexpr QueueKind kPush = QueueKind::kPush;
  static constexpr QueueKind kPull = QueueKind::kPull;
  static constexpr QueueKind kPushesFirst[] = {kPush, kPull};
  static constexpr QueueKind kRequestsFirst[] = {kPull, kPush};
  enum Message : uint8_t { kPushData, kAcknowledgement, kRequest, kAnswer };
  enum Kind : uint8_t {
    kOperationEnds,
    kAskAgain,
    kSumIsReady,
    kServerIsDone,
    kReachesReceiver,
    kDelivered,
    kCollectiveEnds
  };

  struct Happening {
    double time_s;
    uint64_t sequence;
    uint32_t worker;
    uint32_t what;  // a partition; of kOperationEnds an operation, of kAskAgain a QueueKind
    uint32_t iteration;
    Kind kind;
    Message message;
  };
  struct Later {
    bool operator()(const Happening& a, const Happening& b) const {
      return a.time_s != b.time_s ? a.time_s > b.time_s : a.sequence > b.sequence;
    }
  };

  struct Worker {
    uint32_t iteration = 0;
    uint32_t operations_left = 0;
    bool busy = false;
    std::vector<uint32_t> waiting;  // by operation: number of inputs and tensors that are missing
    std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ready;
    std::vector<uint32_t> round;            // by tensor: the round in which it was last generated
    std::vector<uint32_t> completed;        // by tensor: last round whose result is back, plus 1
    std::vector<uint32_t> partitions_left;  // by tensor: of this round
    std::unique_ptr<TwoLaneQueue> queue;
    double asks_again[2] = {kNever, kNever};
    std::vector<Event> events;
  };

  void schedule(double time_s, Kind kind, uint32_t worker, uint32_t what, uint32_t iteration = 0,
                Message message = kPushData) {
    agenda_.push(Happening{time_s, next_sequence_++, worker, what, iteration, kind, message});
  }

  void happen(const Happening& event) {
    switch (event.kind) {
      case kOperationEnds:
        operation_ends(event.worker, event.what);
        break;
      case kAskAgain: {
        double& asks_again = workers_[event.worker].asks_again[event.what];
        if (asks_again == event.time_s) {
          asks_again = kNever;
          pump(event.worker, static_cast<QueueKind>(event.what));
        }
        break;
      }
      case kSumIsReady:
        server_handles(kAnswer, event);
        break;
      case kServerIsDone:
        server_is_done(event);
        break;
      case kReachesReceiver: {
        auto [start, end] = down_[receiver(event)].take(event.time_s, bytes_of(event), is_data(event));
        if (!from_worker(event.message)) note_link(event, start, end, 1);
        schedule(end + spec_.latency_s, kDelivered, event.worker, event.what, event.iteration, event.message);
        break;
      }
      case kDelivered:
        delivered(event);
        break;
      case kCollectiveEnds:
        collective_ends(event.what);
        break;
    }
  }

  // ---- computing ----

  double scale(uint32_t w, uint32_t iteration) const {
    return w < scale_.size() && iteration < scale_[w].size() ? scale_[w][iteration] : 1.0;
  }

  void begin_iteration(uint32_t w) {
    Worker& worker = workers_[w];
    if (worker.iteration == spec_.iterations) {
      ++finished_;
      return;
    }
    mark(w).start_s = now_;
    worker.operations_left = static_cast<uint32_t>(spec_.operations.size());
    const Layout& layout = layouts_.of_round(worker.iteration);
    const Layout& before = layouts_.of_round(worker.iteration > 0 ? worker.iteration - 1 : 0);
    for (uint32_t o = 0; o < spec_.operations.size(); ++o) {
      uint32_t missing = spec_.operations[o].inputs + layout.needs_now[o];
      for (uint32_t tensor : before.needs[o]) missing += worker.completed[tensor] < worker.iteration;
      worker.waiting[o] = missing;
      if (missing == 0) worker.ready.push(o);
    }
    compute(w);
  }

  Mark& mark(uint32_t w) { return marks_[static_cast<size_t>(w) * spec_.iterations + workers_[w].iteration]; }

  void compute(uint32_t w) {
    Worker& worker = workers_[w];
    if (worker.busy || worker.ready.empty()) return;
    uint32_t operation = worker.ready.top();
    worker.ready.pop();
    worker.busy = true;
    if (static_cast<int32_t>(operation) == spec_.backward) {
      mark(w).backward_s = now_;
      if (spec_.ends_at_backward && worker.iteration + 1 == spec_.iterations) {
        ++finished_;
        return;
      }
    }
    double seconds = spec_.operations[operation].seconds * scale(w, worker.iteration);
    if (recorded_[w] && seconds > 0) {
      computing_.push_back(ComputeRecord{now_, now_ + seconds, w, worker.iteration, operation, 0});
    }
    schedule(now_ + seconds, kOperationEnds, w, operation);
  }

  void operation_ends(uint32_t w, uint32_t o) {
    Worker& worker = workers_[w];
    worker.busy = false;
    for (uint32_t successor : spec_.operations[o].successors) {
      if (--worker.waiting[successor] == 0) worker.ready.push(successor);
    }
    const std::vector<uint32_t>& generated = layouts_.of_round(worker.iteration).generates[o];
    for (uint32_t tensor : generated) generate(w, tensor);
    if (--worker.operations_left == 0) {
      mark(w).end_s = now_;
      ++worker.iteration;
      begin_iteration(w);
    } else {
      compute(w);
    }
    if (!generated.empty()) pump(spec_.exchange == Exchange::kCollective ? 0 : w, kPush);
  }

  // ---- communication ----

  void generate(uint32_t w, uint32_t tensor) {
    Worker& worker = workers_[w];
    worker.round[tensor] = worker.iteration;
    uint32_t first = layouts_.first_partition(tensor), after = layouts_.first_partition(tensor + 1);
    worker.partitions_left[tensor] = after - first;
    uint32_t queue_of = w;
    if (spec_.exchange == Exchange::kCollective) {
      uint32_t& count = generated_by_[worker.iteration % 2][tensor];
      if (++count < spec_.workers) return;
      count = 0;
      queue_of = 0;
    }
    for (uint32_t p = first; p < after; ++p) add(queue_of, p, kPush);
  }

  void add(uint32_t w, uint32_t p, QueueKind lane) {
    Task task{p, layouts_.tensor_of(p).id, layouts_.partition(p).bytes};
    if (workers_[w].queue->add(lane, task, now_)) note(w, p, lane, EventKind::kAdd);
  }

  // Starts all tasks of a lane that may start now, and schedules the next time to ask.
  void pump(uint32_t w, QueueKind lane) {
    Worker& worker = workers_[w];
    for (;;) {
      if (spec_.at_once > 0 && operations_under_way_ >= spec_.at_once) return;
      if (spec_.delay_first && up_[0].free_at - spec_.latency_s > now_) {
        return ask_again(w, lane, up_[0].free_at - spec_.latency_s);
      }
      Decision decision = worker.queue->get(lane, now_);
      if (!decision.start) return ask_again(w, lane, decision.retry_at);
      uint32_t p = static_cast<uint32_t>(decision.task.id);
      note(w, p, lane, EventKind::kStart);
      // A tensor travels only between its generation and the start of the next iteration that needs it.
      const Partition& partition = layouts_.partition(p);
      uint32_t round = worker.round[partition.tensor];
      if (spec_.exchange == Exchange::kCollective) {
        double delayed_s = spec_.latency_s * pieces(partition.bytes);
        double issued = now_ + (spec_.delay_first ? delayed_s : 0);
        auto [start, end] = up_[0].take(issued, partition.bytes, true);
        if (recorded_[0]) links_.push_back(LinkRecord{start, end, 0, partition.bytes, 0, 0});
        ++operations_under_way_;
        if (spec_.delay_first) delayed_s = 0;
        double ready = std::max({end, operated(partition.bytes), now_ + spec_.meanwhile * delayed_s});
        schedule(ready + (1 - spec_.meanwhile) * delayed_s, kCollectiveEnds, w, p, round);
      } else {
        send(lane == kPush ? kPushData : kRequest, w, p, round);
      }
    }
  }

  void ask_again(uint32_t w, QueueKind lane, double at) {
    double& asks_again = workers_[w].asks_again[static_cast<int>(lane)];
    if (at >= asks_again) return;
    asks_again = std::max(at, now_);
    schedule(asks_again, kAskAgain, w, static_cast<uint32_t>(lane));
  }

  double bytes_of(const Happening& event) const {
    return spec_.header_bytes + (is_data(event) ? layouts_.partition(event.what).bytes : 0);
  }
  bool is_data(const Happening& event) const { return event.message == kPushData || event.message == kAnswer; }
  bool from_worker(Message message) const { return message == kPushData || message == kRequest; }
  uint32_t sender(const Happening& event) const {
    return from_worker(event.message) ? event.worker : spec_.workers + layouts_.partition(event.what).server;
  }
  uint32_t receiver(const Happening& event) const {
    return from_worker(event.message) ? spec_.workers + layouts_.partition(event.what).server : event.worker;
  }

  void send(Message message, uint32_t w, uint32_t p, uint32_t round) {
    Happening event{now_, 0, w, p, round, kDelivered, message};
    double bytes = bytes_of(event);
    auto [start, end] = up_[sender(event)].take(now_, bytes, is_data(event));
    if (from_worker(message)) note_link(event, start, end, 0);
    const Link& down = down_[receiver(event)];
    if (down.rate.limited() || down.overhead_s > 0) {
      double last = end - down.rate.seconds(end, bytes) - (is_data(event) ? down.overhead_s : 0);
      schedule(std::max(start, last), kReachesReceiver, w, p, round, message);
    } else {
      if (!from_worker(message)) note_link(event, end, end, 1);
      schedule(end + spec_.latency_s, kDelivered, w, p, round, message);
    }
  }

  void note_link(const Happening& event, double start, double end, uint32_t down) {
    if (!recorded_[event.worker]) return;
    links_.push_back(LinkRecord{start, end, event.worker, static_cast<uint32_t>(bytes_of(event)), down, 0});
  }

  void delivered(const Happening& event) {
    uint32_t w = event.worker;
    uint32_t p = event.what;
    switch (event.message) {
      case kPushData:
        server_handles(kPushData, event);
        break;
      case kAcknowledgement:
        finish(w, p, kPush);
        add(w, p, kPull);
        // In a job the loops of the two lanes race for the wire, unless pushes let requests go first. Either wins
        // about as often; pushes first is the slower order.
        for (QueueKind lane : workers_[w].queue->requests_first(now_) ? kRequestsFirst : kPushesFirst) pump(w, lane);
        break;
      case kRequest:
        if (servers_.requested(w, p, event.iteration)) answer(w, p, event.iteration);
        break;
      case kAnswer:
        finish(w, p, kPull);
        pump(w, kPull);
        arrived(w, p);
        break;
    }
  }

  // The server receives a push, or sends an answer.
  void server_handles(Message message, Happening event) {
    event.message = message;
    double at = servers_.handled(layouts_.partition(event.what).server, now_);
    if (at == now_) return server_is_done(event);
    schedule(at, kServerIsDone, event.worker, event.what, event.iteration, message);
  }

  void server_is_done(const Happening& event) {
    if (event.message == kAnswer) return send(kAnswer, event.worker, event.what, event.iteration);
    // As in BytePS, the acknowledgement means that the push has arrived, not that it was summed.
    send(kAcknowledgement, event.worker, event.what, event.iteration);
    const Partition& partition = layouts_.partition(event.what);
    for (uint32_t w : servers_.pushed(event.what, partition, event.iteration, now_))
      answer(w, event.what, event.iteration);
  }

  void finish(uint32_t w, uint32_t p, QueueKind lane) {
    workers_[w].queue->finish(lane, p, now_);
    note(w, p, lane, EventKind::kFinish);
  }

  void note(uint32_t w, uint32_t p, QueueKind lane, EventKind kind) {
    if (!recorded_[w]) return;
    const Partition& partition = layouts_.partition(p);
    workers_[w].events.push_back(Event{now_, layouts_.tensor_of(p).id, partition.bytes,
                                       static_cast<uint16_t>(partition.number), static_cast<uint8_t>(lane),
                                       static_cast<uint8_t>(kind), 0});
  }

  void answer(uint32_t w, uint32_t p, uint32_t round) {
    schedule(servers_.answer(p, round, now_), kSumIsReady, w, p, round, kAnswer);
  }

  double pieces(double bytes) const {
    return spec_.piece_bytes > 0 ? std::max(1.0, std::ceil(bytes / spec_.piece_bytes)) : 1.0;
  }

  // Returns when the workers' processors will have finished an operation that starts now.
  double operated(double bytes) {
    operated_until_ = std::max(operated_until_, now_) + spec_.operation_s +
                      (spec_.operation_rate > 0 ? bytes / spec_.operation_rate : 0.0);
    return operated_until_;
  }

  void collective_ends(uint32_t p) {
    --operations_under_way_;
    finish(0, p, kPush);
    for (uint32_t w = 0; w < workers_.size(); ++w) arrived(w, p);
    pump(0, kPush);
  }

  void arrived(uint32_t w, uint32_t p) {
    Worker& worker = workers_[w];
    uint32_t tensor = layouts_.partition(p).tensor;
    if (--worker.partitions_left[tensor] > 0) return;
    // An iteration that has begun counted the tensor as missing; one that has not will find it completed.
    worker.completed[tensor] = worker.round[tensor] + 1;
    bool now = worker.round[tensor] == worker.iteration;
    if (!now && worker.completed[tensor] != worker.iteration) return;
    const TensorSpec& spec = layouts_.tensor(tensor);
    for (uint32_t operation : now ? spec.needed_now : spec.needed_by) {
      if (--worker.waiting[operation] == 0) worker.ready.push(operation);
    }
    compute(w);
  }

  std::string where_it_stands() const {
    for (uint32_t w = 0; w < workers_.size(); ++w) {
      const Worker& worker = workers_[w];
      if (worker.iteration == spec_.iterations) continue;
      return "worker " + std::to_string(w) + " is in iteration " + std::to_string(worker.iteration) + " with " +
             std::to_string(worker.operations_left) + " operations to go, " +
             std::to_string(worker.queue->lane(kPush).pending()) + " pushes and " +
             std::to_string(worker.queue->lane(kPull).pending()) + " pulls waiting";
    }
    return "all workers are done";
  }

  const ClusterSpec spec_;
  Layouts layouts_;
  Servers servers_;
  std::vector<Link> up_, down_;            // by node
  std::vector<uint32_t> generated_by_[2];  // collective: workers, by parity of the round and tensor
  uint32_t operations_under_way_ = 0;      // collective
  double operated_until_ = 0;              // collective: when processors will have finished all operations so far
  std::vector<Worker> workers_;
  std::vector<std::vector<double>> scale_;
  std::vector<bool> recorded_;
  std::vector<Mark> marks_;
  std::vector<ComputeRecord> computing_;
  std::vector<LinkRecord> links_;
  std::priority_queue<Happening, std::vector<Happening>, Later> agenda_;
  uint64_t next_sequence_ = 0;
  uint64_t events_ = 0;
  uint32_t finished_ = 0;
  uint32_t plans_ = 0;
  double now_ = 0;
  bool begun_ = false;
};

}  // namespace prophet
