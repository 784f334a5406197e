// The BytePS hook: takes over the PUSH and PULL queues of an unmodified BytePS core.
//
// Rule of this file: glue between BytePS's threads and TwoLaneQueue. It owns the lock, the clock and the waiting, and
// decides nothing. originals.h and layout.h have the facts about BytePS; partitions.h gives tensors different partition
// sizes.
//
// docs/decisions/taking-over-by-symbol.md says how it takes over. PUSH and PULL tasks wait in our queue. A chosen task
// still passes through BytePS's own queue: it is added and taken at once.
//
// How it detects a finish. BytePS reports only a size. So a push or pull counts as finished when its task is added to a
// later stage, which happens in the same call, right after the acknowledgement or data has arrived. PULL follows PUSH,
// except on a single machine with several PCIe switches: there COPYH2D does, and PUSH is a barrier between the GPUs.
//
// At most kMostInFlight pushes and as many pulls are in flight (docs/decisions/places-in-flight.md). A loop that finds
// no task waits here until one is added to one of its queues (docs/decisions/waiting-instead-of-polling.md).
//
// Suspending. BytePS deletes its queues when it is suspended or shut down, and creates new ones when it resumes. Old
// tasks are forgotten when a queue is created, and when Python calls prophet_hook_reset. A late answer may cause a call
// for a deleted queue, which does nothing.
//
// One way. In asynchronous training, which turns this on, a task with one of two priorities skips PULL or PUSH when its
// turn comes. If BytePS does not export the function that this needs, tasks go both ways.
//
// Errors. On anything unexpected, the hook hands all tasks back to BytePS and steps aside for good.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "events.h"
#include "forks.h"
#include "lane.h"
#include "layout.h"
#include "originals.h"
#include "partitions.h"
#include "plan_codec.h"
#include "signal.h"
#include "two_lane_queue.h"

namespace {

using namespace prophet;
using Clock = std::chrono::steady_clock;

constexpr int kTasksChecked = 64;                            // first tasks, which must look sane
constexpr size_t kMostInFlight = 256;                        // pushes, and as many pulls
constexpr size_t kEventCapacity = 1 << 20;                   // 24 MiB, six events a task: 175,000 tasks a drain
constexpr size_t kReadyChecks = 256;                         // held tasks checked at a time
constexpr auto kIdleWait = std::chrono::milliseconds(20);    // longest wait for an add if nothing is waiting
constexpr auto kReadyPoll = std::chrono::microseconds(100);  // longest wait if a task's data is not ready
constexpr int32_t kPushOnly = -(1 << 30), kPullOnly = -(1 << 30) - 1;  // hook.py has the same values

double now_s() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

Originals originals;

struct Hook {
  std::mutex mutex;  // guards everything below it
  std::unique_ptr<TwoLaneQueue> queue;
  std::unique_ptr<Lane> push, pull;
  EventLog events{kEventCapacity};
  double check_held_at = 0;  // when the held pushes may be checked again
  double moved_s = 0;        // when a task was last added, started or finished
  int checked = 0;
  char why_aside[160] = "";
  uint64_t tasks = 0;
  uint32_t plans = 0;       // number of plans taken up so far
  uint32_t plan = kNoPlan;  // number of the plan in force

  EntryLayout layout;
  std::atomic<bool> attached{false};  // the originals are known
  std::atomic<bool> active{false};    // scheduling is on
  std::atomic<bool> one_way{false};   // tasks may go one way only
  Signal stage_signal[kStages];
  Signal group_signal;
  Signal completed;
  Partitions partitions;

