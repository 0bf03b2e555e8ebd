#include "engine/tuner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/str_cat.h"
#include "engine/compiled_plan.h"
#include "schedule/probe.h"

namespace dmlcomm::engine {
namespace {

using schedule::OpKind;
using transport::RankReport;

// How far collectives between hosts are planned ahead: as many as run at once. Where tickets are
// given, as many as ranks had called at a time, in the last so many operations or more: one that is
// needed soon is seen behind the tensors of a whole model.
constexpr uint64_t kWindow = 8;
constexpr uint64_t kMostWindow = 256;
constexpr int64_t kTicketedOperations = 1024;
// So many operations with tickets are waited for until rates are known.
constexpr int kMostWithoutRates = 32;
// The first ones of a size run alone, so that their reports count at once; and so do those at new
// rates (AgreedRates).
constexpr size_t kFirstOfSize = 8;
// After so many operations without word of all ranks one carries a barrier. An operation that tells
// rates counts as eight.
constexpr size_t kMostSilent = 64;
// A reading costs a system call for each connection: later ones are not so frequent.
constexpr uint64_t kFrequentMeasurements = 16;
constexpr int64_t kMeasureNs = 10 * kNsPerMs;
// Most of the time of smaller operations is that of messages and of waking up.
constexpr uint64_t kLeastTellingBytes = 256 * 1024;
// Larger ones tell rates surely.
constexpr uint64_t kLeastSureBytes = 16 * schedule::kProbeBytes;
// After so many bytes of smaller ones another probe costs no more than a thousandth.
constexpr uint64_t kUntoldBytes = 1024 * schedule::kProbeBytes;
// A message needs half a round trip, and so much for calls and waking up, until that is measured.
constexpr double kAssumedMessageCost = 10e-6;

// The time of an operation is that of the rank that waits longest, as far as the others' part in it
// explains that, not their coming late.
constexpr double kMostTimesLonger = 2;
constexpr double kMostSecondsLonger = 10e-3;

std::string time_text(double microseconds) {
  return microseconds > 0 ? str_cat(std::llround(microseconds), " us") : "unknown";
}

std::string reason(const AgreedRates::Change& change,
                   const std::vector<transport::RailAddress>& rails) {
  const std::string most =
      change.rail ? "the rate of " + rails[*change.rail].interface : "the round trip";
  if (change.num_reports == 1) return "a report differs twofold or more, most in " + most;
  return str_cat(change.num_reports, " reports in a row differ, the last one most in ", most);
}

double half_trip_s(const RankReport& report) { return report.round_trip_us() / 2 * 1e-6; }

double seconds_of(const RankReport& report) {
  const double shortest = report.shortest_s();
  const double most = std::min(kMostTimesLonger * shortest, shortest + kMostSecondsLonger);
  return std::min(report.longest_s(), most);
}

}  // namespace

Tuner::Tuner(const CommunicatorOptions& options, Network network, schedule::Planner& planner,
             std::function<int64_t()> clock)
    : options_(options),
      network_(std::move(network)),
      planner_(planner),
      clock_(std::move(clock)),
      ticketed_(kTicketedOperations),
      assumed_alpha_s_(planner.topology().inter_host.alpha_s),
      untold_bytes_(kUntoldBytes),
      num_learnt_(options.first_sequence - 1) {
  if (network_.num_ranks_on_host == options.num_ranks) return;
  if (options.tunes() && !network_.all_tune) {
    log_info("group '", options.name, "': a rank has DMLCOMM_AUTOTUNE=0 or a plan file: choices ",
             "stay as they are");
  }
  // Some hosts may have spare rails beyond these.
  for (uint32_t rail = 0; rail < planner.topology().num_rails; ++rail) {
    assumed_bps_.push_back(agreed_bits_per_second(rail));
    rates_.assume(rail, assumed_bps_.back());
  }
}

uint64_t Tuner::window(const schedule::OpShape& shape) const {
  if (network_.all_share_memory) return 1;
  if (!learns()) return kMostWindow;
  // Nobody may have to wait for an operation that runs alone.
  if (uses_tickets_) {
    const uint64_t most = RankReport::places(static_cast<uint8_t>(ticketed_.value()));
    return std::clamp(most, kWindow, kMostWindow);
  }
  return runs_alone(shape) ? 1 : kWindow;
}

bool Tuner::runs_alone(const schedule::OpShape& shape) const {
  const schedule::Trials* const trials = planner_.trials_of(shape);
  if (trials == nullptr || uses_tickets_) return false;
  return trials->num_started() < kFirstOfSize || rates_.is_alone() || trials->is_trying();
}

bool Tuner::carries_barrier(const schedule::OpShape& shape) const {
  if (!learns() || schedule::joins_all(shape)) return false;
  return num_silent_ >= kMostSilent || runs_alone(shape);
}

// Other operations tell rates late, or only how a shaper's bursts pass.
bool Tuner::carries_probe(const schedule::OpShape& shape) const {
  return learns() && network_.all_probe && untold_bytes_ >= kUntoldBytes &&
         schedule::known_bytes(shape) < kLeastSureBytes && schedule::can_probe(planner_.topology());
}

RankReport Tuner::own_report(const OpState& op, uint64_t num_ticketed) const {
  RankReport report;
  if (num_ticketed > 0) report.add_ticketed(num_ticketed);
  if (!learns()) return report;
  // The ranks of a host share its rails.
  const double sharers = network_.num_ranks_on_host;
  const auto& meters = network_.meters;
  // A rail of which less is known than of others may be as fast as they are.
  const auto end = meters.begin() + static_cast<ptrdiff_t>(assumed_bps_.size());
  const bool are_bounds =
      std::all_of(meters.begin(), end, [](const auto& meter) { return meter.is_lower_bound(); });
  // Small messages take the nearest rail, but on a grid that of their level.
  const bool chooses_rail = planner_.topology().grid.empty();
  double round_trip_us = 0;
  for (size_t rail = 0; rail < assumed_bps_.size(); ++rail) {
    const transport::RailMeter& meter = meters[rail];
    const bool is_known = meter.bits_per_second() > 0 && (are_bounds || !meter.is_lower_bound());
    if (is_known) report.add_rate(rail, sharers * meter.bits_per_second());
    const double here_us = meter.round_trip_us();
    const bool is_nearer = round_trip_us == 0 || (here_us < round_trip_us) == chooses_rail;
    if (here_us > 0 && is_nearer) round_trip_us = here_us;
  }
  if (round_trip_us > 0) {
    report.add_round_trip(std::max(round_trip_us, transport::RailMeter::kLeastRoundTripUs));
  }
  if (const Past* before = find(op.sequence() - 1)) report.set_time(before->seconds);
  return report;
}

void Tuner::show_agreed(size_t rail, transport::RailCounters* counters) const {
  if (rail >= assumed_bps_.size()) return;
  counters->agreed_bits_per_second = agreed_bits_per_second(rail);
  counters->agreed_round_trip_us = rates_.in_use().round_trip_us();
  counters->agreed_message_us = planner_.topology().inter_host.alpha_s * 1e6;
}

double Tuner::agreed_bits_per_second(size_t rail) const {
  return 8 / planner_.topology().rail_beta(static_cast<uint32_t>(rail));
}

Tuner::Past* Tuner::find(uint64_t sequence) {
  const auto it = std::lower_bound(past_.begin(), past_.end(), sequence,
                                   [](const Past& past, uint64_t s) { return past.sequence < s; });
  return it == past_.end() || it->sequence != sequence ? nullptr : &*it;
}

schedule::Carried Tuner::plan(const OpState& op) {
  if (!measures()) return {};
  const schedule::OpShape& shape = op.request().shape;
  Past next;
  next.sequence = op.sequence();
  next.shape = shape;
  next.is_timed = schedule::joins_all(shape);
  if (learns()) {
    for (const uint64_t places = window(shape); num_learnt_ + places < next.sequence;) {
      learn(++num_learnt_);
    }
  }
  const schedule::Carried carried{carries_barrier(shape), carries_probe(shape)};
  next.joins_all = next.is_timed || carried.barrier;
  next.probes = carried.probe;
  next.is_timed = next.is_timed && !next.probes;
  const bool tells = next.probes || tells_rates(shape);
  untold_bytes_ = tells ? 0 : untold_bytes_ + schedule::known_bytes(shape);
  if (next.joins_all) {
    rates_.planned(tells_rates(shape));
    num_silent_ = 0;
  } else {
    num_silent_ += tells_rates(shape) ? AgreedRates::kSmallPerTelling : 1;
  }
  next.algorithm = &planner_.choose(shape);
  past_.push_back(std::move(next));
  const bool is_far = uses_tickets_ || !learns();
  if (past_.size() > (is_far ? 2 * kMostWindow : 4 * kWindow)) past_.pop_front();
  return carried;
}

void Tuner::planned(const OpState& op) {
  if (!learns()) return;
  if (schedule::Trials* trials = planner_.trials_of(op.request().shape)) trials->started();
}

bool Tuner::tells_rates(const schedule::OpShape& shape) {
  return schedule::known_bytes(shape) >= kLeastTellingBytes;
}

void Tuner::started(const OpState& op) {
  if (!measures()) return;
  const int64_t now = clock_();
  const bool is_behind_messages = has_messages_ && num_messages_ == 0 && num_running_ == 0;
  if (is_behind_messages && is_due(now, last_discarded_ns_)) {
    end_period(transport::RailMeter::Traffic::mixed);
    last_discarded_ns_ = now;
  }
  if (num_running_++ == 0) active_since_ns_ = now;
  Past* const started = find(op.sequence());
  if (started == nullptr) return;
  started->started_ns = now;
  started->was_alone = num_running_ == 1;
  if (started->was_alone) return;
  for (Past& past : past_) past.was_alone = false;
}

void Tuner::ended(uint64_t sequence, const Runner& runner) {
  if (!measures()) return;
  const int64_t now = clock_();
  if (--num_running_ == 0) active_ns_ += now - active_since_ns_;
  const CompiledPlan* const plan = runner.plan();
  Past* const past = find(sequence);
  if (past == nullptr || plan == nullptr) return;
  DMLCOMM_CHECK(past->algorithm == plan->schedule->algorithm);
  const bool shows = past->probes || past->algorithm->shows_rates(planner_.topology());
  shows_rates_ = shows_rates_ && shows;
  past->latency = plan->latency;
  latency_s_ += plan->latency_s;
  if (plan->tells_rates || past->probes) telling_ns_ += now - past->started_ns;
  if (num_running_ == 0) measure(now);
  past->report = runner.report();
  if (past->is_timed && past->was_alone) {
    past->seconds = static_cast<double>(now - past->started_ns) / kNsPerS;
  }
}

// What all ranks know at the end of an operation.
void Tuner::learn(uint64_t sequence) {
  const Past* const from = find(sequence);
  if (from == nullptr || !from->joins_all) return tell(sequence - 1, 0);
  consider(*from);
  consider_tickets(sequence, from->report);
  consider_message(sequence - 1, from->report);
  tell(sequence - 1, seconds_of(from->report));
}

void Tuner::tell(uint64_t sequence, double seconds) {
  const Past* const past = find(sequence);
  if (past == nullptr || !past->is_timed) return;
  schedule::Trials* const trials = planner_.trials_of(past->shape);
  if (trials == nullptr) return;
  const schedule::Algorithm& before = trials->usual();
  const double before_s = trials->usual_s();
  const bool counts = !past->is_outdated || seconds <= schedule::kShortSeconds;
  trials->ended(*past->algorithm, counts ? seconds : 0);
  if (options_.rank != 0 || &trials->usual() == &before) return;
  log_info("group '", options_.name, "': ", to_string(past->shape.kind), " of about ",
           schedule::known_bytes(past->shape), " bytes: ", trials->usual().name, ", ",
           std::llround(trials->usual_s() * 1e6), " us, instead of ", before.name, ", ",
           std::llround(before_s * 1e6), " us");
}

bool Tuner::is_due(int64_t now, int64_t last_ns) const {
  return num_measured_ < kFrequentMeasurements || now - last_ns >= kMeasureNs;
}

// A period with messages goes on until an operation starts after them.
void Tuner::measure(int64_t now) {
  if (has_messages_ || !is_due(now, last_measured_ns_)) return;
  using Traffic = transport::RailMeter::Traffic;
  const bool tells = shows_rates_ && 2 * telling_ns_ >= active_ns_;
  end_period(tells ? Traffic::telling : Traffic::vague);
  ++num_measured_;
  last_measured_ns_ = now;
}

void Tuner::end_period(transport::RailMeter::Traffic traffic) {
  network_.measure_rails(active_ns_, latency_s_, traffic);
  active_ns_ = 0;
  telling_ns_ = 0;
  latency_s_ = 0;
  shows_rates_ = true;
  has_messages_ = false;
}

// All ranks come to the same result. What the operation shows counts for the report of the next
// one.
void Tuner::consider(const Past& from) {
  const RankReport before = rates_.in_use();
  const uint64_t bytes = schedule::known_bytes(from.shape);  // 0: not known, or a barrier
  const bool is_small = bytes > 0 && !tells_rates(from.shape);
  const Past* const shown = find(from.sequence - 1);
  const uint64_t least =
      shown == nullptr ? 0 : std::min(bytes, schedule::known_bytes(shown->shape));
  if (const auto change = rates_.consider(from.report, is_small, least)) use(*change, before);
}

// A barrier's time is that of its messages. `report` has the times of this operation.
void Tuner::consider_message(uint64_t sequence, const RankReport& report) {
  const Past* const past = find(sequence);
  if (past == nullptr || past->shape.kind != OpKind::barrier) return;
  const schedule::Latency& latency = past->latency;
  const RankReport& in_use = rates_.in_use();
  if (latency.alphas == 0 || in_use.round_trip_us() == 0) return;
  if (!MessageCost::is_together(report.shortest_s(), report.longest_s())) return;
  const double alpha = (report.shortest_s() - latency.rest_s) / latency.alphas;
  const double before_s = planner_.topology().inter_host.alpha_s;
  if (!message_cost_.add(alpha - half_trip_s(in_use))) return;
  planner_.learn(rates_by(in_use), alpha_s(in_use));
  if (options_.rank != 0) return;
  log_info("group '", options_.name, "': a message takes ", time_text(alpha_s(in_use) * 1e6),
           " besides its bytes, not ", time_text(before_s * 1e6), ", by the times of ",
           MessageCost::kBarriers, " barriers, twice in a row; algorithms are chosen anew");
}

double Tuner::alpha_s(const RankReport& report) const {
  if (const auto cost = message_cost_.in_use_s()) return *cost + half_trip_s(report);
  return std::max(assumed_alpha_s_, kAssumedMessageCost + half_trip_s(report));
}

// With tickets a report counts later. So the rates that drivers tell have to be corrected before,
// or a training would go its first steps with algorithms for another network.
void Tuner::consider_tickets(uint64_t sequence, const RankReport& report) {
  if (!report.uses_tickets()) return;
  ticketed_.add(report.ticketed, static_cast<int64_t>(sequence));
  if (uses_tickets_) return;
  const auto is_known = [](uint8_t rate) { return rate != RankReport::kUnknown; };
  const bool knows_rates =
      rates_.is_settled() && std::any_of(report.rates.begin(), report.rates.end(), is_known);
  uses_tickets_ = knows_rates || ++num_without_rates_ == kMostWithoutRates;
}

// Rails that have shown nothing yet are as far from what was assumed as the others, and so are all
// that differ by a step of rounding.
std::vector<uint64_t> Tuner::rates_by(const RankReport& report) const {
  RankReport assumed;
  for (size_t rail = 0; rail < assumed_bps_.size(); ++rail) {
    assumed.add_rate(rail, assumed_bps_[rail]);
  }
  std::vector<int> steps;  // of the known ones, from what was assumed
  for (size_t rail = 0; rail < assumed_bps_.size(); ++rail) {
    if (report.rate(rail) == RankReport::kUnknown) continue;
    steps.push_back(report.rate(rail) - assumed.rate(rail));
  }
  const auto [least, most] = std::minmax_element(steps.begin(), steps.end());
  const bool are_alike = steps.empty() || *most - *least <= 1;
  const double mean =
      std::accumulate(steps.begin(), steps.end(), 0.0) / std::max<double>(steps.size(), 1);
  std::vector<uint64_t> rates;
  for (size_t rail = 0; rail < assumed_bps_.size(); ++rail) {
    const bool is_by_mean = are_alike || report.rate(rail) == RankReport::kUnknown;
    const double from_assumed = is_by_mean ? mean : report.rate(rail) - assumed.rate(rail);
    rates.push_back(std::llround(assumed_bps_[rail] * RankReport::ratio(from_assumed)));
  }
  return rates;
}

void Tuner::use(const AgreedRates::Change& change, const RankReport& before) {
  const RankReport& report = rates_.in_use();
  const std::vector<uint64_t> rates = rates_by(report);
  std::string text;
  for (size_t rail = 0; rail < rates.size(); ++rail) {
    text += str_cat(options_.rails[rail].interface, " ",
                    std::llround(agreed_bits_per_second(rail) / 1e6), " -> ",
                    std::llround(static_cast<double>(rates[rail]) / 1e6), " Mb/s",
                    report.rate(rail) == RankReport::kUnknown ? " (not measured), " : ", ");
  }
  planner_.learn(rates, alpha_s(report));
  for (Past& past : past_) past.is_outdated = true;
  if (options_.rank == 0) {
    log_info("group '", options_.name, "': rates in use of the slowest host: ", text, "round trip ",
             time_text(before.round_trip_us()), " -> ", time_text(report.round_trip_us()), "; ",
             reason(change, options_.rails), "; algorithms are chosen anew");
  }
}

}  // namespace dmlcomm::engine
