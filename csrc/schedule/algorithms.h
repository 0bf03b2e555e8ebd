// The algorithms of every operation: one table, from which the planner chooses and the tests loop.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/op_shape.h"
#include "schedule/price/estimate.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

// How an algorithm is carried out.
enum class Execution : uint8_t {
  schedule,     // messages, as a generator writes them down
  slots,        // through shared memory that each rank fills and the others read
  peer_memory,  // ranks read and write each other's tensors
};

// An algorithm's demand on the topology, and the same in words: "one rank per host of a grid".
struct Requirement {
  bool (*holds)(const topology::Topology& topology);
  const char* text;
};

struct Algorithm {
  OpKind kind;
  const char* name;  // "ring"; its generator is "all_reduce_ring"
  Requirement needs;
  double (*estimate)(const EstimateTerms& terms);  // seconds, as a closed form
  Execution execution = Execution::schedule;

  // Of a schedule.
  Schedule (*generator)(const OpShape& shape, const topology::Topology& topology) = nullptr;
  // Whether all ranks do the same at the same time, so that one of them stands for all.
  bool (*is_lockstep)(const topology::Topology& topology) = nullptr;
  // Whether one rank's steps grow slower than the group: 16 steps where others take 65,536.
  bool is_short = false;
  // Whether no host gets more from others than one sends, and all ranks of a host send if one
  // does: then rails show their rates, since what binds is those of hosts that send.
  bool (*shows_rates)(const topology::Topology& topology) = nullptr;

  // Of the others: whether such an operation can go there (null: always), and whether it should.
  bool (*can_carry)(const OpShape& shape, const topology::SharedMemory& memory) = nullptr;
  bool (*wins)(const OpShape& shape, const topology::SharedMemory& memory) = nullptr;

  bool applies(const topology::Topology& topology) const { return needs.holds(topology); }
  bool is_schedule() const { return execution == Execution::schedule; }
  // The schedule of rank shape.rank, which refers to this row. Only of a schedule, and only where
  // it applies. `shape` has the topology's ranks.
  Schedule generate(const OpShape& shape, const topology::Topology& topology) const;
};

// Every algorithm, grouped by kind; those that are no schedules come last. Of two that cost the
// same, the planner takes the first.
const std::vector<Algorithm>& all_algorithms();

// The place of a row in the table, from 1, by which messages name it.
uint8_t number_of(const Algorithm& algorithm);

// Names of the algorithms of `kind`, in the order of the table.
std::vector<std::string> algorithms_of(OpKind kind);

// nullptr where `kind` has no algorithm of that name.
const Algorithm* find_algorithm(OpKind kind, const std::string& name);

}  // namespace dmlcomm::schedule
