// What a simulation is told, and the records that it leaves.
//
// Rule of this file: plain values; what happens between them is simulator.h's. Times are seconds of the virtual clock,
// sizes bytes.
#ifndef PROPHET_NATIVE_SIMULATION_SPEC_H_
#define PROPHET_NATIVE_SIMULATION_SPEC_H_

#include <cstdint>
#include <vector>

namespace prophet {

enum class Exchange { kSynchronous = 0, kAsynchronous = 1, kCollective = 2 };

struct OperationSpec {
  double seconds = 0;
  uint32_t inputs = 0;               // operations of the same iteration that it waits for
  std::vector<uint32_t> successors;  // those that wait for it
  std::vector<uint32_t> generates;   // tensors whose generation it is part of
};

inline constexpr uint32_t kOwnPlace = 0xFFFFFFFFu;

struct TensorSpec {
  uint32_t bytes = 0;
  std::vector<uint32_t> needed_by;   // operations of the next iteration
  std::vector<uint32_t> parts;       // bytes of its partitions, where they are not all of the same size
  uint32_t id = kOwnPlace;           // what tasks and events call it; its place among its layout's tensors otherwise
  std::vector<uint32_t> needed_now;  // operations of the same iteration
};

struct ClusterSpec {
  std::vector<OperationSpec> operations;
  std::vector<TensorSpec> tensors;
  uint32_t partition_bytes = 0;
  uint32_t workers = 1;
  uint32_t servers = 1;
  Exchange exchange = Exchange::kSynchronous;
  double latency_s = 0;     // of every message
  double server_rate = 0;   // bytes per second that a server sums up; 0 for no limit
  double header_bytes = 0;  // of every message; an acknowledgement or a request is nothing else
  double watchdog_s = 1.0;  // of the queues
  uint32_t iterations = 1;
  int32_t backward = -1;  // the operation that backward begins with, for the marks
  // A worker is done when backward of its last iteration begins: two iterations then cost what one period does.
  bool ends_at_backward = false;
  // A server's time for a message with data.
  double server_overhead_s = 0;
  // Of a collective: how many operations are under way at once, 0 for no limit; of how many bytes each piece is that
  // waits for the latency by itself, 0 where none is cut; which share of all that latency passes while its bytes are on
  // the channel; and what one takes of the workers' processors, with so many bytes per second beside, 0 for no limit.
  uint32_t at_once = 0;
  double piece_bytes = 0;
  double meanwhile = 0;
  // Or its latency passes before its bytes travel. It is issued just so early that it can follow the one before it.
  bool delay_first = false;
  double operation_s = 0;
  double operation_rate = 0;
};

struct ComputeRecord {
  double started_s;
  double finished_s;
  uint32_t worker;
  uint32_t iteration;
  uint32_t operation;
  uint32_t reserved;
};

// A message of a recorded worker on its link.
struct LinkRecord {
  double started_s;
  double finished_s;
  uint32_t worker;
  uint32_t bytes;
  uint32_t down;  // 0: up, 1: down
  uint32_t reserved;
};

struct Mark {
  double start_s;     // the iteration before is over
  double backward_s;  // backward begins
  double end_s;       // every operation is done
};

}  // namespace prophet

#endif  // PROPHET_NATIVE_SIMULATION_SPEC_H_
