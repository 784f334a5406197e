// The BytePS hook: takes over the PUSH and PULL queues of an unmodified BytePS core.
//
// Rule of this file: glue between BytePS's threads and prophet::ScheduledQueue. It owns the lock, the
// clock and the waiting; it decides nothing.
//
// How it takes over. BytePS's core calls addTask, getTask and reportFinish of its scheduled queues
// through the procedure linkage table, and exports them. This library defines the same functions and
// is loaded first with RTLD_GLOBAL, so the core's calls come here; BytePS's own are found by dlsym in
// its library. PUSH and PULL tasks wait in our queue. A task that is chosen goes through BytePS's own
// queue after all (added and taken at once), which keeps its readiness checks and its tracing.
//
// How a finish is known. BytePS reports only a size, so a push is finished when its task is added to
// PULL, and a pull when its task is added to the stage after PULL: both happen in the same call, right
// after the acknowledgement or the data came.
//
// Requests first. An acknowledged push makes two things possible: the request for its pull, and the next push. They
// leave by the same socket, where the request, a few bytes, would wait for the whole push. So the PUSH loop gets no
// task until the PULL loop has sent what it could, for as long as our queue finds worth it.
//
// Polling. BytePS's loops poll with sleeps of a microsecond. A loop that finds nothing waits here until
// a task is added to one of its queues, which leaves the processor to the job.
//
// Errors. Anything unexpected hands all tasks back to BytePS in order of arrival and steps aside for good.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../../../prophet/native/events.h"
#include "../../../prophet/native/queue.h"
#include "layout.h"

// The names that BytePS's core calls. Declared as far as their mangled names need it.
namespace byteps {
namespace common {

enum QueueType : int;
struct TensorTableEntry;
class NcclGroupEntry;
class ReadyTable;

class BytePSScheduledQueue {
 public:
  void addTask(std::shared_ptr<TensorTableEntry> entry);
  std::shared_ptr<TensorTableEntry> getTask();
  void reportFinish(int size);
};

class NcclManager {
 public:
  void EnqueueGroup(std::shared_ptr<NcclGroupEntry> entry);
  std::shared_ptr<NcclGroupEntry> DequeueGroup();
};

}  // namespace common
}  // namespace byteps

namespace {

using byteps::common::BytePSScheduledQueue;
using byteps::common::NcclGroupEntry;
using byteps::common::NcclManager;
using byteps::common::ReadyTable;
using byteps::common::TensorTableEntry;
using prophet::EntryFields;
using prophet::EntryLayout;
using prophet::Event;
using prophet::EventKind;
using prophet::QueueKind;
using prophet::Stage;
using Entry = std::shared_ptr<TensorTableEntry>;
using Clock = std::chrono::steady_clock;

constexpr int kTasksChecked = 64;                            // how many first tasks must look sane
constexpr size_t kEventCapacity = 1 << 17;                   // 3 MiB of events between two drains
constexpr auto kIdleWait = std::chrono::milliseconds(20);    // nothing to do: until an add, at most this
constexpr auto kReadyPoll = std::chrono::microseconds(100);  // something there, but its data is not ready
constexpr double kNoRequest = -1.0;

double now_s() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

// BytePS's own functions, found in its library.
struct Originals {
  void (*add)(BytePSScheduledQueue*, Entry) = nullptr;
  Entry (*get)(BytePSScheduledQueue*) = nullptr;
  void (*report)(BytePSScheduledQueue*, int) = nullptr;
  uint32_t (*pending)(BytePSScheduledQueue*) = nullptr;
  BytePSScheduledQueue* (*queue_of)(int) = nullptr;
  void (*enqueue_group)(NcclManager*, std::shared_ptr<NcclGroupEntry>) = nullptr;
  std::shared_ptr<NcclGroupEntry> (*dequeue_group)(NcclManager*) = nullptr;
  bool (*is_key_ready)(ReadyTable*, uint64_t) = nullptr;
  ReadyTable** push_table = nullptr;
};

struct Symbol {
  const char* name;
  void** slot;
};

Originals originals;

std::vector<Symbol> symbols() {
#define PROPHET_QUEUE "_ZN6byteps6common20BytePSScheduledQueue"
  return {
      {PROPHET_QUEUE "7addTaskESt10shared_ptrINS0_16TensorTableEntryEE", (void**)&originals.add},
      {PROPHET_QUEUE "7getTaskEv", (void**)&originals.get},
      {PROPHET_QUEUE "12reportFinishEi", (void**)&originals.report},
      {PROPHET_QUEUE "11pendingSizeEv", (void**)&originals.pending},
      {"_ZN6byteps6common12BytePSGlobal17GetScheduledQueueENS0_9QueueTypeE", (void**)&originals.queue_of},
      {"_ZN6byteps6common11NcclManager12EnqueueGroupESt10shared_ptrINS0_14NcclGroupEntryEE",
       (void**)&originals.enqueue_group},
      {"_ZN6byteps6common11NcclManager12DequeueGroupEv", (void**)&originals.dequeue_group},
      {"_ZN6byteps6common10ReadyTable10IsKeyReadyEm", (void**)&originals.is_key_ready},
      {"_ZN6byteps6common12BytePSGlobal11_push_tableE", (void**)&originals.push_table},
  };
#undef PROPHET_QUEUE
}

// Wakes loops that wait for work. The counter is read before a queue is looked at, so that an add in
// between is never missed.
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
  uint64_t wait(uint64_t seen, Clock::duration limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, limit, [&] { return count_ != seen; });
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t count_ = 0;
};

