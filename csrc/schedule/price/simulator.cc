#include "schedule/price/simulator.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "schedule/message_matching.h"
#include "schedule/price/max_min_sharing.h"
#include "schedule/price/traffic.h"

namespace dmlcomm::schedule {
namespace {

struct Message {
  uint32_t send, receive;  // nodes
  double bytes;
  double overhead_s, alpha_s;
  std::vector<MaxMinSharing::Use> uses;
  std::pair<uint32_t, uint32_t> lane;  // (sender, receiver)
};

// The steps of all simulated ranks, numbered through as *nodes*, and the messages that join them.
struct Work {
  struct Node {
    const Step* step;
    uint32_t rank;
    uint32_t message;  // unused for a copy
    std::vector<uint32_t> successors;
    uint32_t waits_for;
  };
  std::vector<Node> nodes;
  std::vector<Message> messages;
  MaxMinSharing sharing;
  uint32_t num_ranks = 0;
  uint32_t num_cores = 0;  // on which all ranks post

  // Returns the first node.
  uint32_t add_rank(const Schedule& schedule) {
    const auto first = static_cast<uint32_t>(nodes.size());
    for (const Step& step : schedule.steps) {
      for (uint32_t dep : step.deps) {
        nodes[first + dep].successors.push_back(static_cast<uint32_t>(nodes.size()));
      }
      nodes.push_back({&step, num_ranks, 0, {}, static_cast<uint32_t>(step.deps.size())});
    }
    ++num_ranks;
    return first;
  }

  void add_message(Message message) {
    const auto id = static_cast<uint32_t>(messages.size());
    nodes[message.send].message = id;
    nodes[message.receive].message = id;
    messages.push_back(std::move(message));
  }
};

// Plays the work in the order of time.
class Simulation {
 public:
  Simulation(Work work, double gamma_s_per_byte, uint32_t element_bytes)
      : work_(std::move(work)),
        gamma_(gamma_s_per_byte),
        element_bytes_(element_bytes),
        posts_waiting_(work_.num_ranks),
        cores_free_(work_.num_cores),
        compute_free_(work_.num_ranks, 0),
        sides_waiting_(work_.messages.size(), 2) {}

  double run() {
    for (uint32_t node = 0; node < work_.nodes.size(); ++node) {
      if (work_.nodes[node].waits_for == 0) start(node);
    }
    while (!events_.empty() || work_.sharing.num_flows() > 0) {
      // The length of a step, not the difference of two times, which may round to nothing.
      const double to_end = work_.sharing.seconds_to_first_end();
      const bool ends_first = events_.empty() || now_ + to_end <= events_.top().first;
      const double until = ends_first ? now_ + to_end : events_.top().first;
      const double seconds = ends_first ? to_end : until - now_;
      for (uint32_t message : work_.sharing.advance(seconds)) arrive(message, until);
      now_ = until;
      while (!events_.empty() && events_.top().first <= now_) {
        const Event event = events_.top().second;
        events_.pop();
        handle(event);
      }
    }
    return now_;
  }

 private:
  enum class Happening { complete, posted, enter, move };  // of a node; the others of a message
  struct Event {
    Happening what;
    uint32_t id;
    auto operator<=>(const Event&) const = default;
  };

  void handle(const Event& event) {
    switch (event.what) {
      case Happening::complete: return complete(event.id);
      case Happening::posted: return posted(event.id);
      case Happening::enter: return enter(event.id);
      case Happening::move: return move(event.id);
    }
  }

  void at(double time, Event event) { events_.push({time, event}); }

  double work_seconds(const Step& step) const {
    return gamma_ * static_cast<double>(step.range.length) * element_bytes_;
  }

  // One rank's combining, one range after the other: returns when this one is done.
  static double queue(double* free_from, double now, double seconds) {
    *free_from = std::max(*free_from, now) + seconds;
    return *free_from;
  }

  void start(uint32_t id) {
    const Work::Node& node = work_.nodes[id];
    if (node.step->kind == StepKind::copy) {
      return at(queue(&compute_free_[node.rank], now_, work_seconds(*node.step)),
                {Happening::complete, id});
    }
    if (--sides_waiting_[node.message] > 0) return;
    const uint32_t sender = sender_of(node.message);
    posts_waiting_[sender].push(node.message);
    if (posts_waiting_[sender].size() == 1) want_core_.push(sender);
    use_cores();
  }

  uint32_t sender_of(uint32_t message) const {
    return work_.nodes[work_.messages[message].send].rank;
  }

  // Ranks with something to post get cores in turns, for one message at a time.
  void use_cores() {
    while (cores_free_ > 0 && !want_core_.empty()) {
      const uint32_t id = posts_waiting_[want_core_.front()].front();
      want_core_.pop();
      --cores_free_;
      at(now_ + work_.messages[id].overhead_s, {Happening::posted, id});
    }
  }

