// A stand-in for BytePS's core, for testing the hook without BytePS: the same exported functions and
// the same task layout, with plain first-in first-out queues. A test drives it step by step; there are no threads here,
// but what the hook calls may be called by some (stress.cc).
#include <dlfcn.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace byteps {
namespace common {

enum QueueType : int { kPush = 6, kPull = 7, kCopyH2D = 9, kStages = 12 };

// BytePS exports a function for each of its threads, by which the hook tells the stages. Here the test is all of them.
void CoordinateReduceLoop() {}
void CoordinateBroadcastLoop() {}
void CoordinatePushLoop() {}
void PcieReduceLoop() {}
void RootNcclLoop() {}
void NonRootNcclLoop() {}
void SyncNcclLoop() {}
void CopyDevice2HostLoop() {}
void RootCopyHost2DeviceLoop() {}
void NonRootCopyListenLoop() {}
void NonRootCopyHost2DeviceLoop() {}
void PushLoop() {}
void PullLoop() {}
void CompressLoop() {}
void DecompressLoop() {}
#ifdef CORE_WITH_ANOTHER_STAGE
void CoordinateAllgatherLoop() {}
#endif

// The fields and their order are BytePS's; types that the hook never reads are opaque.
struct TensorTableEntry {
  std::string tensor_name;
  uint64_t key;
  void* context;
  std::shared_ptr<void> tensor, output;
  int priority = 0, version = 0, root_rank = 0;
  std::shared_ptr<void> ready_event;
  int device = -1;
  std::function<void()> callback;
  void* cpubuff;
  void* gpu_ptr;
  std::vector<void*> pcie_cpubuff;
  std::vector<QueueType> queue_list;
  unsigned int offset = 0, len = 0;
  std::shared_ptr<int> counter_ptr;
  unsigned int total_partnum = 0;

