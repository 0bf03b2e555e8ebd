// The communicator of two ranks that connects a worker and a server; both sides make it alike.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "engine/communicator.h"
#include "transport/rendezvous.h"

namespace dmlcomm::ps {

constexpr int kWorkerRank = 0;
constexpr int kServerRank = 1;

// Timeout of single messages: an idle worker may be silent for years, and the thread that waits for
// an operation limits its time. The connection itself notices a dead peer.
constexpr std::chrono::hours kForever{24 * 365};

struct PairOptions {
  uint32_t other = 0;                         // number of the server, or of the worker
  std::vector<transport::RailAddress> rails;  // the i-th connects to the other side's i-th
  int first_rail = -1;                        // see CommunicatorOptions::first_rail
  std::chrono::milliseconds timeout{30'000};
  bool by_proxy = false;  // the other side is a proxy, which stands in for a server
  std::shared_ptr<transport::JobSeat> seat;  // see CommunicatorOptions::seat
};

// "worker 3", "proxy 0".
std::string name_of(uint32_t number);

// Meets the other side; `rank` is kWorkerRank or kServerRank, `own` this side's number.
Result<std::shared_ptr<engine::Communicator>> meet(
    int rank, uint32_t own, const PairOptions& options, const Config& config,
    std::shared_ptr<transport::Rendezvous> rendezvous);

}  // namespace dmlcomm::ps