  void posted(uint32_t id) {
    const uint32_t sender = sender_of(id);
    ++cores_free_;
    posts_waiting_[sender].pop();
    if (!posts_waiting_[sender].empty()) want_core_.push(sender);
    use_cores();
    at(now_ + work_.messages[id].alpha_s, {Happening::enter, id});
  }

  // One message of a lane moves. Of those that wait, the sender's first step goes next.
  void enter(uint32_t id) {
    const Message& message = work_.messages[id];
    Lane& lane = lanes_[message.lane];
    if (std::exchange(lane.is_busy, true)) {
      lane.waiting.push({message.send, id});
    } else {
      move(id);
    }
  }

  void move(uint32_t id) {
    const Message& message = work_.messages[id];
    if (message.bytes > 0) return work_.sharing.add(id, message.bytes, message.uses);
    arrive(id, now_);
  }

  void arrive(uint32_t id, double time) {
    const Message& message = work_.messages[id];
    at(time, {Happening::complete, message.send});
    const Work::Node& receive = work_.nodes[message.receive];
    const bool combines = receive.step->kind == StepKind::recv_reduce;
    const double seconds = combines ? work_seconds(*receive.step) : 0;
    at(combines ? queue(&compute_free_[receive.rank], time, seconds) : time,
       {Happening::complete, message.receive});
    Lane& lane = lanes_[message.lane];
    lane.is_busy = !lane.waiting.empty();
    if (!lane.is_busy) return;
    at(time, {Happening::move, lane.waiting.top().second});
    lane.waiting.pop();
  }

  void complete(uint32_t id) {
    for (uint32_t successor : work_.nodes[id].successors) {
      if (--work_.nodes[successor].waits_for == 0) start(successor);
    }
  }

  Work work_;
  const double gamma_;
  const double element_bytes_;
  double now_ = 0;
  std::vector<std::queue<uint32_t>> posts_waiting_;  // per rank; the first may have a core
  std::queue<uint32_t> want_core_;                   // ranks
  uint32_t cores_free_;
  std::vector<double> compute_free_;              // per rank: when its queue is empty
  std::vector<uint32_t> sides_waiting_;           // per message
  using Waiting = std::pair<uint32_t, uint32_t>;  // node of the send, message
  struct Lane {
    bool is_busy = false;
    std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> waiting;
  };
  std::map<std::pair<uint32_t, uint32_t>, Lane> lanes_;
  using Timed = std::pair<double, Event>;
  std::priority_queue<Timed, std::vector<Timed>, std::greater<>> events_;
};

double relay_seconds(const topology::Topology& topology, const std::vector<Hop>& hops) {
  return hops.size() > 1 ? topology.relay_s * static_cast<double>(hops.size() - 1) : 0;
}

// Resources of a topology: what each rank and each host's rails can send and receive per second.
class Resources {
 public:
  // `sharers`: ranks that load a NIC as much as each simulated one does. `cores`: of those that
  // ranks share, how many the simulated ones have.
  Resources(const topology::Topology& topology, MaxMinSharing* sharing, double sharers,
            double cores)
      : topology_(topology),
        sharing_(sharing),
        num_hosts_(topology.num_hosts()),
        ranks_kept_together_(topology.ranks_kept_together()),
        sharers_(sharers),
        core_beta_(topology.core_s_per_byte / cores) {}

  using Uses = std::vector<MaxMinSharing::Use>;

  // Of a message that `sender` sends. `mirror`: the host on which all hops are, where all hosts do
  // the same at the same time.
  Uses of_hops(const std::vector<Hop>& hops, uint32_t sender,
               std::optional<uint32_t> mirror = std::nullopt) {
    Uses uses;
    for (const Hop& hop : hops) {
      uses.push_back({nic(Side::out, mirror.value_or(hop.from), hop.rail)});
      uses.push_back(
          {nic(Side::in, mirror.value_or(hop.to), hop.rail), mirror ? distance(hop) : hop.from});
    }
    if (core_beta_ > 0) {
      uses.push_back({resource({Kind::cores, Side::out, 0, 0}, core_beta_, 1)});
      // All messages of a sender together have one core.
      uses.push_back({resource({Kind::core, Side::out, sender, 0}, topology_.core_s_per_byte, 1)});
    }
    return uses;
  }

  Uses of_memory(uint32_t sender, uint32_t receiver) {
    const double beta = topology_.intra_host.beta_s_per_byte;
    Uses uses = {{resource({Kind::rank, Side::in, receiver, 0}, beta, 1)}};
    if (!topology_.single_copy) {
      uses.push_back({resource({Kind::rank, Side::out, sender, 0}, beta, 1)});
    }
    if (ranks_kept_together_ == 1) return uses;
    for (uint32_t core : std::set{sender / ranks_kept_together_, receiver / ranks_kept_together_}) {
      uses.push_back({resource({Kind::core, Side::out, core, 0}, topology_.core_s_per_byte, 1)});
    }
    return uses;
  }