  Lane& lane(Stage stage) { return stage == Stage::kPush ? *push : *pull; }
};

Hook*& instance() {
  static Hook* instance = new Hook;  // never destroyed: BytePS's threads may outlive static destructors
  return instance;
}
Hook& hook() { return *instance(); }

// Give a forked child a hook that is not attached, so that BytePS's own functions serve its calls. The child has none
// of the parent's threads, and a lock that one of them held at the fork stays locked forever. If BytePS has had no task
// yet, the child may start BytePS as a separate worker. So it takes over the state, which nothing is using.
void begin_anew_in_child() {
  Hook& parents = hook();
  Hook& own = *(instance() = new Hook);
  if (parents.tasks > 0) return;
  own.queue = std::move(parents.queue);
  own.push = std::move(parents.push);
  own.pull = std::move(parents.pull);
  own.layout = parents.layout;
  own.plans = parents.plans;
  own.plan = parents.plan;
  own.one_way = parents.one_way.load();
  own.attached = parents.attached.load();
  own.active = parents.active.load();
}

// Return BytePS's own queue for a stage; null if there is none.
BytePSScheduledQueue* queue_of(Stage stage) { return originals.queue_of(static_cast<int>(stage)); }

// Return `queue`, a `this` that may be null if BytePS has deleted its queues. The compiler assumes that `this` is never
// null, so the value is hidden from it.
BytePSScheduledQueue* or_null(BytePSScheduledQueue* queue) {
  asm volatile("" : "+r"(queue));
  return queue;
}

// Return the stage of a BytePS queue. Queues are recreated after a suspend, so the last stage is checked again.
Stage stage_of(BytePSScheduledQueue* queue) {
  thread_local Stage last = Stage::kCoordinateReduce;
  if (queue == nullptr) return Stage::kCount;
  if (queue_of(last) == queue) return last;
  for (int number = 0; number < kStages; ++number) {
    if (queue_of(static_cast<Stage>(number)) == queue) return last = static_cast<Stage>(number);
  }
  return Stage::kCount;
}

// Return the number of tasks in BytePS's own queue; 0 if it is gone.
uint32_t pending_in(BytePSScheduledQueue* queue) { return queue != nullptr ? originals.pending(queue) : 0; }

// One thread serves both REDUCE and BROADCAST, so they share a signal.
Signal& signal_of(Stage stage) {
  if (stage == Stage::kBroadcast) stage = Stage::kReduce;
  return hook().stage_signal[static_cast<int>(stage)];
}

void wake_lanes() {
  signal_of(Stage::kPush).raise();
  signal_of(Stage::kPull).raise();
}

EntryFields fields_of(const Entry& entry) { return read_entry(entry.get(), hook().layout); }

// A front end gives gradient i the priority -(i + 1).
uint32_t gradient_of(const EntryFields& fields) {
  return fields.priority < 0 ? static_cast<uint32_t>(-(fields.priority + 1))
                             : fields.declared_key() | kUnprofiledGradient;
}

// Record an event of a task. The caller holds the lock.
void note(const EntryFields& fields, QueueKind queue, EventKind kind, double now) {
  hook().moved_s = now;
  hook().events.append(Event{now, gradient_of(fields), fields.length, fields.partition(), static_cast<uint8_t>(queue),
                             static_cast<uint8_t>(kind), 0});
}

// Hand all waiting tasks back to BytePS, those that are ready in order of arrival, and never schedule again. The caller
// holds the lock.
void step_aside(const char* why) {
  Hook& h = hook();
  if (!h.active.exchange(false)) return;
  std::snprintf(h.why_aside, sizeof(h.why_aside), "%s", why);
  h.queue->clear();
  for (Stage stage : {Stage::kPush, Stage::kPull}) {
    BytePSScheduledQueue* original = queue_of(stage);
    for (Entry& entry : h.lane(stage).forget()) {
      if (original != nullptr) originals.add(original, std::move(entry));
    }
  }
  wake_lanes();
}

// Forget all waiting and in-flight tasks: their engine is gone, or about to go. Scheduling stays on.
void forget_all() {
  Hook& h = hook();
  std::vector<Entry> dropped[2];  // destroyed after the lock is released: see lane.h
  {
    std::lock_guard<std::mutex> lock(h.mutex);
    if (!h.attached) return;
    h.queue->clear();
    dropped[0] = h.push->forget();
    dropped[1] = h.pull->forget();
    h.push->left_in_original = pending_in(queue_of(Stage::kPush));
    h.pull->left_in_original = pending_in(queue_of(Stage::kPull));
    if (h.tasks > 0) h.events.forgotten(now_s(), h.plan);
  }
  wake_lanes();
}

// True if the other GPUs of this machine have done their part of the task.
bool key_ready(const Entry& entry) {
  ReadyTable* table = *originals.push_table;
  return table == nullptr || originals.is_key_ready(table, fields_of(entry).key);
}

// Let the queue decide when a task goes whose data is ready. The caller holds the lock.
void schedule(Lane& lane, const Entry& entry, double now) {
  EntryFields fields = fields_of(entry);
  note(fields, lane.kind, EventKind::kAdd, now);
  lane.schedule(entry, gradient_of(fields), fields.length, now);
}

bool finish(Lane& lane, const Entry& entry, double now) {
  if (!lane.finish(entry.get(), now)) return false;
  note(fields_of(entry), lane.kind, EventKind::kFinish, now);
  return true;
}

struct TakeOver {
  bool taken = false;                         // false: the entry goes to BytePS's own queue
  bool wake_push = false, wake_pull = false;  // credit was returned, and a task may start
};

TakeOver take_over(Stage stage, const Entry& entry) {
  Hook& h = hook();
  std::lock_guard<std::mutex> lock(h.mutex);
  TakeOver result;
  if (!h.active) return result;
  double now = now_s();
  if (stage > Stage::kPush) result.wake_push = finish(*h.push, entry, now) && h.push->has_waiting();
  if (stage > Stage::kPull) result.wake_pull = finish(*h.pull, entry, now) && h.pull->has_waiting();
  if (stage != Stage::kPush && stage != Stage::kPull) {
    if (h.queue->empty()) h.events.empty(now, h.plan);
    return result;
  }
  if (h.checked < kTasksChecked) {
    ++h.checked;
    if (const char* why = why_insane(entry.get(), h.layout, stage)) {
      step_aside(why);
      return result;
    }
  }
  ++h.tasks;
  Lane& lane = h.lane(stage);
  if (stage == Stage::kPush && !key_ready(entry)) {
    lane.hold(entry);
  } else {
    schedule(lane, entry, now);
  }
  result.taken = true;
  return result;
}

// Schedule held pushes that have become ready; nothing signals that. The lock is held, so check few, and seldom.
void look_at_held(Lane& lane, double now) {
  Hook& h = hook();
  if (now < h.check_held_at) return;
  h.check_held_at = now + std::chrono::duration<double>(kReadyPoll).count();
  lane.look_at_held(kReadyChecks, key_ready, [&](const Entry& entry) { schedule(lane, entry, now); });
}

// Return the next task of a taken-over queue; if there is none, null and how long to wait before asking again.
std::pair<Entry, Clock::duration> choose(BytePSScheduledQueue* queue, Stage stage) {
  Hook& h = hook();
  std::lock_guard<std::mutex> lock(h.mutex);
  Lane& lane = h.lane(stage);
  if (!h.active || lane.left_in_original > 0) {
    Entry entry = originals.get(queue);
    if (entry && lane.left_in_original > 0) --lane.left_in_original;
    if (entry || !h.active) return {entry, Clock::duration::zero()};
  }
  double now = now_s();
  look_at_held(lane, now);
  Decision decision = h.queue->get(lane.kind, now);
  if (!decision.start) {
    if (decision.frees_push && h.push->has_waiting()) signal_of(Stage::kPush).raise();
    double wait_s = std::min(decision.retry_at - now, std::chrono::duration<double>(kIdleWait).count());
    auto wait = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::max(wait_s, 0.0)));
    return {nullptr, lane.polls() ? std::min<Clock::duration>(wait, kReadyPoll) : wait};
  }
  Entry entry = lane.started(decision.task, now);
  note(fields_of(entry), lane.kind, EventKind::kStart, now);
  originals.add(queue, std::move(entry));
  Entry chosen = originals.get(queue);
  if (!chosen) ++lane.left_in_original;
  return {chosen, kReadyPoll};
}