// One taken-over queue: our scheduler, and the BytePS entries behind its task ids.
struct TakenQueue {
  explicit TakenQueue(double watchdog_s) : scheduler(watchdog_s) {}

  prophet::ScheduledQueue scheduler;
  std::unordered_map<uint64_t, Entry> pending;          // by task id
  std::unordered_map<TensorTableEntry*, uint64_t> ids;  // pending or in flight
  std::deque<std::pair<uint64_t, Entry>> not_ready;     // PUSH of several GPUs: others are not done yet
  uint32_t left_in_original = 0;                        // chosen, but BytePS found them not ready
  uint64_t next_id = 0;

  bool has_waiting() const { return !pending.empty() || !not_ready.empty() || left_in_original > 0; }
};

struct Hook {
  std::mutex mutex;  // guards everything below it
  std::unique_ptr<TakenQueue> push, pull;
  prophet::EventLog events{kEventCapacity};
  double requests_first_until = kNoRequest;  // since a task came to PULL, until its loop comes back without one
  int checked = 0;
  char why_aside[160] = "";
  uint64_t tasks = 0;

  EntryLayout layout{32};
  double watchdog_s = 1.0;
  std::atomic<bool> attached{false};  // the originals are known
  std::atomic<bool> active{false};    // we schedule
  std::atomic<bool> by_priority{false};
  Signal stage_signal[prophet::kStages];
  Signal group_signal;
  Signal completed;
};

Hook& hook() {
  static Hook* instance = new Hook;  // never destroyed: BytePS's threads may outlive static destructors
  return *instance;
}

// The queue of a BytePS stage is created anew after a suspend, so a remembered pointer is checked.
Stage stage_of(BytePSScheduledQueue* queue) {
  thread_local int last = 0;
  if (originals.queue_of(last) == queue) return static_cast<Stage>(last);
  for (int stage = 0; stage < prophet::kStages; ++stage) {
    if (originals.queue_of(stage) == queue) {
      last = stage;
      return static_cast<Stage>(stage);
    }
  }
  return Stage::kCount;
}

// One thread serves both REDUCE and BROADCAST, so they share a signal.
Signal& signal_of(Stage stage) {
  if (stage == Stage::kBroadcast) stage = Stage::kReduce;
  return hook().stage_signal[static_cast<int>(stage)];
}

