// The queue, the reading of plans and the simulator under random operations, always the same for a seed. For the
// compiler's checks of memory, undefined behaviour and, since threads work on machines of their own that share a plan,
// of data races. Ends with 0, or with one line and 1 where something that must hold does not.
//
//   state_machines THREADS STEPS
//   state_machines fed
//
// Fed, it does what comes on standard input: a number of bytes (4 of them, little-endian), then these, and again. Each
// is answered with a line, which is empty where all held.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "plan_codec.h"
#include "simulator.h"
#include "two_lane_queue.h"

namespace {

using namespace prophet;

constexpr uint32_t kGradients = 24;
constexpr size_t kPlaces = 8;

struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void must(bool holds, const char* what) {
  if (!holds) throw Wrong(what);
}

// What is done next: random for a seed, or from bytes, and 0 where these are at an end.
class Choices {
 public:
  explicit Choices(unsigned seed) : engine_(seed) {}
  explicit Choices(std::string bytes) : bytes_(std::move(bytes)) {}

  uint32_t operator()() {
    if (engine_) return static_cast<uint32_t>((*engine_)());
    uint32_t number = 0;
    // Two bytes reach whatever is taken of the number, and keep an example short.
    for (int i = 0; i < 2 && at_ < bytes_.size(); ++i) number = number << 8 | static_cast<uint8_t>(bytes_[at_++]);
    return number;
  }
  bool over() const { return !engine_ && at_ >= bytes_.size(); }

