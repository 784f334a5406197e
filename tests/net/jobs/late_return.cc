// A busy machine in the small, to be preloaded: a thread that has handed a task to BytePS for its first stage goes on
// when the task is long over. Who looks then at what the task was about looks at memory that has been given back.
#include <dlfcn.h>
#include <unistd.h>

#define PROPHET_ADD _ZN6byteps6common20BytePSScheduledQueue7addTaskESt10shared_ptrINS0_16TensorTableEntryEE
#define PROPHET_TEXT_OF(name) #name
#define PROPHET_TEXT(name) PROPHET_TEXT_OF(name)

namespace {

constexpr int kReduce = 1;  // BytePS's number of the first stage of a worker with one device
constexpr useconds_t kAway_us = 100000;

template <typename Function>
Function find(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// BytePS's BytePSScheduledQueue::addTask. A std::shared_ptr is passed by its address.
extern "C" void PROPHET_ADD(void* queue, void* entry) {
  static const auto add = find<void (*)(void*, void*)>(PROPHET_TEXT(PROPHET_ADD));
  static const auto queue_of =
      find<void* (*)(int)>("_ZN6byteps6common12BytePSGlobal17GetScheduledQueueENS0_9QueueTypeE");
  add(queue, entry);
  if (queue == queue_of(kReduce)) usleep(kAway_us);
}
