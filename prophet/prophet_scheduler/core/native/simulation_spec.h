// Input of a simulation, and the records that it produces.
//
// Rule of this file: plain values; simulator.h has the behaviour. Times are seconds of the virtual clock, sizes bytes.
#pragma once

#include <cstdint>
#include <vector>

namespace prophet {

enum class Exchange { kSynchronous = 0, kAsynchronous = 1, kCollective = 2 };

struct OperationSpec {
  double seconds = 0;
  uint32_t inputs = 0;               // operations of the same iteration that it waits for
  std::vector<uint32_t> successors;  // operations that wait for it
  std::vector<uint32_t> generates;   // tensors that it generates
};

inline constexpr uint32_t kOwnPlace = 0xFFFFFFFFu;

struct TensorSpec {
  uint32_t bytes = 0;
  std::vector<uint32_t> needed_by;   // operations of the next iteration
  std::vector<uint32_t> parts;       // bytes of its partitions, if they differ in size
  uint32_t id = kOwnPlace;           // its id in tasks and events; by default its index among its layout's tensors
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
  double server_rate = 0;   // bytes per second that a server sums; 0 for no limit
  double header_bytes = 0;  // of every message; acknowledgements and requests have nothing else
  double watchdog_s = 1.0;  // of the queues
  uint32_t iterations = 1;
  int32_t backward = -1;  // backward's first operation, for the marks
  // A worker is done when backward of its last iteration begins. Two iterations then simulate just one full period.
  bool ends_at_backward = false;
  double server_overhead_s = 0;  // a server's time for each message with data
  // Of collectives:
  uint32_t at_once = 0;       // maximum number of operations in flight; 0 for no limit
  double piece_bytes = 0;     // size of the pieces that each pay the latency; 0 for one piece
  double meanwhile = 0;       // share of all this latency that passes while the bytes are on the channel
  bool delay_first = false;   // the latency passes before the bytes travel; issue just early enough to follow the last
  double operation_s = 0;     // processor time of an operation on the workers
  double operation_rate = 0;  // bytes per second of their processors in addition; 0 for no limit
};

struct ComputeRecord {
  double started_s;
  double finished_s;
  uint32_t worker;
  uint32_t iteration;
  uint32_t operation;
  uint32_t reserved;
};

// One message of a recorded worker on its link.
struct LinkRecord {
  double started_s;
  double finished_s;
  uint32_t worker;
  uint32_t bytes;
  uint32_t down;  // 0: up, 1: down
  uint32_t reserved;
};

struct Mark {
  double start_s;     // the previous iteration ends
  double backward_s;  // backward begins
  double end_s;       // all operations are done
};

}  // namespace prophet
