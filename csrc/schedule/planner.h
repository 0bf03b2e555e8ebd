// Planner: chooses the algorithm of each collective, generates this rank's schedule, and keeps it.
//
// Every rank plans alone, and all must choose the same algorithm: the choice depends only on what
// they share. That is the topology, the override, the plan file, and of the shape: kind, number of
// ranks, element size and, for kinds whose counts every rank knows (all_reduce, reduce, broadcast,
// all_gather, reduce_scatter), the bytes rounded down to a power of two. The root and the rank do
// not matter.
//
// Not thread-safe; the communicator calls it under its own lock. Schedules stay valid for as long
// as the caller holds them, also after the cache has dropped them.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/status.h"
#include "schedule/algorithms.h"
#include "schedule/op_shape.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace dmlcomm::schedule {

// The algorithms that the user has chosen.
using Overrides = std::map<OpKind, const Algorithm*>;

// What DMLCOMM_ALGORITHM may name besides, for all_reduce. It is no schedule between the ranks: who
// makes the group sends all_reduce through the servers, and what they do not take is planned here.
inline constexpr char kParameterServers[] = "ps";

// Reads DMLCOMM_ALGORITHM: empty; or one name, for every operation that has it; or
// "op=name,op=name". `invalid_argument` where there is no such operation or algorithm at all.
// kParameterServers is legal and overrides nothing.
Result<Overrides> parse_overrides(const std::string& text);

// Whether a legal DMLCOMM_ALGORITHM names kParameterServers.
bool names_parameter_servers(const std::string& text);

// From so many bytes on, this algorithm: what a plan file says of one operation, in ascending order
// and from 0 on. Bytes are those of the whole vector, or of all ranks' pieces together.
struct SizedChoice {
  uint64_t first_bytes = 0;
  const Algorithm* algorithm = nullptr;
};
using SizedChoices = std::map<OpKind, std::vector<SizedChoice>>;

// Reads "op:first_bytes=name,..." as dmlcomm/planning writes it from a plan file; may be empty.
// `invalid_argument` where there is no such operation or algorithm, or where the sizes of an
// operation do not ascend from 0. Where not every rank knows the bytes, 0 is the only size.
Result<SizedChoices> parse_sized_choices(const std::string& text);

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

  // The schedule of rank `shape.rank`. Fails where the shape is malformed or its
  // group is not the topology's.
  Result<std::shared_ptr<const Schedule>> plan(const OpShape& shape);

  // Whether the user has chosen the algorithm of these operations, by name or by a plan file.
  bool is_overridden(OpKind kind) const {
    return overrides_.contains(kind) || sized_choices_.contains(kind);
  }

  // The algorithm that plan() takes. `shape` must be valid.
  const Algorithm& choose(const OpShape& shape);

 private:
  struct ShapeHash {
    size_t operator()(const OpShape& shape) const;
  };
  using Entry = std::pair<OpShape, std::shared_ptr<const Schedule>>;

  Status check(const OpShape& shape) const;
  Status apply(const Overrides& overrides, bool is_list);
  Status apply(SizedChoices choices);
  const Algorithm* cheapest(OpKind kind, double bytes) const;
  std::shared_ptr<const Schedule> remember(const OpShape& shape, Schedule schedule);

  const topology::Topology topology_;
  Status status_;
  Overrides overrides_;
  SizedChoices sized_choices_;
  // (kind, log2 of the bytes) -> choice. One per size bucket: stays small.
  std::map<std::pair<OpKind, int>, const Algorithm*> choices_;
  std::list<Entry> recent_;  // most recently used first
  size_t num_cached_steps_ = 0;
  std::unordered_map<OpShape, std::list<Entry>::iterator, ShapeHash> cache_;
};

}  // namespace dmlcomm::schedule
