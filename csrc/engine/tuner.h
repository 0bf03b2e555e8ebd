// Tuner: makes the planner use the rates that the rails have shown, and the times that operations
// have taken.
//
// All ranks must choose the same algorithm, so they have to learn the same, at the same operation.
// A rank puts what it has measured into the messages of each collective (rank_report.h), and at the
// end of an operation that needs all ranks all hold the same report. Operation s is planned with
// the reports of those that are window(s) places before it or more, which have ended wherever s
// is planned. So the ranks agree without a message of their own. Operations that do not need all
// ranks carry the messages of a barrier now and then (joining_barrier.h). If the first operation of
// a group is not large, it carries a probe, so that rates are known behind it (probe.h), and so
// does one after very many small ones.
//
// With DMLCOMM_AUTOTUNE=0 on some rank, or a plan file, no rank learns.
//
// All calls require the progress lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "engine/agreed_rates.h"
#include "engine/communicator.h"
#include "engine/message_cost.h"
#include "engine/op_state.h"
#include "engine/runner.h"
#include "schedule/planner.h"
#include "transport/rail_counters.h"
#include "transport/rail_meter.h"
#include "transport/rank_report.h"
#include "transport/recent_minimum.h"

namespace dmlcomm::engine {

class Tuner {
 public:
  // What it sees of the mesh.
  struct Network {
    int num_ranks_on_host = 1;
    bool all_share_memory = false;
    bool all_tune = true;                             // no rank keeps the others from learning
    bool all_probe = true;                            // or from a probe
    const std::vector<transport::RailMeter>& meters;  // one per rail
    // See Mesh::measure_rails().
    std::function<void(int64_t active_ns, double latency_s, transport::RailMeter::Traffic traffic)>
        measure_rails;
  };

  // `options` have a configuration.
  Tuner(const CommunicatorOptions& options, Network network, schedule::Planner& planner,
        std::function<int64_t()> clock = now_ns);

  // How many places an operation of this shape may be planned behind the oldest one that runs.
  uint64_t window(const schedule::OpShape& shape) const;

  // Operations of this shape tell the rates of rails: most of their time is that of bytes.
  static bool tells_rates(const schedule::OpShape& shape);

  // A collective is about to be planned, in its turn: the planner learns what it has to know. What
  // the operation carries.
  schedule::Carried plan(const OpState& op);
  // It has been, as the planner chooses now.
  void planned(const OpState& op);
  void started(const OpState& op);
  // This rank's part of its report. `num_ticketed`: see OperationQueue.
  transport::RankReport own_report(const OpState& op, uint64_t num_ticketed) const;
  // What algorithms are chosen for: the figures of the slowest host.
  void show_agreed(size_t rail, transport::RailCounters* counters) const;
  // A message to a rank of another host has started, or has left. What passes beside its bytes
  // tells nothing of rates. Operations that begin when no message is under way do.
  void message_started() {
    has_messages_ = true;
    ++num_messages_;
  }
  void message_ended() { --num_messages_; }
  // A collective has ended well.
  void ended(uint64_t sequence, const Runner& runner);

 private:
  // An operation that has been planned.
  struct Past {
    uint64_t sequence = 0;
    schedule::OpShape shape;
    const schedule::Algorithm* algorithm = nullptr;
    bool joins_all = false;  // it brings word of all ranks
    bool is_timed = false;   // by its own messages
    bool probes = false;
    int64_t started_ns = 0;
    bool was_alone = true;  // no other one ran meanwhile
    double seconds = 0;     // 0: not known, or not to be compared
    schedule::Latency latency;
    transport::RankReport report;
    bool is_outdated = false;  // it began before the rates that are in use now
  };

  // Rails are measured, also where choices are fixed: striping and budgets follow their rates.
  bool measures() const { return options_.config->autotune && !assumed_bps_.empty(); }
  // And algorithms are chosen by that, and by times.
  bool learns() const { return network_.all_tune && measures(); }
  bool runs_alone(const schedule::OpShape& shape) const;
  bool carries_barrier(const schedule::OpShape& shape) const;
  bool carries_probe(const schedule::OpShape& shape) const;
  Past* find(uint64_t sequence);
  const Past* find(uint64_t sequence) const { return const_cast<Tuner*>(this)->find(sequence); }
  void learn(uint64_t sequence);
  void tell(uint64_t sequence, double seconds);
  void consider(const Past& from);
  void consider_message(uint64_t sequence, const transport::RankReport& report);
  void consider_tickets(uint64_t sequence, const transport::RankReport& report);
  double agreed_bits_per_second(size_t rail) const;
  std::vector<uint64_t> rates_by(const transport::RankReport& report) const;
  void use(const AgreedRates::Change& change, const transport::RankReport& before);
  double alpha_s(const transport::RankReport& report) const;
  bool is_due(int64_t now, int64_t last_ns) const;
  void measure(int64_t now);
  void end_period(transport::RailMeter::Traffic traffic);

  const CommunicatorOptions& options_;
  const Network network_;
  schedule::Planner& planner_;
  const std::function<int64_t()> clock_;
  bool uses_tickets_ = false;  // on some rank, and rates are known
  int num_without_rates_ = 0;
  transport::RecentMinimum ticketed_;  // of reports, by the numbers of operations
  // By rail of the topology; empty where no rank is on another host.
  std::vector<double> assumed_bps_;
  AgreedRates rates_;
  double assumed_alpha_s_;  // between hosts
  MessageCost message_cost_;
  uint64_t untold_bytes_;  // of operations since the last one that tells rates or probes
  size_t num_silent_ = 0;  // operations in a row without word of all ranks; see kMostSilent
  std::deque<Past> past_;  // in their order; calls that were refused are not there
  uint64_t num_learnt_;    // the report of this one is learnt, and of all before

  size_t num_running_ = 0;
  int64_t active_since_ns_ = 0;
  int64_t active_ns_ = 0;   // since the last measurement
  int64_t telling_ns_ = 0;  // of operations that are not small, one beside the other
  double latency_s_ = 0;
  bool shows_rates_ = true;
  bool has_messages_ = false;  // some were under way since the last measurement
  size_t num_messages_ = 0;    // that are under way
  uint64_t num_measured_ = 0;
  int64_t last_measured_ns_ = 0;
  int64_t last_discarded_ns_ = 0;  // a period with messages
};

}  // namespace dmlcomm::engine