// Return how long a loop without a task may wait. Nothing signals that a waiting task's data is ready.
Clock::duration wait_for(bool waits_for_data) { return waits_for_data ? Clock::duration(kReadyPoll) : kIdleWait; }

// Return a task of PUSH or PULL; null if there is none after a wait; nullopt if the hook has stepped aside.
std::optional<Entry> get_taken(BytePSScheduledQueue* queue, Stage stage) {
  if (!hook().active) return std::nullopt;
  Signal& signal = signal_of(stage);
  try {
    uint64_t seen = signal.seen();
    auto [entry, wait] = choose(queue, stage);
    if (entry) return entry;
    signal.wait(seen, wait);
    return choose(queue, stage).first;
  } catch (const std::exception& error) {
    std::lock_guard<std::mutex> lock(hook().mutex);
    step_aside(error.what());
    return std::nullopt;
  }
}

// Return a task of REDUCE or BROADCAST. One thread asks REDUCE for some tasks and then BROADCAST, round after round. It
// waits before a round if the last one had no tasks. Waiting for one queue in mid-round would delay the other's tasks.
Entry get_in_round(BytePSScheduledQueue* queue, Stage stage) {
  thread_local Stage last = Stage::kBroadcast;
  thread_local bool had_task = false;
  thread_local uint64_t seen = 0;
  Signal& signal = signal_of(stage);
  bool round_begins = stage == Stage::kReduce && last == Stage::kBroadcast;
  last = stage;
  if (round_begins) {
    if (!std::exchange(had_task, false)) {
      bool pending = pending_in(queue_of(Stage::kReduce)) > 0 || pending_in(queue_of(Stage::kBroadcast)) > 0;
      signal.wait(seen, wait_for(pending));
    }
    seen = signal.seen();
  }
  Entry entry = originals.get(queue);
  had_task |= entry != nullptr;
  return entry;
}

