// RailMeter: the rate and the round trip of one rail, learned from what its connections carry.
//
// The rate of a period is the bytes that the peers' kernels have confirmed, over the time in which
// they could have been on their way: the shortest of that of the running operations, of that in
// which the rail had large frames without a receipt, and of that of all connections one after the
// other. So it is a lower bound, and close where operations keep the rail busy, or frames are
// large. The highest of the last few periods counts: operations wait for late ranks, too. But
// periods with much fewer bytes than others do not, as a shaper's burst is a part of them.
//
// Shapers let the first bytes after a pause pass at once. So a rail that carries little between
// pauses is seen over the whole time, in which it has at least that rate: that alone replaces no
// better figure. But where another rail was in use for much longer, several times in a row, it
// could have carried more by as much: a rail that is taken for slow gets little to carry, and would
// stay so.
//
// Messages that belong to no operation, as those of parameter servers, tell none of this. For the
// arbiter of the host's NICs, and for those that give way to urgent ones, there is a bound from
// below of all that large frames carry while some have no receipt all the time.
//
// It also notes when urgent messages go over the rail, so that links give way to those of others,
// and has the limits of large messages: room for small ones (RailBudget), and for other jobs of
// this host (NicCredit), which send or are sent to.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/clock.h"
#include "transport/channel.h"
#include "transport/job_seat.h"
#include "transport/rail_budget.h"
#include "transport/recent_minimum.h"
#include "transport/urgent_times.h"

namespace dmlcomm::transport {

class RailMeter {
 public:
  // The bytes of a period. Telling: most of them of operations that are not small, and in which
  // all hosts send as much as they receive. Vague: of others. Slowed: large frames left room for
  // others. Mixed: also bytes that belong to no operation.
  enum class Traffic { telling, vague, slowed, mixed };

  // Of all rails: the longest time in use of one, and the most times the assumed rate that one has.
  struct Others {
    int64_t most_in_use_ns;
    double times_assumed;
  };

  // The rate that is given, or that the driver tells. Until ranks have measured something better,
  // small messages go by its ratio to those of other rails.
  void assume(double bits_per_second) { assumed_bps_ = bits_per_second; }

  // What one connection has carried between two readings, in which it was given `payload_bytes` of
  // messages. Others, such as receipts for what comes, tell nothing of the rate.
  void add(const Channel::Flow& before, const Channel::Flow& now, uint64_t payload_bytes);
  // The time of shorter frames, of large messages or operations, tells little.
  static constexpr size_t kLeastFrameBytes = 16 * 1024;
  // A connection begins to send a large frame; one has been confirmed, or is given up.
  void begin_frame(int64_t now_ns, uint64_t bytes);
  void end_frame(int64_t now_ns, uint64_t bytes);
  // How long it has had such frames without a receipt, in this period.
  int64_t in_use_ns(int64_t now_ns) const;
  // The time until a small frame was confirmed, at once.
  void add_sample(uint64_t bytes, int64_t duration_ns);
  // Until `now_ns`, `active_ns` have passed in operations, which would have taken `latency_s` if
  // bytes took no time. A period with too few bytes to tell a rate is added to the next one; a
  // vague period is dropped as soon as there is one that tells. With vague traffic the rail may
  // have waited for the port of another one, or for ranks that woke up: that counts only until
  // there is something better. Without a sample it tells only that the rail has at least its rate:
  // a rail that got few bytes is not slow. So does slowed traffic; mixed traffic tells nothing.
  void end_period(int64_t now_ns, int64_t active_ns, double latency_s, Traffic traffic,
                  const Others& others = {});

  static Others others_of(std::span<const RailMeter> rails, int64_t now_ns);

  // Which rail carries a small message that may take any: the one that is through first with it
  // (half a round trip, and its bytes) and with those that it was given before and cannot have sent
  // yet. Rails that are nearly equal take turns. A slow rail gets one in many until something
  // better has told its rate: that shows whether it is slow. Where a rate is not known, or only
  // that it is not lower, what was assumed counts.
  static uint8_t next_for_small(std::span<RailMeter> rails, size_t bytes, int64_t now_ns);
  // Which rail carries a very small one: the usual one, so that many leave together, unless it is
  // there clearly sooner on another.
  static size_t nearest(std::span<const RailMeter> rails, size_t usual, size_t bytes);
  // The one that is through first with such a frame and with those that connections have begun and
  // that have no receipt.
  static uint8_t first_through(std::span<const RailMeter> rails, size_t bytes);

  // Large frames take this share of the rate at most; 1, or if that is not known: all that they
  // get.
  void share(double share) { budget_.limit(share < 1 ? share * bits_per_second() / 8 : 0); }
  // The arbiter hears the rate, as far as it is known.
  void tell_arbiter() { credit_.measured(least_bits_per_second()); }
  // This host's other jobs on the NIC.
  void arbitrate(NicCredit credit, NicCredit arrivals) {
    credit_ = std::move(credit);
    arrivals_ = std::move(arrivals);
  }
  NicCredit& credit() { return credit_; }
  const NicCredit& credit() const { return credit_; }
  NicCredit& arrivals() { return arrivals_; }
  // The most that a frame of a large message should have, of at most `most` without a limit.
  size_t frame_bytes(size_t most) const {
    return budget_.frame_bytes(credit_.is_shared() ? std::min(most, kSharedFrameBytes) : most);
  }
  bool limits_large() const { return budget_.is_limited() || credit_.is_limited(); }
  // Takes a frame of `bytes` of a large message, or refuses it for now.
  bool take_large(size_t bytes, int64_t now_ns);
  // How many bytes of a large message to read now, of at most `most`; 0: it has to wait. The caller
  // takes them from arrivals().
  size_t may_read(size_t most);

