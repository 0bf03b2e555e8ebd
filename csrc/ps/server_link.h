// ServerLink: a worker's connection to one server, or to the proxy that stands in for it, from the
// worker's side.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

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
        commands_(feeder(Feeder::Direction::send, kCommand)) {
    for (uint8_t track = 0; track < kNumTracks; ++track) {
      tracks_[track] = {feeder(Feeder::Direction::send, tag_of(kUp, track)),
                        feeder(Feeder::Direction::receive, tag_of(kAnswer, track)),
                        feeder(Feeder::Direction::receive, tag_of(kDown, track))};
    }
  }
  // Ends pending operations: no memory is touched afterwards.
  ~ServerLink() { communicator_->close(); }

  Feeder& commands() { return *commands_; }
  Feeder& up(uint8_t track) { return *tracks_[track].up; }
  Feeder& answers(uint8_t track) { return *tracks_[track].answers; }
  Feeder& down(uint8_t track) { return *tracks_[track].down; }

  // A command of the model is about to be sent, and is under way until leave(). Returns its track:
  // `wanted`, or that of the others that are under way, so that they stay in their order. Proxies
  // have one track.
  uint8_t enter(uint32_t model, uint8_t wanted) {
    std::lock_guard lock(mutex_);
    UnderWay& those = under_way_[model];
    if (those.num_commands++ == 0) those.track = by_proxy_ ? kUsualTrack : wanted;
    return those.track;
  }
  void leave(uint32_t model) {
    std::lock_guard lock(mutex_);
    const auto it = under_way_.find(model);
    if (--it->second.num_commands == 0) under_way_.erase(it);
  }
  // Of a command that is not answered: behind what the model has under way. With copies all is on
  // one track: what one of them lacks of a worker that has gone is the end of all that it has sent.
  uint8_t track_behind(uint32_t model, bool has_copies) {
    if (has_copies) return kUsualTrack;
    std::lock_guard lock(mutex_);
    const auto it = under_way_.find(model);
    return it == under_way_.end() ? kNoTrack : it->second.track;
  }

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
  const std::shared_ptr<Feeder> commands_;
  struct Track {
    std::shared_ptr<Feeder> up, answers, down;
  };
  std::array<Track, kNumTracks> tracks_;  // constant after construction

  struct UnderWay {
    uint8_t track = kUsualTrack;
    size_t num_commands = 0;
  };
  std::mutex mutex_;
  std::map<uint32_t, UnderWay> under_way_;  // by model; guarded by mutex_
};

}  // namespace dmlcomm::ps
