// The hook under threads, as BytePS has them: one hands gradients over, one loop a stage takes tasks, one runs what
// answers bring, and others of Prophet's change the plan, look and drain. Ends with 0 where every task passed through
// each stage once, with one line more and 1 otherwise, and prints what it counted.
//
// Built twice (tools/native_stress.py): as the core that the hook takes over, and with STRESS_MAIN as the program that
// loads both: stress HOOK CORE TASKS SEED [FOLDER], for about that many tasks, in engines of random lengths of which
// some are suspended and the last steps aside in mid-flight. Leaves what the hook recorded in two files of the folder,
// for a replay: `events`, and `plans` one after another.
#ifdef STRESS_MAIN

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

int main(int count, char** arguments) {
  // In this order, as the autoload does: the hook's functions then come first.
  void* hook = dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL);
  void* core = hook != nullptr ? dlopen(arguments[2], RTLD_NOW) : nullptr;
  if (core == nullptr) {
    std::printf("%s\n", dlerror());
    return 1;
  }
  auto stress = reinterpret_cast<int (*)(void*, const char*, long, unsigned, const char*)>(dlsym(core, "stress"));
  return stress(hook, arguments[2], std::atol(arguments[3]), std::atoi(arguments[4]), count > 5 ? arguments[5] : "");
}

#else

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <random>
#include <thread>

#include "events.h"
#include "fake_core.cc"
#include "plan_codec.h"

namespace {

using namespace byteps::common;
using Entry = std::shared_ptr<TensorTableEntry>;

constexpr unsigned kGradients = 60;
constexpr unsigned kMostOpen = 1500;  // tasks on their way; far more than may be in flight

template <typename Record>
void append(std::string& bytes, const Record& record) {
  bytes.append(reinterpret_cast<const char*>(&record), sizeof(record));
}

// A plan like those of Python's encoder, with or without groups of three gradients.
std::string random_plan(std::mt19937& random) {
  prophet::PlanHeader header{};
  std::copy_n(prophet::kPlanMagic, sizeof(prophet::kPlanMagic), header.magic);
  header.version = prophet::kPlanVersion;
  header.bandwidth = random() % 2 ? 1e9 : 0;
  header.deadline_slack_s = 1e-4;
  bool groups = random() % 4 == 0;
  std::string body, plan;
  for (unsigned id = 0; id < kGradients; ++id) {
    int32_t group = groups ? static_cast<int32_t>(id / 3) : prophet::kNoGroup;
    append(body, prophet::PlannedGradient{1e-5 * (kGradients - id), 1000, id, static_cast<int32_t>(id), group, 0});
  }
  append(body, prophet::PlannedDeadline{1e-5 * kGradients, 0, 0});
  uint64_t credit = random() % 3 == 0 ? prophet::kUnlimited : 1 + random() % 400000;
  uint32_t ranked = random() % 4 != 0;
  header.lanes[0] = {credit, ranked, kGradients, 1, 0};
  header.lanes[1] = {credit, ranked, 0, 0, 0};
  header.bytes = sizeof(header) + body.size();
  append(plan, header);
  return plan + body;
}

struct HookCalls {
  int (*attach)(const char*, int, double, char*, size_t);
  void (*step_aside)(const char*);
  void (*reset)();
  int64_t (*set_plan)(const void*, size_t, char*, size_t);
  size_t (*drain)(void*, size_t);
  void (*status)(void*);
};

// What the hook has done, in files; without a folder it is only counted.
class Record {
 public:
  Record(const HookCalls& hook, const std::string& folder) : hook_(hook) {
    if (folder.empty()) return;
    events_.open(folder + "/events", std::ios::binary);
    plans_.open(folder + "/plans", std::ios::binary);
  }

  std::atomic<long> plans_taken_up{0};

  void take_up(const std::string& plan) {
    char why[256];
    if (hook_.set_plan(plan.data(), plan.size(), why, sizeof(why)) < 0) std::printf("%s\n", why);
    ++plans_taken_up;
    if (plans_.is_open()) plans_.write(plan.data(), plan.size());
  }
  // All that was logged since the last time.
  void drain() {
    std::vector<prophet::Event> some(4096);
    for (size_t count = some.size(); count == some.size();) {
      count = hook_.drain(some.data(), some.size());
      if (events_.is_open()) events_.write(reinterpret_cast<const char*>(some.data()), count * sizeof(some[0]));
    }
  }

 private:
  const HookCalls& hook_;
  std::ofstream events_, plans_;
};

// What servers have taken in, in no particular order of answering.
class Network {
 public:
  void send(Entry entry) {
    std::lock_guard<std::mutex> lock(mutex_);
    sent_.push_back(std::move(entry));
    arrived_.notify_one();
  }
  Entry answer(std::mt19937& random) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!arrived_.wait_for(lock, std::chrono::milliseconds(1), [&] { return !sent_.empty(); })) return nullptr;
    std::swap(sent_[random() % sent_.size()], sent_.back());
    Entry entry = std::move(sent_.back());
    sent_.pop_back();
    return entry;
  }
  void drop() { sent_.clear(); }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Entry> sent_;
};

// An engine from its start to a suspend, or until all that was handed over is done.
struct Run {
  unsigned seed = 0;
  std::atomic<bool> stop{false};
  std::atomic<long> pushed{0}, pulled{0}, done{0};
  Network network;

