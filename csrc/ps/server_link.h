// ServerLink: a worker's connection to one server, or to the proxy that stands in for it, from the
// worker's side.
#pragma once

#include <memory>

#include "engine/communicator.h"
#include "ps/feeder.h"
#include "ps/wire.h"

namespace dmlcomm::ps {

class ServerLink {
 public:
  // `by_proxy`: a push that is acknowledged is not safe before a version contains it.
  ServerLink(std::shared_ptr<engine::Communicator> communicator, bool by_proxy)
      : by_proxy_(by_proxy),
        communicator_(std::move(communicator)),
        commands_(feeder(Feeder::Direction::send, kCommand)),
        up_(feeder(Feeder::Direction::send, kUp)),
        answers_(feeder(Feeder::Direction::receive, kAnswer)),
        down_(feeder(Feeder::Direction::receive, kDown)) {}
  // Ends pending operations: no memory is touched afterwards.
  ~ServerLink() { communicator_->close(); }

  Feeder& commands() { return *commands_; }
  Feeder& up() { return *up_; }
  Feeder& answers() { return *answers_; }
  Feeder& down() { return *down_; }

  bool by_proxy() const { return by_proxy_; }
  bool works() const { return communicator_->error().ok(); }
  void close() { communicator_->close(); }
  void fail(const std::string& reason) { communicator_->abort(reason); }
  std::vector<transport::RailCounters> rails() { return communicator_->rails(); }
  uint64_t number() const { return communicator_->number(); }

 private:
  static constexpr size_t kInFlight = 16;

  std::shared_ptr<Feeder> feeder(Feeder::Direction direction, uint32_t tag) {
    return std::make_shared<Feeder>(*communicator_, direction, kServerRank, tag, kInFlight);
  }

  const bool by_proxy_;
  const std::shared_ptr<engine::Communicator> communicator_;
  const std::shared_ptr<Feeder> commands_, up_, answers_, down_;
};

}  // namespace dmlcomm::ps
