// ShmTransport: shared memory between the ranks of one host.
//
// Each rank has one segment (segment.h). Ranks hand theirs over with the hello, through a Unix
// socket, together with the doorbell of their event loop, and their arena if they have one. Whether
// single copy works is tried then, not assumed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "memory/shared_arena.h"
#include "transport/shm/segment.h"
#include "transport/transport.h"

namespace dmlcomm::transport::shm {

class ShmTransport final : public Transport {
 public:
  ShmTransport(const Job& job, EventLoop& loop) : job_(job), loop_(loop) {}

  bool reaches(int peer) const override;
  Status listen(Admission& admission) override;
  Status meet(const std::vector<int>& peers, Rendezvous&, Admission&) override;
  bool accepts(int fd) override;
  size_t num_rails(int) const override { return 1; }
  Result<Attempt> connect(int peer, size_t lane) override;
  std::string route(int peer, size_t lane) override;
  std::vector<int> descriptors() const override;
  Result<std::unique_ptr<Channel>> open(int peer, size_t rail, bool is_alone,
                                        Handshake& handshake) override;
  void show_life() override { own().header().heartbeat.fetch_add(1, std::memory_order_relaxed); }
  std::byte* shared_area(int rank) const override;
  bool has_shared_areas() const override { return true; }

 private:
  Segment& own() const { return *segments_[job_.rank]; }
  uint32_t local_index(int rank) const;

  const Job& job_;
  EventLoop& loop_;
  SharedArena* const arena_ = SharedArena::existing();
  std::vector<int> ranks_;                          // of this host, by local index
  std::vector<std::shared_ptr<Segment>> segments_;  // by rank
};

}  // namespace dmlcomm::transport::shm
