// AgreedRates: the rates that all ranks use, by the reports that all of them get, and how many
// operations run alone because of them.
//
// Rates are taken over when they differ clearly, those of small operations after the first only
// when several say nearly the same. What much larger operations show than those that the rates are
// from is surer: it counts at once, also where it differs less. The operations after a change run
// alone, so that their reports count at once: a rail that had little to do shows its rate only when
// it has more. But a network whose rates change all the time must not end that operations run
// beside each other. So there are a few such turns at first, and another one after many operations.
//
// All ranks make the same calls in the same order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "transport/rank_report.h"

namespace dmlcomm::engine {

class AgreedRates {
 public:
  // Operations that tell rates and run alone in a turn, of others kSmallPerTelling times as many.
  static constexpr size_t kAlone = 8;
  static constexpr size_t kSmallPerTelling = 8;
  // Turns that there may be at first, and operations until there may be another one.
  static constexpr size_t kMostTurns = 8;
  static constexpr size_t kOperationsPerTurn = 64;

  // Why a report is in use: the figure in it that differed most from what was in use.
  struct Change {
    std::optional<size_t> rail;  // none: the round trip
    int num_reports = 1;         // in a row in which some figure differed
  };

  // Before anything is measured.
  void assume(size_t rail, double bits_per_second) { in_use_.add_rate(rail, bits_per_second); }

  // The report of the next operation that all ranks take part in, whether that is small, and the
  // fewest bytes of the operations that it is surely from; 0: not known. With a change: its rates,
  // or its round trip alone, are in use now.
  std::optional<Change> consider(const transport::RankReport& report, bool is_small,
                                 uint64_t bytes = 0);
  // An operation is planned that all ranks take part in; whether it tells rates.
  void planned(bool tells) { alone_left_ -= std::min(alone_left_, tells ? kSmallPerTelling : 1); }

  // The figures of the last change, or those that were assumed.
  const transport::RankReport& in_use() const { return in_use_; }
  // The next operation runs alone.
  bool is_alone() const { return alone_left_ > 0; }
  // No report differs from what is in use, and none is awaited.
  bool is_settled() const { return num_others_ == 0 && alone_left_ == 0; }

 private:
  bool adds_to_what_is_known(const transport::RankReport& report) const;
  // Whether these are many more bytes than those of the operations that the rates are from.
  bool is_surer(uint64_t bytes) const;

  transport::RankReport in_use_;
  transport::RankReport last_;
  bool are_measured_ = false;
  uint64_t from_bytes_ = 0;  // of the operations that the rates are from
  int num_others_ = 0;       // reports in a row that differ from it
  size_t alone_left_ = 0;    // of a turn, kSmallPerTelling for each operation that tells rates
  size_t num_turns_ = kMostTurns;
  size_t num_operations_ = 0;  // since the last turn was given back
};

}  // namespace dmlcomm::engine