 private:
  std::optional<std::mt19937> engine_;
  std::string bytes_;
  size_t at_ = 0;
};

template <typename Record>
void append(std::string& bytes, const Record& record) {
  bytes.append(reinterpret_cast<const char*>(&record), sizeof(record));
}

std::string encoded_plan(Choices& random) {
  PlanHeader header{};
  std::memcpy(header.magic, kPlanMagic, sizeof(kPlanMagic));
  header.version = kPlanVersion;
  header.bandwidth = random() % 3 ? 1e4 : 0;
  header.overhead_s = 1e-4;
  header.deadline_slack_s = 1e-3;
  bool groups = random() % 3 == 0;
  std::string body;
  for (PlannedLane& lane : header.lanes) {
    uint64_t credit = random() % 4 ? 1 + random() % 600 : kUnlimited;
    lane = PlannedLane{credit, random() % 4 != 0, kGradients, static_cast<uint32_t>(random() % 3), 0};
    for (uint32_t id = 0; id < lane.gradients; ++id) {
      int32_t group = groups ? static_cast<int32_t>(id / 3) : kNoGroup;
      uint64_t bytes = id % 5 ? 100 : 0;
      int32_t rank = random() % 20 ? random() % 30 : std::numeric_limits<int32_t>::min();
      append(body, PlannedGradient{0.01 * (kGradients - id), bytes, id, rank, group, 0});
    }
    for (uint32_t i = 0; i < lane.deadlines; ++i) append(body, PlannedDeadline{0.1 * (i + 1), 0, 0});
  }
  header.bytes = sizeof(header) + body.size();
  std::string plan;
  append(plan, header);
  return plan + body;
}

TwoLanePlan random_plan(Choices& random) {
  std::string plan = encoded_plan(random);
  return decode_plan(plan.data(), plan.size());
}

// Bytes that are almost a plan are taken or refused, and never read past their end.
void damage_plans(Choices& random, int steps) {
  for (int step = 0; step < steps; ++step) {
    std::string plan = encoded_plan(random);
    for (int change = random() % 4; change >= 0; --change) plan[random() % plan.size()] = static_cast<char>(random());
    // A copy of just that size, so that a byte too far is noticed.
    size_t size = random() % 3 ? plan.size() : random() % plan.size();
    auto copy = std::make_unique<char[]>(size);
    std::copy_n(plan.data(), size, copy.get());
    try {
      decode_plan(copy.get(), size);
    } catch (const std::invalid_argument&) {
    }
  }
}

void drive_queue(Choices& random, int steps, const TwoLanePlan& shared) {
  TwoLaneQueue queue(0.5, kPlaces);
  std::unordered_map<uint64_t, uint32_t> waiting[2], flying[2];  // bytes by id
  uint64_t next_id = 0;
  double now = 0;
  auto some = [&](auto& tasks) {
    auto it = tasks.begin();
    std::advance(it, random() % tasks.size());
    return it;
  };
  for (int step = 0; step < steps && !random.over(); ++step) {
    now += random() % 8 == 0 ? 0.2 : 1e-4;
    int number = random() % 2;
    QueueKind kind = static_cast<QueueKind>(number);
    switch (random() % 8) {
      case 0:
      case 1: {
        uint32_t gradient = random() % 30 ? random() % kGradients : kUnprofiledGradient | 7;
        uint32_t bytes = random() % 3 ? random() % 200 : random() % 10 ? 0 : std::numeric_limits<uint32_t>::max();
        must(queue.add(kind, Task{next_id, gradient, bytes}, now), "a new task is taken");
        must(!queue.add(kind, Task{next_id, gradient, bytes}, now), "and only once");
        waiting[number][next_id++] = bytes;
        break;
      }
      case 2:
      case 3:
      case 4: {
        Decision look = queue.look(kind, now);
        Decision decision = queue.get(kind, now);
        must(look.start == decision.start && look.task.id == decision.task.id, "a get does what a look says");
        if (!decision.start) break;
        auto it = waiting[number].find(decision.task.id);
        must(it != waiting[number].end(), "what starts has waited");
        flying[number].insert(*it);
        waiting[number].erase(it);
        break;
      }
      case 5:
      case 6:
        must(!queue.finish(kind, next_id + random(), now), "what never came cannot finish");
        if (!waiting[number].empty()) must(!queue.finish(kind, some(waiting[number])->first, now), "nor what waits");
        if (flying[number].empty()) break;
        if (auto it = some(flying[number]); queue.finish(kind, it->first, now)) {
          must(!queue.finish(kind, it->first, now), "a task finishes once");
          flying[number].erase(it);
        } else {
          must(false, "what is in flight can finish");
        }
        break;
      default:
        if (random() % 40 == 0) {
          queue.clear();
          for (int lane : {0, 1}) waiting[lane].clear(), flying[lane].clear();
        } else if (random() % 8 == 0) {
          queue.set_plan(random() % 4 ? random_plan(random) : random() % 2 ? shared : TwoLanePlan{});
        }
    }
    for (int lane : {0, 1}) {
      const ScheduledQueue& state = queue.lane(static_cast<QueueKind>(lane));
      uint64_t bytes = 0;
      for (const auto& task : flying[lane]) bytes += task.second;
      must(state.pending() == waiting[lane].size(), "what waits is counted");
      must(state.in_flight() == flying[lane].size() && state.in_flight_bytes() == bytes, "what flies is counted");
      must(state.in_flight() <= kPlaces + kPlaces / 2, "there are so many places");
    }
    must(queue.empty() == (waiting[0].empty() && waiting[1].empty() && flying[0].empty() && flying[1].empty()),
         "a queue without tasks is empty");
  }
  // Whatever the plan, all that is there leaves within a watchdog's time for each.
  for (size_t left = waiting[0].size() + waiting[1].size() + 1; !queue.empty(); --left) {
    must(left > 0, "nothing waits for ever");
    for (QueueKind kind : {QueueKind::kPush, QueueKind::kPull}) {
      auto& own = flying[static_cast<int>(kind)];
      for (const auto& task : own) must(queue.finish(kind, task.first, now), "what is in flight can finish");
      own.clear();
      for (Decision decision; (decision = queue.get(kind, now)).start;) own[decision.task.id] = decision.task.bytes;
    }
    now += 0.5;
  }
}

void drive_simulator(Choices& random, int iterations, const TwoLanePlan& shared) {
  ClusterSpec spec;
  uint32_t layers = 4 + random() % 8;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    // Forward through layer 0 first, then backward, whose operation of a layer generates its tensor.
    spec.operations.push_back(OperationSpec{0.001, layer > 0, {layer + 1}, {}});
    uint32_t bytes = random() % 4 ? random() % 5000 : 0;
    spec.tensors.push_back(TensorSpec{bytes, {layer}, {}});
  }
  for (uint32_t layer = layers; layer-- > 0;) {
    uint32_t next = static_cast<uint32_t>(spec.operations.size()) + 1;
    spec.operations.push_back(OperationSpec{0.002, 1, {}, {layer}});
    if (layer > 0) spec.operations.back().successors.push_back(next);
  }
  spec.exchange = static_cast<Exchange>(random() % 3);
  spec.workers = 1 + random() % 4;
  spec.servers = spec.exchange == Exchange::kCollective ? 0 : 1 + random() % 2;
  spec.partition_bytes = 512;
  spec.latency_s = 1e-4;
  spec.at_once = random() % 4;
  spec.delay_first = spec.exchange == Exchange::kCollective && random() % 2;
  spec.server_overhead_s = random() % 2 ? 0 : 2e-4;
  spec.watchdog_s = random() % 2 ? 1.0 : 0.003;
  spec.iterations = iterations;
  spec.backward = static_cast<int32_t>(layers);
  Simulation simulation(spec);
  for (uint32_t node = 0; node < spec.workers + spec.servers; ++node) {
    simulation.set_link(node, {{0.0, 1e5}, {0.2, 3e5}}, {{0.0, 1e5}}, 1e-4, random() % 2 ? 0 : 2000);
  }
  if (spec.exchange == Exchange::kCollective) simulation.set_link(0, {{0.0, 1e5}}, {}, 1e-4, 0);
  simulation.record(0);
  simulation.set_plan(shared);
  size_t events = 0;
  for (double until = 0.05; !simulation.run(until, 100000); until += 0.05) {
    if (random() % 3 == 0) simulation.set_plan(random_plan(random));
    events += simulation.take_events(0).size();
  }
  events += simulation.take_events(0).size();
  must(simulation.iterations_done() == spec.iterations, "every worker does its iterations");
  must(events > 3u * layers * iterations, "and what it does is recorded");
}

