#include "ps/pair.h"

#include <utility>

#include "base/str_cat.h"

namespace dmlcomm::ps {

Result<std::shared_ptr<engine::Communicator>> meet(int rank, const PairOptions& options,
                                                   const Config& config,
                                                   std::shared_ptr<engine::Rendezvous> rendezvous) {
  engine::CommunicatorOptions communicator;
  communicator.rank = rank;
  communicator.num_ranks = 2;
  communicator.names = {str_cat("worker ", options.worker), str_cat("server ", options.server)};
  communicator.name = str_cat(communicator.names[0], " - ", communicator.names[1]);
  communicator.rails = options.rails;
  communicator.first_rail = options.first_rail;
  communicator.timeout = options.timeout;
  communicator.config = config;
  return engine::Communicator::create(communicator, std::move(rendezvous));
}

}  // namespace dmlcomm::ps
