// BytePS's own functions: the names that its core calls and the hook redefines, and pointers to the originals.
//
// Rule of this file: names and types of BytePS's binary interface, no behaviour. The core exports every name here and
// calls it through its procedure linkage table; plugins/byteps/prophet_byteps/library.py checks for the same names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

// Declarations of BytePS's types, only as far as the mangled names need them.
namespace byteps {
namespace common {

enum QueueType : int;
struct TensorTableEntry;
class NcclGroupEntry;
class ReadyTable;

class BytePSScheduledQueue {
 public:
  explicit BytePSScheduledQueue(QueueType type);
  void addTask(std::shared_ptr<TensorTableEntry> entry);
  std::shared_ptr<TensorTableEntry> getTask();
  void reportFinish(int size);
};

class NcclManager {
 public:
  void EnqueueGroup(std::shared_ptr<NcclGroupEntry> entry);
  std::shared_ptr<NcclGroupEntry> DequeueGroup();
};

struct BytePSContext;
class Tensor;
class ReadyEvent;

// Its members are unknown. Since it has a destructor, it is returned in memory that the caller provides.
class Status {
 public:
  ~Status();
};

class BytePSGlobal {
 public:
  static void SetProfileFlag(BytePSContext* context);
};

void InitTensor(BytePSContext& context, size_t bytes, int dtype, void* buffer);
Status EnqueueTensor(BytePSContext& context, std::shared_ptr<Tensor> input, std::shared_ptr<Tensor> output,
                     std::shared_ptr<ReadyEvent> ready, int device, int priority, int version,
                     std::function<void(const Status&)> callback, std::shared_ptr<std::vector<QueueType>> stages);

}  // namespace common
}  // namespace byteps

namespace prophet {

using byteps::common::BytePSContext;
using byteps::common::BytePSScheduledQueue;
using byteps::common::NcclGroupEntry;
using byteps::common::NcclManager;
using byteps::common::QueueType;
using byteps::common::ReadyTable;
using byteps::common::TensorTableEntry;
using Entry = std::shared_ptr<TensorTableEntry>;

struct Originals {
  void (*construct)(BytePSScheduledQueue*, QueueType) = nullptr;
  void (*add)(BytePSScheduledQueue*, Entry) = nullptr;
  Entry (*get)(BytePSScheduledQueue*) = nullptr;
  void (*report)(BytePSScheduledQueue*, int) = nullptr;
  uint32_t (*pending)(BytePSScheduledQueue*) = nullptr;
  BytePSScheduledQueue* (*queue_of)(int) = nullptr;  // returns null before BytePS starts and after its shutdown
  void (*enqueue_group)(NcclManager*, std::shared_ptr<NcclGroupEntry>) = nullptr;
  std::shared_ptr<NcclGroupEntry> (*dequeue_group)(NcclManager*) = nullptr;
  bool (*is_key_ready)(ReadyTable*, uint64_t) = nullptr;
  ReadyTable** push_table = nullptr;
  // Optional: null if this BytePS does not export them.
  void (*proceed)(Entry) = nullptr;
  decltype(&byteps::common::InitTensor) init_tensor = nullptr;
  decltype(&byteps::common::EnqueueTensor) enqueue_tensor = nullptr;
  decltype(&byteps::common::BytePSGlobal::SetProfileFlag) set_profile_flag = nullptr;
  uint32_t* partition_bytes = nullptr;
};

struct Symbol {
  const char* name;
  void** slot;
  bool optional = false;
};

inline std::vector<Symbol> symbols_of(Originals& originals) {
#define PROPHET_QUEUE "_ZN6byteps6common20BytePSScheduledQueue"
  return {
      {PROPHET_QUEUE "C1ENS0_9QueueTypeE", (void**)&originals.construct},
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
      {"_ZN6byteps6common15FinishOrProceedESt10shared_ptrINS0_16TensorTableEntryEE", (void**)&originals.proceed, true},
      {"_ZN6byteps6common10InitTensorERNS0_13BytePSContextEmiPv", (void**)&originals.init_tensor, true},
      {"_ZN6byteps6common13EnqueueTensorERNS0_13BytePSContextESt10shared_ptrINS0_6TensorEES5_S3_INS0_"
       "10ReadyEventEEiiiSt8"
       "functionIFvRKNS0_6StatusEEES3_ISt6vectorINS0_9QueueTypeESaISF_EEE",
       (void**)&originals.enqueue_tensor, true},
      {"_ZN6byteps6common12BytePSGlobal14SetProfileFlagEPNS0_13BytePSContextE", (void**)&originals.set_profile_flag,
       true},
      {"_ZN6byteps6common12BytePSGlobal16_partition_bytesE", (void**)&originals.partition_bytes, true},
  };
#undef PROPHET_QUEUE
}

}  // namespace prophet
