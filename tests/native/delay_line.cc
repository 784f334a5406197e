// The delay line of the testbed's relay under random arrivals, always the same for a seed. Ends with 0, or with one
// line and 1 where something that must hold does not.
//
//   delay_line STEPS
#include "delay_line.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <set>
#include <stdexcept>

namespace {

using namespace prophet;

constexpr int64_t kDelay_ns = 5000000;

void must(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

// Each frame leaves once, as it came, in the order of coming, and not before it has waited as long as it should.
void frames_pass_in_order(int steps) {
  std::mt19937 random(1);
  DelayLine line(kDelay_ns);
  std::deque<std::pair<uint32_t, int64_t>> expected;
  std::set<const char*> buffers;
  int64_t now_ns = 1000;
  uint32_t number = 0;
  size_t most = 0;
  for (int step = 0; step < steps; ++step) {
    now_ns += random() % 40000;
    if (random() % 3 != 0) {
      Buffer buffer = line.buffer();
      buffers.insert(buffer.get());
      if (line.full() || random() % 50 == 0) {
        line.give_back(std::move(buffer));
      } else {
        const size_t size = sizeof number + random() % (kFrameBytes - sizeof number);
        std::memcpy(buffer.get(), &number, sizeof number);
        buffer[size - 1] = buffer[0];
        const int64_t stamp_ns = now_ns - random() % 100000;  // stamps may go back
        line.add(std::move(buffer), size, stamp_ns);
        expected.emplace_back(number++, stamp_ns);
        most = std::max(most, expected.size());
      }
    }
    const size_t batch = 1 + random() % 8;
    const size_t due = line.due(now_ns, batch);
    must(due <= batch, "more frames are due than were asked for");
    for (size_t place = 0; place < due; ++place) {
      uint32_t first;
      std::memcpy(&first, line.frame(0).bytes.get(), sizeof first);
      must(first == expected.front().first, "a frame has overtaken another");
      must(now_ns >= expected.front().second + kDelay_ns, "a frame leaves early");
      line.remove_first();
      expected.pop_front();
    }
    must(due == batch || line.next_due_ns() > now_ns, "a frame that is due stays");
  }
  must(number > static_cast<uint32_t>(steps) / 3 && most > 10, "hardly a frame has passed");
  must(buffers.size() <= most + 1, "memory is not used again");
}

void a_full_line_says_so() {
  DelayLine line(kDelay_ns);
  must(line.next_due_ns() == DelayLine::kNever, "an empty line has something due");
  for (size_t count = 0; count < kMostFrames; ++count) {
    must(!line.full(), "the line is full too early");
    line.add(Buffer(new char[1]), 1, 0);
  }
  must(line.full(), "the line has no limit");
}

}  // namespace

int main(int count, char** arguments) {
  try {
    if (count != 2) throw std::runtime_error("delay_line STEPS");
    frames_pass_in_order(std::atoi(arguments[1]));
    a_full_line_says_so();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  return 0;
}
