// Planner: chooses the algorithm of each collective, generates this rank's schedule, and keeps it.
//
// The choice. The user's choice comes first, if it can carry the operation. Otherwise ranks that
// share memory take `slots` or `peer_memory` for the shapes at which that wins. Everything else
// takes the schedule with the lowest estimate.
//
// Every rank plans alone, and all must choose the same algorithm: the choice depends only on what
// they share. That is the topology, the override, the plan file, and of the shape: kind, number of
// ranks, element size and, for kinds whose counts every rank knows (all_reduce, reduce, broadcast,
// all_gather, reduce_scatter), the bytes rounded down to three leading bits. The root and the rank
// do not matter.
//
// Not thread-safe; the communicator calls it under its own lock. Schedules stay valid for as long
// as the caller holds them, also after the cache has dropped them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "schedule/algorithms.h"
#include "schedule/latency.h"
#include "schedule/op_shape.h"
#include "schedule/price/estimate.h"
#include "schedule/schedule.h"
#include "schedule/trials.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

// The algorithms that the user has chosen.
using Overrides = std::map<OpKind, const Algorithm*>;

// Reads DMLCOMM_ALGORITHM: empty; or one name, for every operation that has it; or
// "op=name,op=name". `invalid_argument` where there is no such operation or algorithm at all.
Result<Overrides> parse_overrides(const std::string& text);

// An algorithm displaces an earlier one of the table only if it is this much cheaper. So rounding
// cannot decide between two that cost the same, and ranks built by different compilers agree.
constexpr double kClearlyCheaper = 0.99;

// The index of the least, or of an earlier one that is about as cheap. `seconds` is not empty.
size_t cheapest_of(const std::vector<double>& seconds);

// From `first_bytes` on, this algorithm: a plan file's choices for one operation, in ascending
// order and from 0 on. Bytes are those of the whole vector, or of all ranks' pieces together.
struct SizedChoice {
  uint64_t first_bytes = 0;
  const Algorithm* algorithm = nullptr;
};
using SizedChoices = std::map<OpKind, std::vector<SizedChoice>>;

// Reads "op:first_bytes=name,..." as dmlcomm/planning writes it from a plan file; may be empty.
// `invalid_argument` where there is no such operation or algorithm, or where the sizes of an
// operation do not ascend from 0. Where not every rank knows the bytes, 0 is the only size.
Result<SizedChoices> parse_sized_choices(const std::string& text);

// Messages that an operation carries with its own.
struct Carried {
  bool barrier = false;  // joining_barrier.h
  bool probe = false;    // probe.h

  bool operator==(const Carried&) const = default;
};

class Planner {
 public:
  // `algorithm_override` is DMLCOMM_ALGORITHM. A wrong one, or one that does not apply to the
  // topology, is kept as `status()`. Of one name for many operations, those count to which it
  // applies. `sized_choices` (parse_sized_choices) hold for operations without an override; each of
  // their algorithms has to apply.
  Planner(topology::Topology topology, const std::string& algorithm_override,
          const std::string& sized_choices = "");

  // `invalid_argument` for a wrong override, naming the legal names; every
  // plan() fails with it too.
  const Status& status() const { return status_; }

  const topology::Topology& topology() const { return topology_; }

  // The schedule of rank `shape.rank`, where choose() names one. Fails where the shape is malformed
  // or its group is not the topology's.
  Result<std::shared_ptr<const Schedule>> plan(const OpShape& shape);

  // The memory that the ranks share, found out by the ranks, the same on all of them. It replaces
  // the topology's; status() fails if the user's choice does not apply any more.
  void share_memory(const topology::SharedMemory& memory);

  // What the network has turned out to be: bits per second of each rail, and the alpha of a message
  // between hosts (topology.h). Later operations are planned for it.
  void learn(const std::vector<uint64_t>& rail_rates_bps, double alpha_s);

  // What is wrong with a shape that plan() would refuse; or status().
  Status check(const OpShape& shape) const;

  // `shape` must be one that check() accepts, and so below.
  const Algorithm& choose(const OpShape& shape);

  // The estimate of the usual choice. One rank may ask alone: choices depend on nothing that this
  // changes.
  double seconds(const OpShape& shape);

  // The schedule of rank `shape.rank` by what choose() has named, where that makes schedules; with
  // the messages that it carries.
  std::shared_ptr<const Schedule> schedule_of(const OpShape& shape, const Algorithm& algorithm,
                                              const Carried& carried = {});

  // The choice among schedules for shapes of about this size, which learns from times; null where
  // the user has chosen.
  Trials* trials_of(const OpShape& shape);

  // The estimate of an algorithm if bytes took no time: messages alone.
  Latency latency(const Algorithm& algorithm, const OpShape& shape) const;

 private:
  struct Key {
    OpShape shape;
    const Algorithm* algorithm;
    Carried carried;

    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  using Entry = std::pair<Key, std::shared_ptr<const Schedule>>;

  // What the user or the memory says; null where times of operations do.
  const Algorithm* fixed_for(const OpShape& shape) const;

  Status configure();
  Status apply(const Overrides& overrides);
  Status apply(const SizedChoices& choices);
  const Algorithm* named_for(const OpShape& shape) const;
  std::vector<const Algorithm*> schedules_of(OpKind kind) const;
  std::vector<double> estimate(const std::vector<const Algorithm*>& candidates, uint64_t bytes);
  std::shared_ptr<const Schedule> remember(const Key& key, Schedule schedule);

  topology::Topology topology_;
  const std::string override_text_, plan_text_;
  Status status_;
  SizedChoices named_;  // by the user: overrides, else the plan file's
  std::array<std::vector<const Algorithm*>, std::size(kOpKinds)>
      in_memory_;                         // by kind, those that apply
  std::unique_ptr<Estimates> estimates_;  // of the topology, as soon as one is asked for
  // (kind, rounded bytes) -> choice; at most 4 per power of two.
  std::map<std::pair<OpKind, uint64_t>, Trials> choices_;
  std::list<Entry> recent_;  // most recently used first
  size_t num_cached_steps_ = 0;
  std::unordered_map<Key, std::list<Entry>::iterator, KeyHash> cache_;
};

}  // namespace dmlcomm::schedule