  // A message of an urgent class (base/ticket.h) has left over one of the connections, or come.
  void note_urgent(size_t ticket_class, int64_t now_ns) { urgent_->note(ticket_class, now_ns); }
  // Other meters note and see them, too.
  void share_urgent(std::shared_ptr<UrgentTimes> urgent) { urgent_ = std::move(urgent); }
  const UrgentTimes& urgent() const { return *urgent_; }
  // A connection gives way to them, or to another job, and looks again soon. Whether any does since
  // the last call.
  void note_yielding() { is_yielding_ = true; }
  bool take_yielding() { return std::exchange(is_yielding_, false); }

  // 0: not known.
  double bits_per_second() const { return bps_; }
  // A bound from below that also messages which belong to no operation tell; 0: not known.
  double least_bits_per_second() const { return std::max(bps_, carried_bps_); }
  // All that is known is that it is not lower.
  bool is_lower_bound() const { return is_lower_bound_; }
  // Shorter ones are less than what calls and waking up take.
  static constexpr double kLeastRoundTripUs = 50;
  // The shortest one that connections had of late; see kRoundTripNs.
  double round_trip_us() const { return round_trips_us_.value(); }
  uint64_t bytes_resent() const { return bytes_resent_; }

 private:
  struct Period {
    uint64_t bytes = 0;
    int64_t busy_us = 0;
    uint64_t frame_bytes = 0;  // of large frames
    int64_t frames_ns = 0;     // in which there were some without a receipt
    uint64_t long_bytes = 0;   // of these: of pieces of that time that tell the rate
    int64_t long_ns = 0;
    Others others{};
    int64_t active_ns = 0;
    double latency_s = 0;
    uint64_t sampled_bytes = 0;  // of small frames that were timed
    int64_t sampled_ns = 0;
    bool is_telling = false;
    bool is_slowed = false;

    void add(const Period& other);
  };

  void begin_window(int64_t now_ns);
  // There are no large frames any more, or the period ends.
  void end_piece(int64_t now_ns);
  // A period with bytes enough.
  void take(const Period& period);
  // What a rail with pauses could have carried, had it been in use like another; 0: not known yet.
  double rate_without_pauses(const Period& period);

  // A small message avoids it, as it is slow.
  bool is_left_out();
  static double times_assumed(std::span<const RailMeter> rails);
  // By which small messages are shared, where rails have `times` what was assumed; 0: not known.
  double rate_for_small(double times) const;
  double seconds_until_through(size_t bytes, double times, int64_t now_ns) const;
  void give_small(double seconds, double most_s, int64_t now_ns);
  // Half a round trip, and the time of the bytes.
  double seconds_for(size_t bytes, double times) const;

  // Round trips count for so long, and up to twice: periods differ in the peers that they reach.
  // Each of them is the shortest that a kernel has seen on a connection in the last 300 s
  // (net.ipv4.tcp_min_rtt_wlen), which queues do not lengthen.
  static constexpr int64_t kRoundTripNs = 10 * kNsPerS;
  // A job that another one passes has begun so much.
  static constexpr size_t kSharedFrameBytes = 64 * 1024;

  RailBudget budget_;
  NicCredit credit_;
  NicCredit arrivals_;
  std::shared_ptr<UrgentTimes> urgent_ = std::make_shared<UrgentTimes>();
  bool is_yielding_ = false;
  Period period_;          // since the last end_period()
  Period kept_;            // of those before, with few bytes
  size_t num_idle_ = 0;    // periods in a row in which another rail was in use for much longer
  double least_idle_ = 0;  // of these: how much longer
  size_t num_frames_ = 0;  // large ones without a receipt
  uint64_t bytes_of_frames_ = 0;
  int64_t frames_since_ns_ = 0;
  // A window in which some large frame has no receipt all the time, and what was confirmed in it
  // beyond the bytes that were under way when it began; the rate of the last one that was long.
  int64_t window_since_ns_ = 0;
  int64_t window_bytes_ = 0;
  double carried_bps_ = 0;
  uint64_t piece_bytes_ = 0;  // confirmed since then
  struct Rate {
    double bits_per_second = 0;
    uint64_t bytes = 0;  // that it is from, or that it counts beside
  };
  std::array<Rate, 4> rates_{};  // of the last periods
  double bps_ = 0;               // by them
  size_t num_periods_ = 0;
  bool has_been_told_ = false;
  bool has_been_told_least_ = false;  // by a telling period: vague ones may only raise the rate
  bool is_lower_bound_ = true;
  double assumed_bps_ = 1;
  double small_s_ = 0;          // time of the small messages that it was given
  int64_t small_until_ns_ = 0;  // when it is through with them
  size_t num_left_out_ = 0;     // small messages in a row, as it is slow
  uint32_t shortest_us_ = 0;    // round trip of the period; 0: none
  RecentMinimum round_trips_us_{kRoundTripNs};
  uint64_t bytes_resent_ = 0;
};

}  // namespace dmlcomm::transport
