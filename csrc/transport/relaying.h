// Relaying: whether the ranks of a group relay connections for each other, on grids (relay.h).
#pragma once

namespace dmlcomm::transport {

enum class Relaying {
  none,
  whole_job,  // they do, also for the groups of some of them
  part,       // of such a job
};

}  // namespace dmlcomm::transport
