// MaxMinSharing: flows of bytes that share resources by max-min fairness: no flow can go
// faster without taking from one that is not faster than it (Bertsekas, Gallager, "Data
// Networks", 1992). Time is the caller's: it asks when the next flow ends, and moves on to
// there or to an earlier event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dmlcomm::schedule {

class MaxMinSharing {
 public:
  // Returns the resource's id. Capacity in bytes per second, above 0; `contention` times less while
  // flows of several origins share it.
  uint32_t add_resource(double bytes_per_s, double contention = 1);

  // A resource that a flow needs, and where it comes from to that one.
  struct Use {
    uint32_t resource;
    uint32_t origin = 0;
  };

  // A flow of `bytes` > 0 with at least one use. Ids are the caller's.
  void add(uint32_t flow, double bytes, const std::vector<Use>& uses);

  size_t num_flows() const { return flows_.size(); }

  // Infinity where no flow is left.
  double seconds_to_first_end();

  // Moves all flows on, by at most seconds_to_first_end(), and returns those that ended.
  std::vector<uint32_t> advance(double seconds);

 private:
  struct Flow {
    uint32_t id;
    double bytes_left;
    double negligible;  // bytes that rounding may leave over
    double bytes_per_s;
    std::vector<Use> uses;
  };

  void share();
  std::vector<double> capacities() const;

  struct Resource {
    double bytes_per_s;
    double contention;
  };
  std::vector<Resource> resources_;
  std::vector<Flow> flows_;
  bool is_shared_ = true;  // bytes_per_s is right for the present flows
};

}  // namespace dmlcomm::schedule