  TensorTableEntry() { ++alive; }
  ~TensorTableEntry() { --alive; }
  static inline std::atomic<int> alive{0};
};

class NcclGroupEntry {};

class ReadyTable {
 public:
  bool IsKeyReady(uint64_t key);
  bool has(uint64_t key) {
    std::lock_guard<std::mutex> lock(mutex);
    return waiting.count(key) == 0;
  }
  std::mutex mutex;
  std::set<uint64_t> waiting;
  std::atomic<long> asked{0};
};
bool ReadyTable::IsKeyReady(uint64_t key) {
  ++asked;
  return has(key);
}

class NcclManager {
 public:
  void EnqueueGroup(std::shared_ptr<NcclGroupEntry> entry);
  std::shared_ptr<NcclGroupEntry> DequeueGroup();
};
void NcclManager::EnqueueGroup(std::shared_ptr<NcclGroupEntry>) {}
std::shared_ptr<NcclGroupEntry> NcclManager::DequeueGroup() { return nullptr; }

class BytePSScheduledQueue {
 public:
  explicit BytePSScheduledQueue(QueueType type);
  void addTask(std::shared_ptr<TensorTableEntry> entry);
  std::shared_ptr<TensorTableEntry> getTask();
  void reportFinish(int size);
  uint32_t pendingSize();
  const QueueType type;
  std::mutex mutex;
  std::deque<std::shared_ptr<TensorTableEntry>> tasks;
  std::atomic<long> finished{0};
};

struct BytePSContext {
  bool initialized = false;
  std::mutex init_mutex;
  std::string tensor_name;
  uint64_t declared_key;
  std::vector<uint64_t> key_list;
};
class Tensor {};
class ReadyEvent {};
class Status {
 public:
  std::string reason;
};

class BytePSGlobal {
 public:
  static void SetProfileFlag(BytePSContext* context);
  static uint32_t _partition_bytes;
  static BytePSScheduledQueue* GetScheduledQueue(QueueType type);
  static void CreateScheduledQueue(QueueType type);
  static ReadyTable* _push_table;
  static BytePSScheduledQueue* queues[kStages];
};
ReadyTable* BytePSGlobal::_push_table = nullptr;
BytePSScheduledQueue* BytePSGlobal::queues[kStages] = {};
BytePSScheduledQueue* BytePSGlobal::GetScheduledQueue(QueueType type) { return queues[type]; }
void BytePSGlobal::CreateScheduledQueue(QueueType type) { queues[type] = new BytePSScheduledQueue(type); }

BytePSScheduledQueue::BytePSScheduledQueue(QueueType type) : type(type) {}
void BytePSScheduledQueue::addTask(std::shared_ptr<TensorTableEntry> entry) {
  std::lock_guard<std::mutex> lock(mutex);
  tasks.push_back(entry);
}
// The first whose data other GPUs have added to.
std::shared_ptr<TensorTableEntry> BytePSScheduledQueue::getTask() {
  std::lock_guard<std::mutex> lock(mutex);
  ReadyTable* table = type == kPush ? BytePSGlobal::_push_table : nullptr;
  for (auto it = tasks.begin(); it != tasks.end(); ++it) {
    if (table != nullptr && !table->has((*it)->key)) continue;
    auto entry = *it;
    tasks.erase(it);
    return entry;
  }
  return nullptr;
}
void BytePSScheduledQueue::reportFinish(int) { ++finished; }
// The hook asks this before it waits: the moment for a task to come just then, as from another thread.
std::mutex before_waiting_mutex;
std::function<void()> before_waiting;
uint32_t BytePSScheduledQueue::pendingSize() {
  std::function<void()> comes;
  {
    std::lock_guard<std::mutex> lock(before_waiting_mutex);
    comes = std::exchange(before_waiting, nullptr);
  }
  if (comes) comes();
  std::lock_guard<std::mutex> lock(mutex);
  return tasks.size();
}

// A stage of the entry is done: on to the next.
void FinishOrProceed(std::shared_ptr<TensorTableEntry> entry) {
  BytePSGlobal::GetScheduledQueue(entry->queue_list[0])->reportFinish(entry->len);
  entry->queue_list.erase(entry->queue_list.begin());
  BytePSGlobal::GetScheduledQueue(entry->queue_list[0])->addTask(entry);
}

uint32_t BytePSGlobal::_partition_bytes = 4000;
void BytePSGlobal::SetProfileFlag(BytePSContext*) {}

// A first push of what is called `byteps.waits` ends when all workers have it, which the test says.
std::mutex all_have_it_mutex;
std::condition_variable all_have_it_changed;
bool all_have_it = false;
std::atomic<int> waiting_for_all{0};

void InitTensor(BytePSContext& context, size_t size, int, void*) {
  std::lock_guard<std::mutex> opening(context.init_mutex);
  if (context.initialized) return;
  uint32_t bound = BytePSGlobal::_partition_bytes;
#ifndef CORE_WITHOUT_A_FLAG
  BytePSGlobal::SetProfileFlag(&context);
#endif
  for (size_t done = 0; done < size; done += bound) context.key_list.push_back(done);
  if (context.tensor_name == "byteps.waits") {
    std::unique_lock<std::mutex> lock(all_have_it_mutex);
    ++waiting_for_all;
    all_have_it_changed.wait(lock, [] { return all_have_it; });
  }
  context.initialized = true;
}

// Says how many partitions there are; as BytePS does, it fails where these are not what the first push made.
Status EnqueueTensor(BytePSContext& context, std::shared_ptr<Tensor>, std::shared_ptr<Tensor>,
                     std::shared_ptr<ReadyEvent>, int size, int, int, std::function<void(const Status&)> callback,
                     std::shared_ptr<std::vector<QueueType>>) {
  size_t bound = BytePSGlobal::_partition_bytes, count = (size + bound - 1) / bound;
  Status status{count == context.key_list.size() ? std::to_string(count) : "-1"};
  callback(status);
  return status;
}

// Exported only so that the hook can tell the C++ ABI by its name.
void* GetContextFromName(const std::string&) { return nullptr; }

}  // namespace common
}  // namespace byteps

using byteps::common::BytePSGlobal;
using byteps::common::QueueType;
using byteps::common::TensorTableEntry;

static std::shared_ptr<TensorTableEntry> held[byteps::common::kStages];
static byteps::common::ReadyTable table;

static std::shared_ptr<TensorTableEntry> push_entry(uint64_t key, int priority, unsigned length) {
  auto entry = std::make_shared<TensorTableEntry>();
  entry->tensor_name = "byteps.gradient_" + std::to_string(key & 0xffff);
  entry->key = key;
  entry->priority = priority;
  entry->len = length;
  entry->total_partnum = (key & 0xffff) + 1;
  entry->offset = (key & 0xffff) * length;
  entry->queue_list = {byteps::common::kPush, byteps::common::kPull, byteps::common::kCopyH2D};
  return entry;
}