uint32_t gradient_of(const EntryFields& fields) {
  if (hook().by_priority) {
    return fields.priority < 0 ? static_cast<uint32_t>(-(fields.priority + 1))
                               : fields.declared_key() | prophet::kUnprofiledGradient;
  }
  return fields.declared_key();
}

void log_event(TensorTableEntry* entry, QueueKind queue, EventKind kind, double now) {
  EntryFields fields = prophet::read_entry(entry, hook().layout);
  hook().events.append(Event{now, gradient_of(fields), fields.length, fields.partition(), static_cast<uint8_t>(queue),
                             static_cast<uint8_t>(kind), 0});
}

// Hands everything that waits back to BytePS, in order of arrival, and never schedules again. The lock is held.
void step_aside(const char* why) {
  Hook& h = hook();
  if (!h.active.exchange(false)) return;
  std::snprintf(h.why_aside, sizeof(h.why_aside), "%s", why);
  for (auto [taken, stage] : {std::pair{h.push.get(), Stage::kPush}, std::pair{h.pull.get(), Stage::kPull}}) {
    std::vector<std::pair<uint64_t, Entry>> waiting(taken->pending.begin(), taken->pending.end());
    waiting.insert(waiting.end(), taken->not_ready.begin(), taken->not_ready.end());
    std::sort(waiting.begin(), waiting.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    BytePSScheduledQueue* original = originals.queue_of(static_cast<int>(stage));
    for (auto& [id, entry] : waiting) originals.add(original, entry);
    taken->pending.clear();
    taken->not_ready.clear();
    taken->ids.clear();
  }
}

// Whether the other GPUs of this machine have done their part of the task.
bool key_ready(const EntryFields& fields) {
  ReadyTable* table = *originals.push_table;
  return table == nullptr || originals.is_key_ready(table, fields.key);
}

void schedule(TakenQueue& taken, QueueKind kind, uint64_t id, Entry entry, double now) {
  EntryFields fields = prophet::read_entry(entry.get(), hook().layout);
  log_event(entry.get(), kind, EventKind::kAdd, now);
  taken.scheduler.add(prophet::Task{id, gradient_of(fields), fields.length}, now);
  taken.pending.emplace(id, std::move(entry));
}

void finish(TakenQueue& taken, QueueKind kind, TensorTableEntry* entry, double now) {
  auto it = taken.ids.find(entry);
  if (it == taken.ids.end()) return;
  taken.scheduler.finish(it->second, now);
  taken.ids.erase(it);
  log_event(entry, kind, EventKind::kFinish, now);
}

struct TakeOver {
  bool taken = false;       // false: BytePS should have the entry
  bool credit_back = true;  // the queue it came from may now have something to start
};

TakeOver take_over(Stage stage, const Entry& entry) {
  Hook& h = hook();
  std::lock_guard<std::mutex> lock(h.mutex);
  TakeOver result;
  if (!h.active) return result;
  double now = now_s();
  if (stage == Stage::kPull) {
    finish(*h.push, QueueKind::kPush, entry.get(), now);
    result.credit_back = h.push->has_waiting();
  }
  if (stage == Stage::kCopyH2D || stage == Stage::kDecompress) {
    finish(*h.pull, QueueKind::kPull, entry.get(), now);
    result.credit_back = h.pull->has_waiting();
    return result;
  }
  if (h.checked < kTasksChecked) {
    ++h.checked;
    if (const char* why = prophet::why_insane(entry.get(), h.layout, stage)) {
      step_aside(why);
      return result;
    }
  }
  if (stage == Stage::kPull && h.requests_first_until == kNoRequest) {
    h.requests_first_until = h.push->scheduler.requests_first_until(now);
  }
  ++h.tasks;
  TakenQueue& taken = stage == Stage::kPush ? *h.push : *h.pull;
  uint64_t id = taken.next_id++;
  taken.ids[entry.get()] = id;
  if (stage == Stage::kPush && !key_ready(prophet::read_entry(entry.get(), h.layout))) {
    taken.not_ready.emplace_back(id, entry);
  } else {
    schedule(taken, stage == Stage::kPush ? QueueKind::kPush : QueueKind::kPull, id, entry, now);
  }
  result.taken = true;
  return result;
}

// The PULL loop has sent what it could, and a push may follow. The lock is held.
void requests_are_sent() {
  Hook& h = hook();
  bool waited_for = std::exchange(h.requests_first_until, kNoRequest) != kNoRequest;
  if (waited_for && h.push->has_waiting()) signal_of(Stage::kPush).raise();
}

// The next task of a taken-over queue; where there is none, how long to wait before asking again.
std::pair<Entry, Clock::duration> choose(BytePSScheduledQueue* queue, Stage stage) {
  Hook& h = hook();
  std::lock_guard<std::mutex> lock(h.mutex);
  TakenQueue& taken = stage == Stage::kPush ? *h.push : *h.pull;
  if (!h.active || taken.left_in_original > 0) {
    Entry entry = originals.get(queue);
    if (entry && taken.left_in_original > 0) --taken.left_in_original;
    if (entry || !h.active) return {entry, kIdleWait};
  }
  double now = now_s();
  QueueKind kind = stage == Stage::kPush ? QueueKind::kPush : QueueKind::kPull;
  for (size_t i = taken.not_ready.size(); i > 0; --i) {
    auto [id, entry] = std::move(taken.not_ready.front());
    taken.not_ready.pop_front();
    if (key_ready(prophet::read_entry(entry.get(), h.layout))) {
      schedule(taken, kind, id, std::move(entry), now);
    } else {
      taken.not_ready.emplace_back(id, std::move(entry));
    }
  }
  prophet::Decision decision;
  if (stage == Stage::kPush && now < h.requests_first_until) {
    decision.retry_at = h.requests_first_until;
  } else {
    decision = taken.scheduler.get(now);
  }
  if (!decision.start) {
    if (stage == Stage::kPull) requests_are_sent();
    double wait_s = std::min(decision.retry_at - now, std::chrono::duration<double>(kIdleWait).count());
    auto wait = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::max(wait_s, 0.0)));
    bool polls = !taken.not_ready.empty() || taken.left_in_original > 0;
    return {nullptr, polls ? std::min<Clock::duration>(wait, kReadyPoll) : wait};
  }
  auto it = taken.pending.find(decision.task.id);
  Entry entry = std::move(it->second);
  taken.pending.erase(it);
  log_event(entry.get(), kind, EventKind::kStart, now);
  originals.add(queue, entry);
  Entry chosen = originals.get(queue);
  if (!chosen) ++taken.left_in_original;
  return {chosen, kReadyPoll};
}

