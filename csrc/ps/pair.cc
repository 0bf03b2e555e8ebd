#include "ps/pair.h"

#include <utility>

#include "base/str_cat.h"
#include "ps/clock_vector.h"

namespace dmlcomm::ps {

std::string name_of(uint32_t number) {
  return is_proxy(number) ? str_cat("proxy ", number - kFirstProxy) : str_cat("worker ", number);
}

Result<std::shared_ptr<engine::Communicator>> meet(
    int rank, uint32_t own, const PairOptions& options, const Config& config,
    std::shared_ptr<transport::Rendezvous> rendezvous) {
  engine::CommunicatorOptions communicator;
  communicator.rank = rank;
  communicator.num_ranks = 2;
  const bool is_worker = rank == kWorkerRank;
  communicator.names = {name_of(is_worker ? own : options.other),
                        str_cat("server ", is_worker ? options.other : own)};
  communicator.name = str_cat(communicator.names[0], " - ", communicator.names[1]);
  communicator.rails = options.rails;
  communicator.first_rail = options.first_rail;
  communicator.reads_alone = options.by_proxy;
  communicator.queues_little = true;
  communicator.shares_cores = true;  // with those of other workers, of a proxy, of other servers
  communicator.timeout = options.timeout;
  communicator.config = config;
  communicator.seat = options.seat;
  return engine::Communicator::create(communicator, std::move(rendezvous));
}

}  // namespace dmlcomm::ps
