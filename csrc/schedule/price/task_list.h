// TaskList: the schedules of all ranks as one list of tasks, for a simulator of flows.
//
// A message is three tasks at most: its sender posts it, it travels, and its receiver combines it.
// They wait for what the steps at both ends wait for, as in simulator.h. Each task comes after
// tasks that stand before it in the list. Of the messages that may go first, the one with the
// smallest step stands first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "schedule/op_shape.h"
#include "schedule/price/traffic.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

struct Task {
  enum class Kind : uint8_t {
    begin,    // the operation is called; one for each rank, in the order of ranks
    post,     // occupies the rank, one message after the other
    message,  // of `bytes`, over `hops`; empty inside a host
    work,     // combines or copies; occupies the rank, one range after the other
    end,      // the rank has the result; one for each rank, last
  };
  Kind kind = Kind::begin;
  uint32_t rank = 0;      // of a message: its sender
  uint32_t receiver = 0;  // of a message
  double seconds = 0;     // of a message: its latency
  double bytes = 0;
  std::vector<Hop> hops;
  std::vector<uint32_t> after;  // indexes of the list
};

struct TaskList {
  std::string algorithm;
  std::vector<Task> tasks;
};

// An operation of this kind and size (as in pricing.h) on the topology. `algorithm` is a name of
// the table, or empty: what a job takes, which knows the network as `job`. `invalid_argument` for
// an algorithm that does not apply, or that is no schedule.
Result<TaskList> list_tasks(const topology::Topology& topology, const topology::Topology& job,
                            OpKind kind, uint64_t bytes, uint32_t element_bytes,
                            const std::string& algorithm);

}  // namespace dmlcomm::schedule