// How long a loop without a task waits at most; what waits for its data gives no signal when that is there.
Clock::duration wait_for(bool waits_for_data) {
  return waits_for_data ? Clock::duration(kReadyPoll) : Clock::duration(kIdleWait);
}

// A task of PUSH or PULL, or a null one after waiting for some; nothing where this steps aside.
std::optional<Entry> get_taken(BytePSScheduledQueue* queue, Stage stage) {
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

// One thread asks REDUCE for some tasks and then BROADCAST, round after round. It waits before a round that follows one
// without tasks: in between, waiting for one queue would delay what the other has.
Entry get_in_round(BytePSScheduledQueue* queue, Stage stage) {
  thread_local Stage last = Stage::kBroadcast;
  thread_local bool had_task = false;
  thread_local uint64_t seen = 0;
  Signal& signal = signal_of(stage);
  bool round_begins = stage == Stage::kReduce && last == Stage::kBroadcast;
  last = stage;
  if (round_begins) {
    if (!std::exchange(had_task, false)) {
      bool waits_for_data = false;
      for (Stage other : {Stage::kReduce, Stage::kBroadcast}) {
        waits_for_data |= originals.pending(originals.queue_of(static_cast<int>(other))) > 0;
      }
      signal.wait(seen, wait_for(waits_for_data));
    }
    seen = signal.seen();
  }
  Entry entry = originals.get(queue);
  had_task |= entry != nullptr;
  return entry;
}

thread_local bool tensor_completed = false;  // a tensor's last stage finished in this thread

}  // namespace