  void take(QueueType stage, std::atomic<long>& count) {
    while (!stop) {
      if (Entry entry = BytePSGlobal::GetScheduledQueue(stage)->getTask()) {
        ++count;
        network.send(std::move(entry));
      }
    }
  }
  void copy() {
    while (!stop) {
      if (BytePSGlobal::GetScheduledQueue(kCopyH2D)->getTask()) ++done;
    }
  }
  void answer() {
    std::mt19937 random(seed + 1);
    while (!stop) {
      Entry entry = network.answer(random);
      if (!entry) continue;
      BytePSGlobal::GetScheduledQueue(entry->queue_list[0])->reportFinish(entry->len);
      entry->queue_list.erase(entry->queue_list.begin());
      BytePSGlobal::GetScheduledQueue(entry->queue_list[0])->addTask(entry);
    }
  }
  // Some pushes wait for another GPU, a little.
  void make_ready() {
    while (!stop) {
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      core_ready();
    }
  }
  // `rounds` times all gradients, the least urgent first.
  void hand_over(long rounds) {
    std::mt19937 random(seed + 2);
    long handed = 0;
    for (long round = 0; round < rounds; ++round) {
      for (unsigned gradient = kGradients; gradient-- > 0;) {
        while (handed - done > kMostOpen && !stop) std::this_thread::yield();
        uint64_t key = uint64_t{gradient} << 16;
        if (random() % 8 == 0) core_not_ready(key);
        // Of all tasks on their way no two are alike, so that the record tells them apart.
        core_add_push(key, -static_cast<int>(gradient) - 1, 1000 + handed * 7919 % 50000, 1);
        ++handed;
      }
    }
  }
  void agent(const HookCalls& hook, Record& record) {
    std::mt19937 random(seed + 3);
    std::vector<char> status(1024);
    while (!stop) {
      record.take_up(random_plan(random));
      record.drain();
      hook.status(status.data());
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  }
};

// Runs an engine with `rounds` iterations. `at` is called when `share` of them is done; it may end the engine.
template <typename At>
bool run(const HookCalls& hook, Record& record, long rounds, At at, double share, unsigned seed) {
  core_start();
  Run now;
  now.seed = seed;
  std::vector<std::thread> threads;
  threads.emplace_back([&] { now.take(kPush, now.pushed); });
  threads.emplace_back([&] { now.take(kPull, now.pulled); });
  threads.emplace_back([&] { now.copy(); });
  threads.emplace_back([&] { now.answer(); });
  threads.emplace_back([&] { now.make_ready(); });
  threads.emplace_back([&] { now.hand_over(rounds); });
  threads.emplace_back([&] { now.agent(hook, record); });
  long all = rounds * kGradients;
  while (now.done < all * share) std::this_thread::yield();
  bool whole = at(now);
  while (whole && now.done < all) std::this_thread::yield();
  now.stop = true;
  for (std::thread& thread : threads) thread.join();
  core_ready();
  core_stop();
  now.network.drop();
  if (!whole) return true;
  if (now.pushed == all && now.pulled == all && now.done == all) return true;
  std::printf("of %ld tasks %ld were pushed, %ld pulled, %ld done\n", all, now.pushed.load(), now.pulled.load(),
              now.done.load());
  return false;
}

// Finds the hook's functions and lets it take over `core`; false with a line where it cannot.
bool attached(HookCalls& hook, void* handle, const char* core) {
  *(void**)&hook.attach = dlsym(handle, "prophet_hook_attach");
  *(void**)&hook.step_aside = dlsym(handle, "prophet_hook_step_aside");
  *(void**)&hook.reset = dlsym(handle, "prophet_hook_reset");
  *(void**)&hook.set_plan = dlsym(handle, "prophet_hook_set_plan");
  *(void**)&hook.drain = dlsym(handle, "prophet_hook_drain");
  *(void**)&hook.status = dlsym(handle, "prophet_hook_status");
  char why[256] = "";
  if (hook.attach(core, 0, 1.0, why, sizeof(why)) == 0) return true;
  std::printf("%s\n", why);
  return false;
}

// Whether no task is referred to any more, with a line where some are.
bool none_left() {
  if (core_alive() == 0) return true;
  std::printf("%d tasks are still referred to\n", core_alive());
  return false;
}

}  // namespace

// `tasks` and a few more in engines one after another, each of up to 200 iterations. At a random moment of a quarter of
// them BytePS is suspended, and at one of the last the hook steps aside.
extern "C" int stress(void* handle, const char* core, long tasks, unsigned seed, const char* folder) {
  HookCalls hook;
  if (!attached(hook, handle, core)) return 1;
  Record record(hook, folder);
  std::mt19937 random(seed);
  long done = 0, suspensions = 0;
  bool good = true;
  for (bool last = false; good && !last;) {
    long rounds = 20 + random() % 180;
    last = done + rounds * kGradients >= tasks;
    double share = (1 + random() % 98) / 100.0;
    bool suspended = !last && random() % 4 == 0;
    auto at = [&](Run& now) {
      if (last) hook.step_aside("stress");
      if (suspended) {
        now.stop = true;
        hook.reset();
      }
      return !suspended;
    };
    good = run(hook, record, rounds, at, share, random());
    suspensions += suspended;
    done += static_cast<long>(rounds * kGradients * (suspended ? share : 1.0));
  }
  hook.reset();
  record.drain();
  std::printf("tasks %ld plans %ld suspensions %ld asides 1\n", done, record.plans_taken_up.load(), suspensions);
  return good && none_left() ? 0 : 1;
}

#endif
