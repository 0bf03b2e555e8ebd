// The communicator of two ranks that joins a worker and a server, made in the same way on both
// sides.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "base/config.h"
#include "engine/communicator.h"
#include "transport/rendezvous.h"

namespace dmlcomm::ps {

constexpr int kWorkerRank = 0;
constexpr int kServerRank = 1;

// Of single messages: an idle worker may be silent for years, and how long an operation may take is
// up to whoever waits for it. That the peer lives is the connection's to watch.
constexpr std::chrono::hours kForever{24 * 365};

struct PairOptions {
  uint32_t other = 0;                         // number of the server, or of the worker
  std::vector<transport::RailAddress> rails;  // the i-th meets the other side's i-th
  int first_rail = -1;                        // see CommunicatorOptions::first_rail
  std::chrono::milliseconds timeout{30'000};
};

// Meets the other side; `rank` is kWorkerRank or kServerRank, `own` this side's number.
Result<std::shared_ptr<engine::Communicator>> meet(
    int rank, uint32_t own, const PairOptions& options, const Config& config,
    std::shared_ptr<transport::Rendezvous> rendezvous);

}  // namespace dmlcomm::ps