namespace byteps {
namespace common {

void BytePSScheduledQueue::addTask(std::shared_ptr<TensorTableEntry> entry) {
  Stage stage = stage_of(this);
  TakeOver result;
  if (stage == Stage::kPush || stage == Stage::kPull || stage == Stage::kCopyH2D || stage == Stage::kDecompress) {
    try {
      result = take_over(stage, entry);
    } catch (const std::exception& error) {
      std::lock_guard<std::mutex> lock(hook().mutex);
      step_aside(error.what());
    }
  }
  if (!result.taken) originals.add(this, std::move(entry));
  if (stage != Stage::kCount) signal_of(stage).raise();
  // An acknowledged push or an answered pull gives credit back to the queue it came from.
  if (!result.credit_back) return;
  if (stage == Stage::kPull) signal_of(Stage::kPush).raise();
  if (stage == Stage::kCopyH2D || stage == Stage::kDecompress) signal_of(Stage::kPull).raise();
}

std::shared_ptr<TensorTableEntry> BytePSScheduledQueue::getTask() {
  Stage stage = stage_of(this);
  switch (stage) {
    case Stage::kCount:
      return originals.get(this);
    case Stage::kReduce:
    case Stage::kBroadcast:
      return get_in_round(this, stage);
    case Stage::kPush:
    case Stage::kPull:
      if (std::optional<Entry> chosen = get_taken(this, stage)) return *chosen;
      break;  // stepped aside
    default:
      break;
  }
  // A task that came while this waited is handed out at once: with none, BytePS's loop sleeps before it asks again.
  uint64_t seen = signal_of(stage).seen();
  if (Entry entry = originals.get(this)) return entry;
  signal_of(stage).wait(seen, wait_for(originals.pending(this) > 0));
  return originals.get(this);
}

void BytePSScheduledQueue::reportFinish(int size) {
  originals.report(this, size);
  if (stage_of(this) == Stage::kBroadcast) tensor_completed = true;
}

void NcclManager::EnqueueGroup(std::shared_ptr<NcclGroupEntry> entry) {
  originals.enqueue_group(this, std::move(entry));
  hook().group_signal.raise();
}

std::shared_ptr<NcclGroupEntry> NcclManager::DequeueGroup() {
  // The thread that finishes tensors comes back here once their callbacks have run.
  if (std::exchange(tensor_completed, false)) hook().completed.raise();
  uint64_t seen = hook().group_signal.seen();
  if (std::shared_ptr<NcclGroupEntry> entry = originals.dequeue_group(this)) return entry;
  hook().group_signal.wait(seen, kIdleWait);
  return originals.dequeue_group(this);
}

}  // namespace common
}  // namespace byteps