// Return the task for a PUSH or PULL loop. If the task only goes the other way, pass it to its next stage; return null.
Entry unless_other_way(Stage stage, Entry entry) {
  if (entry == nullptr || !hook().one_way) return entry;
  if (fields_of(entry).priority != (stage == Stage::kPush ? kPullOnly : kPushOnly)) return entry;
  originals.proceed(std::move(entry));
  return nullptr;
}

thread_local bool tensor_completed = false;  // a tensor's last stage finished in this thread

}  // namespace

namespace byteps {
namespace common {

BytePSScheduledQueue::BytePSScheduledQueue(QueueType type) {
  originals.construct(this, type);
  Stage stage = static_cast<Stage>(type);
  if (stage != Stage::kPush && stage != Stage::kPull) return;
  forget_all();
  hook().partitions.turn_off();
}

void BytePSScheduledQueue::addTask(std::shared_ptr<TensorTableEntry> entry) {
  BytePSScheduledQueue* queue = or_null(this);
  if (queue == nullptr) return;
  Stage stage = stage_of(queue);
  TakeOver result;
  if (stage >= Stage::kPush && stage < Stage::kCount) {
    try {
      result = take_over(stage, entry);
    } catch (const std::exception& error) {
      std::lock_guard<std::mutex> lock(hook().mutex);
      step_aside(error.what());
    }
  }
  if (!result.taken) originals.add(queue, std::move(entry));
  if (stage != Stage::kCount) signal_of(stage).raise();
  // An acknowledged push or an answered pull returns credit to its queue.
  if (result.wake_push) signal_of(Stage::kPush).raise();
  if (result.wake_pull) signal_of(Stage::kPull).raise();
}

std::shared_ptr<TensorTableEntry> BytePSScheduledQueue::getTask() {
  BytePSScheduledQueue* queue = or_null(this);
  if (queue == nullptr) return nullptr;
  Stage stage = stage_of(queue);
  switch (stage) {
    case Stage::kCount:
      return originals.get(queue);
    case Stage::kReduce:
    case Stage::kBroadcast:
      return get_in_round(queue, stage);
    case Stage::kPush:
    case Stage::kPull:
      if (std::optional<Entry> chosen = get_taken(queue, stage)) return unless_other_way(stage, std::move(*chosen));
      break;  // stepped aside; then tasks go both ways
    default:
      break;
  }
  // Check again after the wait: without a task, BytePS's loop would sleep before it asks again.
  uint64_t seen = signal_of(stage).seen();
  if (Entry entry = originals.get(queue)) return entry;
  signal_of(stage).wait(seen, wait_for(pending_in(queue) > 0));
  return originals.get(queue);
}

void BytePSScheduledQueue::reportFinish(int size) {
  BytePSScheduledQueue* queue = or_null(this);
  if (queue == nullptr) return;
  originals.report(queue, size);
  if (stage_of(queue) == Stage::kBroadcast) tensor_completed = true;
}

void NcclManager::EnqueueGroup(std::shared_ptr<NcclGroupEntry> entry) {
  originals.enqueue_group(this, std::move(entry));
  hook().group_signal.raise();
}

std::shared_ptr<NcclGroupEntry> NcclManager::DequeueGroup() {
  // The thread that finishes tensors returns here once their callbacks have run.
  if (std::exchange(tensor_completed, false)) hook().completed.raise();
  uint64_t seen = hook().group_signal.seen();
  if (std::shared_ptr<NcclGroupEntry> entry = originals.dequeue_group(this)) return entry;
  hook().group_signal.wait(seen, kIdleWait);
  return originals.dequeue_group(this);
}

void InitTensor(BytePSContext& context, size_t bytes, int dtype, void* buffer) {
  Partitions::FirstLook look(hook().partitions, &context);
  originals.init_tensor(context, bytes, dtype, buffer);
}

void BytePSGlobal::SetProfileFlag(BytePSContext* context) {
  hook().partitions.first_look_is_over();
  originals.set_profile_flag(context);
}

Status EnqueueTensor(BytePSContext& context, std::shared_ptr<Tensor> input, std::shared_ptr<Tensor> output,
                     std::shared_ptr<ReadyEvent> ready, int device, int priority, int version,
                     std::function<void(const Status&)> callback, std::shared_ptr<std::vector<QueueType>> stages) {
  Partitions::LaterLook look(hook().partitions, &context);
  return originals.enqueue_tensor(context, std::move(input), std::move(output), std::move(ready), device, priority,
                                  version, std::move(callback), std::move(stages));
}

}  // namespace common
}  // namespace byteps

