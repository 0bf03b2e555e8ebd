// Arbitration: who may use the NICs of a host, among the jobs that have a seat there
// (transport/job_seat.h). A NIC's two directions are arbitrated each by itself, and in the same
// way: what is said of sending here is also true of reading what comes. Of the jobs that send over
// a NIC, those of the first priority send as they like. The others need credit, and get it in
// rounds:
//  - for the bytes that the first ones have sent since the last round, as many as their shares say
//    (shares.h). So their part is one of bytes, whatever the NIC's rate is. What a job had under
//    way when the first ones began is a part of it;
//  - where processes have measured that rate, also what nobody uses of the NIC, up to kUsable of
//    it, until then kUnknownBytesPerSecond;
//  - what others of them do not take of their part.
// The last two are for those that wait: with strict shares for the first of them.
// A job sends while it has large frames that are not confirmed, and until kHoldNs have passed since
// its last byte, or since it wanted credit.
//
// One thread at a time calls it; it has no clock of its own.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "proxy/shares.h"
#include "transport/job_seat.h"

namespace dmlcomm::proxy {

class Arbitration {
 public:
  // A job's gaps between two messages are shorter, also those in which a client copies what it has
  // announced; those in which it computes are longer.
  static constexpr int64_t kHoldNs = 20 * kNsPerMs;
  static constexpr double kUsable = 0.95;
  static constexpr double kUnknownBytesPerSecond = 1e6;

  struct FlowStatus {
    uint64_t bytes = 0;
    double share = 0;  // 0: there are none now
    bool is_behind = false;
  };
  struct NicStatus {
    std::string interface;
    FlowStatus out;
    FlowStatus in;
  };
  struct JobStatus {
    std::string name;
    unsigned priority = 0;
    size_t num_seats = 0;
    uint64_t sent_bytes = 0;  // of seats that have gone, too
    uint64_t received_bytes = 0;
    std::vector<NicStatus> nics;
  };

  using IsNic = std::function<bool(const std::string& name)>;

  // `is_nic` is asked once for each name of a seat; others are not arbitrated.
  explicit Arbitration(
      const SharePolicy& policy, IsNic is_nic = [](const std::string&) { return true; })
      : policy_(policy), is_nic_(std::move(is_nic)) {}

  // A process of the job has a seat until remove(). Seats of one name and priority are one job.
  uint64_t add(const std::string& job, unsigned priority, std::shared_ptr<transport::JobSeat> seat);
  void remove(uint64_t seat);
  void remove_all();
  // Tells the job's processes that it has lost its place; their seats stay until remove().
  void drop(const std::string& job, unsigned priority, const std::string& reason);

  void round(int64_t now_ns);
  // Whether two jobs are there, and whether one of several has sent something of late.
  bool has_several() const { return jobs_.size() > 1; }
  bool is_busy(int64_t now_ns) const;
  std::vector<JobStatus> status() const;

 private:
  using Key = std::pair<unsigned, std::string>;  // priority, name

  struct Use;
  struct Place {  // of a seat, at one direction of a NIC
    const transport::SeatNic* nic = nullptr;
    transport::SeatFlow* words = nullptr;
    Use* use = nullptr;
    uint64_t seen_bytes = 0;
    bool wants = false;
  };
  struct Seat {
    Key job;
    std::shared_ptr<transport::JobSeat> seat;
    // By NIC and direction; the names of `is_known` have been looked at.
    std::array<std::array<Place, 2>, transport::SeatPage::kMaxNics> places;
    std::array<bool, transport::SeatPage::kMaxNics> is_known{};
  };
  struct Use {  // of a flow by a job
    std::vector<Place*> places;
    uint64_t new_bytes = 0;  // since the last round
    int64_t sent_ns = 0;     // when it was last seen to send
    int64_t wanted_ns = 0;
    double owed_bytes = 0;  // that are not granted yet; negative: it was ahead of its part
    double share = 0;
    bool is_behind = false;

    int64_t active_ns() const { return std::max(sent_ns, wanted_ns); }
  };
  struct Flow {  // one direction of a NIC
    std::map<Key, Use> uses;
    double bits_per_second = 0;
    double spare_bytes = 0;  // that nobody uses; negative: kernels have taken more
  };

  using FlowKey = std::pair<std::string, transport::Direction>;

  void look(int64_t now_ns);
  void take_places(Seat& seat, size_t nic);
  // The job sends if it has sent at least so many bytes.
  static void look_at(Place& place, uint64_t least_bytes, int64_t now_ns);
  static void learn_rate(Flow& flow, int64_t passed_ns);
  // The first priority that sends, if a job goes behind it; kMaxJobPriority if none does.
  unsigned share(Flow& flow, int64_t now_ns);
  static void let_all_send(Flow& flow, uint32_t sharing);
  static void put(Use& use, bool is_behind);
  void grant(Flow& flow, unsigned first, int64_t passed_ns) const;
  // What nobody uses; takes it from `flow`.
  static double take_spare(Flow& flow, double used_bytes, int64_t passed_ns);
  void give_spare(Flow& flow, double spare, double most) const;
  // `most`: of credit that is not used.
  static bool waits(const Place& place, double most);
  static void give(Use& use, double most);

  const SharePolicy policy_;
  const IsNic is_nic_;
  uint64_t next_seat_ = 1;
  std::map<uint64_t, Seat> seats_;
  std::map<Key, std::array<uint64_t, 2>> jobs_;  // with the bytes of seats that have gone
  std::map<FlowKey, Flow> flows_;                // that a seat has
  int64_t last_round_ns_ = 0;
};

}  // namespace dmlcomm::proxy