// What plugins/byteps/hook.py calls through ctypes.
extern "C" {

struct prophet_plan {
  int32_t ranked;
  int32_t credit_counts_only_urgent;
  uint64_t credit;
  double bandwidth, overhead_s, deadline_slack_s;
  uint64_t gradient_count;
  const uint32_t* gradient_ids;
  const int32_t* ranks;
  const int32_t* groups;
  const double* generation_s;
  const uint64_t* sizes;
  uint64_t deadline_count;
  const double* deadline_times;
  const int32_t* deadline_ranks;
};

struct prophet_status {
  uint64_t tasks, pending, in_flight_bytes, watchdog_releases, events_dropped;
  int32_t active;
  char why_aside[160];
};

// Finds BytePS's own functions in its loaded library. 0, or -1 with the missing name in `why`.
int prophet_hook_attach(const char* library, int old_string_abi, double watchdog_s, char* why, size_t why_bytes) {
  Hook& h = hook();
  void* handle = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
  if (handle == nullptr) {
    std::snprintf(why, why_bytes, "%s is not loaded", library);
    return -1;
  }
  for (const Symbol& symbol : symbols()) {
    *symbol.slot = dlsym(handle, symbol.name);
    if (*symbol.slot == nullptr) {
      std::snprintf(why, why_bytes, "no %s in %s", symbol.name, library);
      return -1;
    }
  }
  h.layout.name_bytes = old_string_abi ? 8 : 32;
  h.watchdog_s = watchdog_s;
  h.push = std::make_unique<TakenQueue>(watchdog_s);
  h.pull = std::make_unique<TakenQueue>(watchdog_s);
  h.attached = true;
  h.active = true;
  return 0;
}

// Steps aside; harmless when repeated.
void prophet_hook_step_aside(const char* why) {
  std::lock_guard<std::mutex> lock(hook().mutex);
  if (hook().attached) step_aside(why);
}

void prophet_hook_identity(int by_priority) { hook().by_priority = by_priority != 0; }

int prophet_hook_set_plan(int queue, const prophet_plan* given) {
  auto plan = std::make_shared<prophet::QueuePlan>();
  plan->ranked = given->ranked != 0;
  plan->credit_counts_only_urgent = given->credit_counts_only_urgent != 0;
  plan->credit = given->credit;
  plan->bandwidth = given->bandwidth;
  plan->overhead_s = given->overhead_s;
  plan->deadline_slack_s = given->deadline_slack_s;
  for (uint64_t i = 0; i < given->gradient_count; ++i) {
    plan->gradients[given->gradient_ids[i]] =
        prophet::GradientPlan{given->ranks[i], given->groups[i], given->generation_s[i]};
    if (given->groups[i] != prophet::kNoGroup) plan->group_bytes[given->groups[i]] += given->sizes[i];
  }
  for (uint64_t i = 0; i < given->deadline_count; ++i) {
    plan->deadlines.push_back(prophet::Deadline{given->deadline_times[i], given->deadline_ranks[i]});
  }
  Hook& h = hook();
  {
    std::lock_guard<std::mutex> lock(h.mutex);
    if (!h.attached) return -1;
    TakenQueue& taken = queue == static_cast<int>(QueueKind::kPush) ? *h.push : *h.pull;
    taken.scheduler.set_plan(std::move(plan));
  }
  signal_of(queue == static_cast<int>(QueueKind::kPush) ? Stage::kPush : Stage::kPull).raise();
  return 0;
}

size_t prophet_hook_drain(Event* out, size_t capacity) {
  std::lock_guard<std::mutex> lock(hook().mutex);
  return hook().events.drain(out, capacity);
}

void prophet_hook_status(prophet_status* out) {
  Hook& h = hook();
  std::lock_guard<std::mutex> lock(h.mutex);
  *out = prophet_status{};
  out->active = h.active;
  out->tasks = h.tasks;
  out->events_dropped = h.events.dropped();
  std::snprintf(out->why_aside, sizeof(out->why_aside), "%s", h.why_aside);
  if (!h.attached) return;
  for (TakenQueue* taken : {h.push.get(), h.pull.get()}) {
    out->pending += taken->pending.size() + taken->not_ready.size();
    out->in_flight_bytes += taken->scheduler.in_flight_bytes();
    out->watchdog_releases += taken->scheduler.watchdog_releases();
  }
}

// Waits until a tensor has completed since `seen`, at most `limit_s`; returns the new count.
uint64_t prophet_hook_wait_completed(uint64_t seen, double limit_s) {
  auto limit = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s));
  return hook().completed.wait(seen, limit);
}

}  // extern "C"
