// Pair: two links of several lanes, over pipes in memory. Message: one that goes from one to the
// other.
#pragma once

#include <cstddef>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/memory_channel.h"
#include "tests/notes.h"
#include "transport/link.h"

namespace dmlcomm::tests {

constexpr uint64_t kJob = 42;

inline std::vector<std::byte> random_bytes(size_t bytes, std::mt19937& random) {
  std::vector<std::byte> data(bytes);
  for (std::byte& b : data) b = static_cast<std::byte>(random() & 0xff);
  return data;
}

// Two links, joined by pipes that move a few bytes at a time.
class Pair {
 public:
  Pair(size_t num_rails, size_t max_bytes, size_t lanes_per_rail = 1, uint8_t first_rail = kAnyRail,
       RailMeter* meters_of_a = nullptr, size_t num_classes = 0, bool reconnects = false)
      : counters_a(num_rails),
        counters_b(num_rails),
        a(LinkOptions{0, 1, kJob, num_rails, &notes_a, counters_a.data(), lanes_per_rail,
                      first_rail, meters_of_a, 0, num_classes, reconnects}),
        b(LinkOptions{1, 0, kJob, num_rails, &notes_b, counters_b.data(), lanes_per_rail,
                      first_rail, nullptr, 0, num_classes, reconnects}),
        max_bytes_(max_bytes) {
    for (size_t rail = 0; rail < num_rails; ++rail) connect(rail);
  }

  // A lane of both links; lane i is on rail i modulo the rails.
  void connect(size_t lane) {
    auto to_b = std::make_shared<MemoryChannel::Pipe>();
    auto to_a = std::make_shared<MemoryChannel::Pipe>();
    a.attach(lane, std::make_unique<MemoryChannel>(to_b, to_a, max_bytes_, false), ++number_);
    b.attach(lane, std::make_unique<MemoryChannel>(to_a, to_b, max_bytes_, false), number_);
  }

  bool step() {
    const bool moved = a.progress();
    return b.progress() || moved;
  }
  void settle() {
    while (step()) {
    }
  }

  Notes notes_a, notes_b;
  std::vector<RailCounters> counters_a, counters_b;
  Link a, b;

 private:
  const size_t max_bytes_;
  uint64_t number_ = 0;
};

// A message from a to b.
struct Message {
  std::vector<std::byte> data;
  std::vector<std::byte> got;
  SendRequest out;
  RecvRequest in;

  Message(Tag tag, std::vector<std::byte> bytes) : data(std::move(bytes)), got(data.size()) {
    out.tag = in.tag = tag;
    out.data = data.data();
    out.bytes = in.bytes = data.size();
    in.destination = got.data();
  }
};

// b waits for the message and has told a so, which has just begun to send.
inline void begin_to_send(Pair& pair, Message& message) {
  pair.b.recv(message.in);
  pair.b.open(1, {});
  pair.settle();
  pair.a.send(message.out);
}

}  // namespace dmlcomm::tests
