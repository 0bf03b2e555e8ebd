#include "engine/metrics.h"

#include <iterator>
#include <string_view>

#include "base/str_cat.h"
#include "engine/inspector.h"

namespace dmlcomm::engine {
namespace {

struct Metric {
  std::string_view name;
  std::string_view help;
  uint64_t (*of_group)(const GroupFigures&);  // or
  uint64_t (*of_rail)(const transport::RailCounters&) = nullptr;
};

using Rail = transport::RailCounters;

// Names of counters end in _total.
constexpr Metric kMetrics[] = {
    {"dmlcomm_rank_operations", "Operations in flight",
     [](const GroupFigures& group) { return group.operations; }},
    {"dmlcomm_rank_last_collective", "Number of the last collective that was called",
     [](const GroupFigures& group) { return group.last_collective; }},
    {"dmlcomm_rank_failed", "1: the group has failed",
     [](const GroupFigures& group) { return uint64_t{group.has_failed}; }},
    {"dmlcomm_rail_sent_bytes_total", "Bytes sent over the rail", nullptr,
     [](const Rail& rail) { return rail.bytes_sent; }},
    {"dmlcomm_rail_received_bytes_total", "Bytes received over the rail", nullptr,
     [](const Rail& rail) { return rail.bytes_received; }},
    {"dmlcomm_rail_resent_bytes_total", "Bytes that TCP has sent again", nullptr,
     [](const Rail& rail) { return rail.bytes_resent; }},
    {"dmlcomm_rail_repeated_frames_total", "Frames repeated over other rails", nullptr,
     [](const Rail& rail) { return rail.frames_repeated; }},
    {"dmlcomm_rail_lost_lanes_total", "Connections that were lost", nullptr,
     [](const Rail& rail) { return rail.lanes_lost; }},
    {"dmlcomm_rail_restored_lanes_total", "Connections that came back", nullptr,
     [](const Rail& rail) { return rail.lanes_back; }},
    {"dmlcomm_rail_bits_per_second", "Measured rate of the rail; 0: not known", nullptr,
     [](const Rail& rail) { return static_cast<uint64_t>(rail.bits_per_second); }},
    {"dmlcomm_rail_agreed_bits_per_second", "Rate that algorithms are chosen for; 0: for none",
     nullptr, [](const Rail& rail) { return static_cast<uint64_t>(rail.agreed_bits_per_second); }},
    {"dmlcomm_rail_round_trip_microseconds", "Shortest round trip of late; 0: not known", nullptr,
     [](const Rail& rail) { return static_cast<uint64_t>(rail.round_trip_us); }},
    {"dmlcomm_rail_agreed_round_trip_microseconds",
     "Round trip that algorithms are chosen for; 0: none yet", nullptr,
     [](const Rail& rail) { return static_cast<uint64_t>(rail.agreed_round_trip_us); }},
    {"dmlcomm_rail_agreed_message_microseconds",
     "Time of a message beside its bytes that algorithms are chosen for; 0: for none", nullptr,
     [](const Rail& rail) { return static_cast<uint64_t>(rail.agreed_message_us); }},
    {"dmlcomm_rail_blocking_microseconds",
     "Longest wait of an urgent operation for bytes in the kernel and on their way; 0: not known",
     nullptr, [](const Rail& rail) { return static_cast<uint64_t>(rail.blocking_us); }},
};

}  // namespace

// Labels have quotation marks as JSON has them.
Samples samples_of(const std::string& group, int rank, const GroupFigures& figures,
                   const std::vector<transport::RailCounters>& rails) {
  Samples samples;
  const std::string labels = str_cat("group=", json_text(group), ",rank=\"", rank, "\"");
  for (size_t metric = 0; metric < std::size(kMetrics); ++metric) {
    const Metric& one = kMetrics[metric];
    if (one.of_group != nullptr) {
      samples.push_back({metric, labels, one.of_group(figures)});
      continue;
    }
    for (const Rail& rail : rails) {
      samples.push_back(
          {metric, str_cat(labels, ",rail=", json_text(rail.interface)), one.of_rail(rail)});
    }
  }
  return samples;
}

std::string metrics_text(const std::string& labels, const Samples& samples) {
  std::string text;
  for (size_t metric = 0; metric < std::size(kMetrics); ++metric) {
    const Metric& one = kMetrics[metric];
    const std::string_view kind = one.name.ends_with("_total") ? "counter" : "gauge";
    text += str_cat("# HELP ", one.name, " ", one.help, "\n# TYPE ", one.name, " ", kind, "\n");
    for (const Sample& sample : samples) {
      if (sample.metric != metric) continue;
      text += str_cat(one.name, "{", labels, ",", sample.labels, "} ", sample.value, "\n");
    }
  }
  return text;
}

}  // namespace dmlcomm::engine