// Structures and functions for plugins/byteps/prophet_byteps/hook.py, which declares the same structures.
extern "C" {

// One lane (PUSH, PULL): tasks waiting and in flight, and the gradient and age of the oldest in flight.
struct prophet_lane_status {
  uint64_t waiting, in_flight;
  double oldest_s;  // seconds in flight; negative if no task is
  uint32_t oldest_gradient, reserved;
};

struct prophet_status {
  uint64_t tasks, in_flight_bytes, watchdog_releases, unanswered_releases, events_dropped;
  double still_s;  // seconds since a task was last added, started or finished; negative before the first
  prophet_lane_status lanes[2];
  int32_t active;
  char why_aside[160];
};

// Layouts that Python must share. It checks them before anything else.
struct prophet_layouts {
  uint32_t event_version, event_bytes, plan_version, most_in_flight;
};

void prophet_hook_layouts(prophet_layouts* out) {
  *out = prophet_layouts{kEventVersion, sizeof(Event), kPlanVersion, kMostInFlight};
}

// Find BytePS's own functions in its loaded library, which has the old or the new C++ ABI of strings. Returns 0, or -1
// with the reason in `why`.
int prophet_hook_attach(const char* library, int old_strings, double watchdog_s, char* why, size_t why_bytes) {
  Hook& h = hook();
  void* handle = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
  if (handle == nullptr) {
    std::snprintf(why, why_bytes, "%s is not loaded", library);
    return -1;
  }
  for (const Symbol& symbol : symbols_of(originals)) {
    *symbol.slot = dlsym(handle, symbol.name);
    if (*symbol.slot == nullptr && !symbol.optional) {
      std::snprintf(why, why_bytes, "no %s in %s", symbol.name, library);
      return -1;
    }
  }
  h.layout.name_bytes = old_strings ? 8 : 32;
  h.queue = std::make_unique<TwoLaneQueue>(watchdog_s, kMostInFlight);
  h.push = std::make_unique<Lane>(QueueKind::kPush, *h.queue);
  h.pull = std::make_unique<Lane>(QueueKind::kPull, *h.queue);
  h.attached = true;
  h.active = true;
  static const int kRegistered = pthread_atfork(nullptr, nullptr, begin_anew_in_child);
  return kRegistered + mend_forks();
}

// Forget all waiting and in-flight tasks: BytePS is being suspended or shut down. The plan stays.
void prophet_hook_reset() { forget_all(); }

// Step aside; harmless when repeated.
void prophet_hook_step_aside(const char* why) {
  std::lock_guard<std::mutex> lock(hook().mutex);
  if (hook().attached) step_aside(why);
}

// Take up a plan, encoded as in plan_codec.h. Returns its number in the event record. If the plan cannot be taken up,
// keeps the old one and returns -1, with one line in `why`.
int64_t prophet_hook_set_plan(const void* bytes, size_t size, char* why, size_t why_bytes) {
  TwoLanePlan plan;
  try {
    plan = decode_plan(bytes, size);
  } catch (const std::exception& error) {
    std::snprintf(why, why_bytes, "%s", error.what());
    return -1;
  }
  Hook& h = hook();
  uint32_t number;
  {
    std::lock_guard<std::mutex> lock(h.mutex);
    if (!h.attached) {
      std::snprintf(why, why_bytes, "the hook is not attached");
      return -1;
    }
    h.queue->set_plan(std::move(plan));
    number = h.plan = h.plans++;
    h.events.append(queue_event(EventKind::kPlan, now_s(), number));
  }
  wake_lanes();
  return number;
}

// Let tasks go one way only, from now on. Returns 0 if that is impossible.
int prophet_hook_one_way() { return hook().one_way = hook().active && originals.proceed != nullptr; }

// True if tensors can have different partition sizes, as far as BytePS's first pushes have shown.
int prophet_hook_sizes_apart() { return hook().partitions.able(originals.partition_bytes); }

void prophet_hook_turn_on_sizes() { hook().partitions.turn_on(originals.partition_bytes); }

// Set the partition size of the tensor with this name in BytePS, before its first push.
void prophet_hook_give_size(const char* name, uint32_t bytes) { hook().partitions.give(name, bytes); }

size_t prophet_hook_drain(Event* out, size_t capacity) {
  std::lock_guard<std::mutex> lock(hook().mutex);
  return hook().events.drain(out, capacity);
}

void prophet_hook_status(prophet_status* out) {
  Hook& h = hook();
  std::lock_guard<std::mutex> lock(h.mutex);
  *out = prophet_status{};
  double now = now_s();
  out->active = h.active;
  out->tasks = h.tasks;
  out->still_s = h.tasks > 0 ? now - h.moved_s : -1.0;
  out->events_dropped = h.events.dropped();
  std::snprintf(out->why_aside, sizeof(out->why_aside), "%s", h.why_aside);
  if (!h.attached) return;
  for (const Lane* lane : {h.push.get(), h.pull.get()}) {
    prophet_lane_status& status = out->lanes[static_cast<int>(lane->kind)];
    std::optional<Lane::Oldest> oldest = lane->oldest_in_flight();
    status.waiting = lane->waiting();
    const ScheduledQueue& queue = h.queue->lane(lane->kind);
    status.in_flight = queue.in_flight();
    status.oldest_s = oldest ? now - oldest->started_s : -1.0;
    status.oldest_gradient = oldest ? oldest->gradient : 0;
    out->in_flight_bytes += queue.in_flight_bytes();
  }
  out->watchdog_releases = h.queue->watchdog_releases();
  out->unanswered_releases = h.queue->unanswered_releases();
}

// Wait until the count of completed tensors differs from `seen`, at most `limit_s` seconds. Returns the count.
uint64_t prophet_hook_wait_completed(uint64_t seen, double limit_s) {
  auto limit = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s));
  return hook().completed.wait(seen, limit);
}

}  // extern "C"
