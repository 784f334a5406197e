// A plan as bytes, as Python passes it to the hook in a job, and to the queue and the simulator elsewhere.
//
// Rule of this file: the layout that core/plan_codec.py writes, and the only code that reads it. A plan of another
// version or another size is rejected as a whole, with a message that says so.
//
//   PlanHeader
//   for the push lane, then for the pull lane: its PlannedGradients, in ascending order of id, and its
//   PlannedDeadlines, by time
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "two_lane_queue.h"

namespace prophet {

inline constexpr char kPlanMagic[8] = {'P', 'R', 'P', 'H', 'P', 'L', 'A', 'N'};
inline constexpr uint32_t kPlanVersion = 1;

struct PlannedLane {
  uint64_t credit;  // bytes in flight; kUnlimited for no limit
  uint32_t ranked;
  uint32_t gradients;  // number
  uint32_t deadlines;  // number
  uint32_t reserved;
};

struct PlanHeader {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
  uint64_t bytes;           // of the whole plan
  double bandwidth;         // bytes per second; 0 if unknown
  double overhead_s;        // per message
  double deadline_slack_s;  // how late a predicted gradient may be
  PlannedLane lanes[2];     // push, pull
};

struct PlannedGradient {
  double generation_s;  // after backward began; negative if unknown
  uint64_t bytes;       // 0 if unknown
  uint32_t id;
  int32_t rank;
  int32_t group;  // kNoGroup for none
  uint32_t reserved;
};

struct PlannedDeadline {
  double time_s;  // after backward began
  int32_t rank;
  uint32_t reserved;
};

static_assert(sizeof(PlannedLane) == 24 && sizeof(PlanHeader) == 96, "mirrored in core/plan_codec.py");
static_assert(sizeof(PlannedGradient) == 32 && sizeof(PlannedDeadline) == 16, "mirrored in core/plan_codec.py");

// Reads a plan record by record. The bytes need not be aligned.
class PlanReader {
 public:
  PlanReader(const void* plan, size_t bytes) : at_(static_cast<const char*>(plan)), left_(bytes) {}

  template <typename Record>
  Record next() {
    if (left_ < sizeof(Record)) throw std::invalid_argument("the plan is cut short");
    Record record;
    std::memcpy(&record, at_, sizeof(Record));
    at_ += sizeof(Record);
    left_ -= sizeof(Record);
    return record;
  }
  size_t left() const { return left_; }

  // Returns a number that is safe to compute with; throws for any other. `what` names it in the message.
  static double finite(double number, const char* what) {
    if (!std::isfinite(number)) throw std::invalid_argument(std::string("the plan has ") + what + " that is no number");
    return number;
  }

 private:
  const char* at_;
  size_t left_;
};

// Throws std::invalid_argument with one line if the bytes are not a plan of this version.
inline TwoLanePlan decode_plan(const void* plan, size_t bytes) {
  PlanReader reader(plan, bytes);
  auto header = reader.next<PlanHeader>();
  if (std::memcmp(header.magic, kPlanMagic, sizeof(kPlanMagic)) != 0) {
    throw std::invalid_argument("these bytes are not a plan");
  }
  if (header.version != kPlanVersion) {
    throw std::invalid_argument("the plan has version " + std::to_string(header.version) + ", and version " +
                                std::to_string(kPlanVersion) + " is known here");
  }
  if (header.bytes != bytes) {
    throw std::invalid_argument("the plan says that it has " + std::to_string(header.bytes) + " bytes, and has " +
                                std::to_string(bytes));
  }
  std::shared_ptr<const QueuePlan> decoded[2];
  for (QueueKind kind : {QueueKind::kPush, QueueKind::kPull}) {
    const PlannedLane& lane = header.lanes[static_cast<int>(kind)];
    auto queue_plan = std::make_shared<QueuePlan>();
    queue_plan->ranked = lane.ranked != 0;
    queue_plan->credit_counts_only_urgent = kind == QueueKind::kPull;
    queue_plan->credit = lane.credit;
    queue_plan->bandwidth = PlanReader::finite(header.bandwidth, "a bandwidth");
    queue_plan->overhead_s = PlanReader::finite(header.overhead_s, "an overhead");
    queue_plan->deadline_slack_s = PlanReader::finite(header.deadline_slack_s, "a slack");
    for (uint32_t i = 0; i < lane.gradients; ++i) {
      auto gradient = reader.next<PlannedGradient>();
      double generation_s = PlanReader::finite(gradient.generation_s, "a generation time");
      queue_plan->gradients[gradient.id] = GradientPlan{gradient.rank, gradient.group, generation_s};
      if (gradient.group != kNoGroup) queue_plan->group_bytes[gradient.group] += gradient.bytes;
    }
    for (uint32_t i = 0; i < lane.deadlines; ++i) {
      auto deadline = reader.next<PlannedDeadline>();
      double time_s = PlanReader::finite(deadline.time_s, "a deadline");
      queue_plan->deadlines.push_back(Deadline{time_s, deadline.rank});
    }
    decoded[static_cast<int>(kind)] = std::move(queue_plan);
  }
  if (reader.left() != 0) throw std::invalid_argument("the plan has more bytes than its parts take");
  return TwoLanePlan{std::move(decoded[0]), std::move(decoded[1])};
}

// Without bytes, returns no plan: arrival order without limits.
inline TwoLanePlan decode_plan_or_none(std::optional<std::string_view> plan) {
  return plan ? decode_plan(plan->data(), plan->size()) : TwoLanePlan{};
}

}  // namespace prophet
