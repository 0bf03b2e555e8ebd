// What an engine tells those who ask from outside (inspector.h), as JSON.

#include "base/str_cat.h"
#include "engine/engine.h"

namespace dmlcomm::engine {
namespace {

// A training may have thousands in its queue; the oldest tell what it waits for.
constexpr size_t kMostOperations = 32;

std::string describe_rail(const transport::RailCounters& rail) {
  return str_cat(
      "{\"interface\": ", json_text(rail.interface), ", \"bytes_sent\": ", rail.bytes_sent,
      ", \"bytes_received\": ", rail.bytes_received,
      ", \"frames_repeated\": ", rail.frames_repeated, ", \"lanes_lost\": ", rail.lanes_lost,
      ", \"lanes_back\": ", rail.lanes_back, ", \"bytes_resent\": ", rail.bytes_resent,
      ", \"bits_per_second\": ", static_cast<uint64_t>(rail.bits_per_second),
      ", \"round_trip_us\": ", static_cast<uint64_t>(rail.round_trip_us),
      ", \"agreed_bits_per_second\": ", static_cast<uint64_t>(rail.agreed_bits_per_second),
      ", \"agreed_round_trip_us\": ", static_cast<uint64_t>(rail.agreed_round_trip_us),
      ", \"agreed_message_us\": ", static_cast<uint64_t>(rail.agreed_message_us),
      ", \"blocking_us\": ", static_cast<uint64_t>(rail.blocking_us),
      ", \"urgent_waits\": ", rail.urgent_waits.num,
      ", \"urgent_wait_us\": ", rail.urgent_waits.total_us,
      ", \"longest_urgent_wait_us\": ", rail.urgent_waits.longest_us, "}");
}

}  // namespace

Inspection Engine::inspect() {
  Inspection result;
  if (is_copy() || closed_.load()) return result;
  driver_->call([&] { result = inspection(); });
  return result;
}

std::vector<int> Engine::awaited_by(const Running& running) {
  std::vector<int> peers;
  for (int peer = 0; peer < options_.num_ranks; ++peer) {
    if (peer == options_.rank) continue;
    if (running.runner ? running.runner->waits_for(peer) : waits_for(peer)) peers.push_back(peer);
  }
  return peers;
}

std::string Engine::operation_text(const Running& running) {
  std::string awaited;
  for (int peer : awaited_by(running)) awaited += str_cat(awaited.empty() ? "" : ", ", peer);
  return str_cat("{\"operation\": ", json_text(running.op->text()),
                 ", \"sequence\": ", running.sequence,
                 ", \"has_started\": ", running.runner ? "true" : "false", ", \"waits_for\": [",
                 awaited, "]}");
}

Inspection Engine::inspection() {
  queue_.take_submitted();
  std::string operations, rails;
  size_t num_operations = 0;
  queue_.for_each([&](Running& running) {
    if (num_operations++ >= kMostOperations) return;
    operations += str_cat(operations.empty() ? "" : ", ", operation_text(running));
  });
  const std::vector<transport::RailCounters> counters = rail_counters();
  for (const transport::RailCounters& rail : counters) {
    rails += str_cat(rails.empty() ? "" : ", ", describe_rail(rail));
  }
  const auto rank = static_cast<size_t>(options_.rank);
  const int global =
      rank < options_.global_ranks.size() ? options_.global_ranks[rank] : options_.rank;
  const auto& [sequence, info] = history_.last_begun();
  Inspection result;
  result.json = str_cat(
      "{\"name\": ", json_text(options_.name), ", \"number\": ", json_number(number()),
      ", \"rank\": ", options_.rank, ", \"rank_of_job\": ", global,
      ", \"num_ranks\": ", options_.num_ranks, ", \"host\": ", json_text(host_name()),
      ", \"error\": ", json_text(queue_.error().message()),
      ", \"last_called\": ", queue_.last_sequence(),
      ", \"last_begun\": ", json_text(sequence == 0 ? "" : str_cat(describe(info), " #", sequence)),
      ", \"num_operations\": ", num_operations, ", \"operations\": [", operations,
      "], \"rails\": [", rails, "]}");
  result.samples =
      samples_of(options_.name, options_.rank,
                 {num_operations, queue_.last_sequence(), !queue_.error().ok()}, counters);
  return result;
}

}  // namespace dmlcomm::engine