extern "C" {

// BytePS begins, or resumes.
void core_start() {
  BytePSGlobal::_push_table = &table;
  for (int stage = 0; stage < byteps::common::kStages; ++stage) {
    BytePSGlobal::CreateScheduledQueue(static_cast<QueueType>(stage));
  }
}

// BytePS is suspended or shut down: its queues are deleted, with what they have.
void core_stop() {
  for (auto& queue : BytePSGlobal::queues) delete std::exchange(queue, nullptr);
  BytePSGlobal::_push_table = nullptr;
}

// Tasks that somebody still refers to.
int core_alive() { return TensorTableEntry::alive; }

// A partition of a gradient reaches PUSH: as BytePS makes it where `sane` is 1, with an empty list of stages where it
// is 0, and where it is 2 with a name that says nothing of the partition.
void core_add_push(uint64_t key, int priority, unsigned length, int sane) {
  auto entry = push_entry(key, priority, length);
  if (sane == 0) entry->queue_list.clear();
  if (sane == 2) entry->tensor_name = "byteps.gradient";
  BytePSGlobal::GetScheduledQueue(byteps::common::kPush)->addTask(entry);
}

// The same on one machine without servers, where no PULL follows.
void core_add_barrier(uint64_t key) {
  auto entry = push_entry(key, -static_cast<int>(key >> 16) - 1, 100);
  entry->queue_list = {byteps::common::kPush, byteps::common::kCopyH2D};
  BytePSGlobal::GetScheduledQueue(byteps::common::kPush)->addTask(entry);
}

// A task of `key` reaches `stage`; with `later`, when the hook is about to wait for one.
void core_add(int stage, uint64_t key, int later) {
  auto entry = std::make_shared<TensorTableEntry>();
  entry->key = key;
  auto comes = [stage, entry] { BytePSGlobal::GetScheduledQueue(static_cast<QueueType>(stage))->addTask(entry); };
  if (later) {
    byteps::common::before_waiting = comes;
  } else {
    comes();
  }
}

// What the loop of a stage does once: the key it got, or -1.
int64_t core_get(int stage) {
  auto entry = BytePSGlobal::GetScheduledQueue(static_cast<QueueType>(stage))->getTask();
  if (!entry) return -1;
  held[stage] = entry;
  return static_cast<int64_t>(entry->key);
}

// What happens when the last one that core_get gave is acknowledged: on to its next stage.
void core_finish(int stage) { byteps::common::FinishOrProceed(std::move(held[stage])); }

// The last one that core_get gave is never acknowledged.
void core_lose(int stage) { held[stage] = nullptr; }

// Pushes and pulls `count` tasks, one after another.
void core_transfer(unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    core_add_push(uint64_t{i % 1000} << 16, -static_cast<int>(i % 1000) - 1, 100, 1);
    for (int stage : {6, 7}) {  // PUSH, PULL
      core_get(stage);
      core_finish(stage);
    }
    core_get(9);  // COPYH2D
  }
}

// Another GPU of the machine has yet to do its part of `key`.
void core_not_ready(uint64_t key) {
  std::lock_guard<std::mutex> lock(table.mutex);
  table.waiting.insert(key);
}

void core_ready() {
  std::lock_guard<std::mutex> lock(table.mutex);
  table.waiting.clear();
}

// A program pushes the tensor of this name and size: in how many partitions, -1 where BytePS would have aborted.
int core_push(const char* name, int size) {
  static std::mutex mutex;
  static std::map<std::string, byteps::common::BytePSContext> contexts;
  byteps::common::BytePSContext* context;
  {
    std::lock_guard<std::mutex> lock(mutex);
    context = &contexts[name];
    context->tensor_name = name;
  }
  byteps::common::InitTensor(*context, size, 0, nullptr);
  std::string said;
  auto status = byteps::common::EnqueueTensor(
      *context, nullptr, nullptr, nullptr, size, 0, 0,
      [&said](const byteps::common::Status& status) { said = status.reason; }, nullptr);
  return said == status.reason ? std::stoi(said) : -1;
}

// A thread of the core comes to Python and leaves it, again and again, as one that drops tensors does.
void core_visit_python(int visits) {
  auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
  auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
  std::thread([=] {
    for (int visit = 0; visit < visits; ++visit) release(ensure());
  }).detach();
}

// How many threads are in a first push that waits for other workers.
int core_waiting() { return byteps::common::waiting_for_all; }

// They all have it.
void core_all_have_it() {
  std::lock_guard<std::mutex> lock(byteps::common::all_have_it_mutex);
  byteps::common::all_have_it = true;
  byteps::common::all_have_it_changed.notify_all();
}

// How often the hook has asked whether a key is ready.
long core_asked() { return table.asked; }

}  // extern "C"
