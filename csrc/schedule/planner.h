// Planner: chooses the algorithm of each collective, generates this rank's schedule, and keeps it.
//
// Every rank plans alone, and all must choose the same algorithm: the choice depends only on what
// they share. That is the topology, the override, and of the shape: kind, number of ranks, element
// size and, for kinds whose counts every rank knows (all_reduce, reduce, broadcast, all_gather,
// reduce_scatter), the bytes rounded down to a power of two. The root and the rank do not matter.
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

class Planner {
 public:
  // `algorithm_override` has the syntax of DMLCOMM_ALGORITHM: empty; or one name, for every
  // operation that has it; or "op=name,op=name". A wrong one is kept as `status()`.
  Planner(topology::Topology topology, const std::string& algorithm_override);

  // `invalid_argument` for a wrong override, naming the legal names; every
  // plan() fails with it too.
  const Status& status() const { return status_; }

  // The schedule of rank `shape.rank`. Fails where the shape is malformed or its
  // group is not the topology's.
  Result<std::shared_ptr<const Schedule>> plan(const OpShape& shape);

  // Whether the user has chosen the algorithm of these operations.
  bool is_overridden(OpKind kind) const { return overrides_.contains(kind); }

  // The algorithm that plan() takes. `shape` must be valid.
  const Algorithm& choose(const OpShape& shape);

 private:
  struct ShapeHash {
    size_t operator()(const OpShape& shape) const;
  };
  using Entry = std::pair<OpShape, std::shared_ptr<const Schedule>>;

  Status check(const OpShape& shape) const;
  Status apply_override(const std::string& text);
  Status override_one(const std::string& kind_name, const std::string& algorithm);
  Status override_all(const std::string& algorithm);
  const Algorithm* cheapest(OpKind kind, double bytes) const;
  std::shared_ptr<const Schedule> remember(const OpShape& shape, Schedule schedule);

  const topology::Topology topology_;
  Status status_;
  std::map<OpKind, const Algorithm*> overrides_;
  // (kind, log2 of the bytes) -> choice. One per size bucket: stays small.
  std::map<std::pair<OpKind, int>, const Algorithm*> choices_;
  std::list<Entry> recent_;  // most recently used first
  std::unordered_map<OpShape, std::list<Entry>::iterator, ShapeHash> cache_;
};

}  // namespace dmlcomm::schedule