// Does what comes on standard input, until that ends.
int be_fed() {
  uint32_t size;
  while (std::fread(&size, sizeof(size), 1, stdin) == 1) {
    std::string bytes(size, 0), wrong;
    if (std::fread(bytes.data(), 1, size, stdin) != size) return 1;
    Choices choices(bytes);
    try {
      if (bytes.empty() || bytes[0] % 4) {
        drive_queue(choices, 100000, random_plan(choices));
      } else {
        drive_simulator(choices, 3, random_plan(choices));
      }
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    std::puts(wrong.c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int, char** arguments) {
  if (std::string(arguments[1]) == "fed") return be_fed();
  int threads = std::atoi(arguments[1]), steps = std::atoi(arguments[2]);
  Choices random(1);
  const TwoLanePlan shared = random_plan(random);
  std::vector<std::string> wrong(threads);
  std::vector<std::thread> working;
  for (int number = 0; number < threads; ++number) {
    working.emplace_back([&, number] {
      Choices own(number + 1);
      try {
        damage_plans(own, steps / 20);
        drive_queue(own, steps, shared);
        for (int round = 0; round < 6; ++round) drive_simulator(own, 10 + steps / 2000, shared);
      } catch (const std::exception& error) {
        wrong[number] = error.what();
      }
    });
  }
  for (std::thread& thread : working) thread.join();
  int failed = 0;
  for (int number = 0; number < threads; ++number) {
    if (wrong[number].empty()) continue;
    std::printf("seed %d: %s\n", number + 1, wrong[number].c_str());
    failed = 1;
  }
  return failed;
}