 private:
  enum class Kind { rank, nic, cores, core };
  enum class Side { out, in };
  using Key = std::tuple<Kind, Side, uint32_t, uint8_t>;  // of which rank, core, or host and rail

  // From where such a hop comes, seen from where it goes: the same for all hosts that do the same.
  uint32_t distance(const Hop& hop) const {
    int64_t period = num_hosts_;
    if (!topology_.grid.empty()) {
      period = 1;
      for (uint32_t level = 0; level <= hop.rail; ++level) period *= topology_.grid[level];
    }
    const int64_t apart = int64_t{hop.from} - int64_t{hop.to};
    return static_cast<uint32_t>((apart % period + period) % period);
  }

  uint32_t nic(Side side, uint32_t host, uint8_t rail) {
    const double beta = rail == kAnyRail ? topology_.striped_beta() : topology_.rail_beta(rail);
    const double contention = side == Side::in ? topology_.contention : 1;
    return resource({Kind::nic, side, host, rail}, beta * sharers_, contention);
  }

  uint32_t resource(const Key& key, double beta, double contention) {
    const auto [entry, is_new] = ids_.try_emplace(key, 0);
    // A free link is one that is faster than any real one by far.
    if (is_new) entry->second = sharing_->add_resource(1 / std::max(beta, 1e-18), contention);
    return entry->second;
  }

  const topology::Topology& topology_;
  MaxMinSharing* sharing_;
  const uint32_t num_hosts_;  // counting them takes long, and so does finding out the next
  const uint32_t ranks_kept_together_;
  const double sharers_;
  const double core_beta_;  // of all cores together
  std::map<Key, uint32_t> ids_;
};

// Those that are shared, as if all ranks were on one kernel.
uint32_t num_cores(const topology::Topology& topology) {
  return std::max(1u, static_cast<uint32_t>(topology.num_ranks() / topology.crowding()));
}

}  // namespace

double simulate(const topology::Topology& topology, const std::vector<Schedule>& schedules,
                uint32_t element_bytes) {
  DMLCOMM_CHECK(schedules.size() == topology.num_ranks());
  const Matches matches = *match_messages(schedules);
  Work work;
  work.num_cores = num_cores(topology);
  Resources resources(topology, &work.sharing, 1, work.num_cores);
  std::vector<uint32_t> first_node;
  for (const Schedule& schedule : schedules) first_node.push_back(work.add_rank(schedule));
  for (uint32_t rank = 0; rank < schedules.size(); ++rank) {
    for (uint32_t i = 0; i < schedules[rank].steps.size(); ++i) {
      const Step& step = schedules[rank].steps[i];
      if (!receives(step.kind)) continue;
      const auto [sender, send] = matches[rank][i];
      const auto hops = route(topology, sender, rank, step.rail);
      const topology::Link& link = topology.link(sender, rank);
      work.add_message(
          {first_node[sender] + send,
           first_node[rank] + i,
           static_cast<double>(step.range.length) * element_bytes,
           link.overhead_s,
           link.alpha_s + relay_seconds(topology, hops),
           hops.empty() ? resources.of_memory(sender, rank) : resources.of_hops(hops, sender),
           {sender, rank}});
    }
  }
  return Simulation(std::move(work), topology.gamma_s_per_byte, element_bytes).run();
}

double simulate_in_lockstep(const topology::Topology& topology, const Schedule& schedule,
                            uint32_t rank, uint32_t element_bytes) {
  Work work;
  work.num_cores = 1;  // what others post meanwhile is in the overhead
  Resources resources(topology, &work.sharing, topology.max_ranks_per_host(),
                      1 / topology.crowding());
  work.add_rank(schedule);
  std::vector<uint32_t> sends, receipts;
  for (uint32_t i = 0; i < schedule.steps.size(); ++i) {
    if (schedule.steps[i].kind == StepKind::send) sends.push_back(i);
    if (receives(schedule.steps[i].kind)) receipts.push_back(i);
  }
  DMLCOMM_CHECK(sends.size() == receipts.size());
  const uint32_t host = topology.host_of_rank[rank];
  for (size_t j = 0; j < sends.size(); ++j) {
    const Step &send = schedule.steps[sends[j]], &receive = schedule.steps[receipts[j]];
    const uint64_t elements = std::max(send.range.length, receive.range.length);
    // The cost of this rank's message for relaying hosts is the cost of others' messages for this
    // rank's host.
    const auto hops = route(topology, rank, send.peer, send.rail);
    const topology::Link& link = topology.link(rank, send.peer);
    work.add_message(
        {sends[j],
         receipts[j],
         static_cast<double>(elements) * element_bytes,
         link.overhead_s * topology.crowding(),
         link.alpha_s + relay_seconds(topology, hops),
         hops.empty() ? resources.of_memory(rank, rank) : resources.of_hops(hops, rank, host),
         {rank, send.peer}});
  }
  return Simulation(std::move(work), topology.gamma_s_per_byte, element_bytes).run();
}

}  // namespace dmlcomm::schedule
