#include "schedule/verify/verifier_parts.h"

#include <algorithm>

#include "base/str_cat.h"

namespace dmlcomm::schedule::verifier {
namespace {

// Finaliser of splitmix64: equal only for equal inputs, and without structure
// that a tree could share.
uint64_t scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

bool starts_with_data(const OpShape& shape) {
  return shape.kind == OpKind::all_reduce ||
         (shape.kind == OpKind::broadcast && shape.rank == shape.root);
}

// Elements a rank brings along: its input, or its output in operations that work in place.
uint64_t elements_at_start(const OpShape& shape) {
  return starts_with_data(shape) ? output_elements(shape) : input_elements(shape);
}

std::vector<uint64_t> all_elements_at_start(const std::vector<OpShape>& shapes) {
  std::vector<uint64_t> elements;
  for (const OpShape& shape : shapes) elements.push_back(elements_at_start(shape));
  return elements;
}

}  // namespace

Expressions::Expressions(const std::vector<uint64_t>& elements_of_rank) : nodes_(1) {
  for (uint64_t rank = 0; rank < elements_of_rank.size(); ++rank) {
    first_leaf_.push_back(nodes_.size());
    for (uint64_t element = 0; element < elements_of_rank[rank]; ++element) {
      add(Kind::leaf, rank, element, scramble(scramble(rank + 1) + element));
    }
  }
}

ExpressionId Expressions::combine(ExpressionId a, ExpressionId b) {
  return add(Kind::combination, a, b, scramble(scramble(nodes_[a].hash) + nodes_[b].hash));
}

ExpressionId Expressions::finalize(ExpressionId a) {
  return add(Kind::final, a, 0, scramble(nodes_[a].hash ^ 0x5555555555555555u));
}

ExpressionId Expressions::add(Kind kind, uint64_t a, uint64_t b, uint64_t hash) {
  nodes_.push_back({kind, hash, a, b});
  return static_cast<ExpressionId>(nodes_.size() - 1);
}

std::string Expressions::sum_fault(ExpressionId id, uint64_t element, uint32_t num_ranks) const {
  const std::string expected =
      str_cat("element ", element, " of each of ", num_ranks, " ranks exactly once");
  if (num_ranks > 1 && !is_final(id)) return expected + ", and final";
  std::vector<ExpressionId> open = {is_final(id) ? static_cast<ExpressionId>(nodes_[id].a) : id};
  std::vector<bool> seen(num_ranks, false);
  uint32_t num_seen = 0;
  while (!open.empty()) {
    const Node& node = nodes_[open.back()];
    open.pop_back();
    if (node.kind == Kind::combination) {
      open.push_back(static_cast<ExpressionId>(node.a));
      open.push_back(static_cast<ExpressionId>(node.b));
      continue;
    }
    if (node.kind != Kind::leaf || node.b != element || seen[node.a]) return expected;
    seen[node.a] = true;
    ++num_seen;
  }
  return num_seen == num_ranks ? "" : expected;
}

std::string Expressions::text(ExpressionId id) const {
  const Node& node = nodes_[id];
  const auto operand = [&](uint64_t a) { return text(static_cast<ExpressionId>(a)); };
  switch (node.kind) {
    case Kind::nothing: return "nothing";
    case Kind::leaf: return str_cat(node.a, ":", node.b);
    case Kind::combination: return str_cat("(", operand(node.a), " + ", operand(node.b), ")");
    case Kind::final: return str_cat("final(", operand(node.a), ")");
  }
  return "";
}

Execution::Execution(const std::vector<OpShape>& shapes, const std::vector<Schedule>& schedules,
                     const Matches& matches, Aliasing aliasing)
    : shapes_(shapes),
      schedules_(schedules),
      matches_(matches),
      expressions_(all_elements_at_start(shapes)) {
  for (uint32_t rank = 0; rank < shapes.size(); ++rank) {
    memory_.emplace_back(shapes[rank], schedules[rank], aliasing);
    units_.push_back(units_of(schedules[rank]));
    cells_.emplace_back(memory_[rank].num_cells(), kNothing);
    const BufferId filled = starts_with_data(shapes[rank]) ? BufferId::output : BufferId::input;
    for (uint64_t i = 0; i < elements_at_start(shapes[rank]); ++i) {
      cells_[rank][memory_[rank].cell(filled, i)] = expressions_.leaf(rank, i);
    }
    first_event_.push_back(static_cast<uint32_t>(step_of_event_.size()));
    for (uint32_t i = 0; i < schedules[rank].steps.size(); ++i) {
      step_of_event_.insert(step_of_event_.end(), 2, {rank, i});
    }
    known_.emplace_back(schedules[rank].steps.size());
  }
  successors_.resize(step_of_event_.size());
}

// The events of a step inside a unit are those of the unit's first step.
uint32_t Execution::start_event(StepRef ref) const {
  return first_event_[ref.first] + 2 * units_[ref.first][ref.second];
}

void Execution::add_edges(uint32_t rank) {
  const Schedule& schedule = schedules_[rank];
  const auto predecessors = predecessors_onto_range(schedule);
  for (uint32_t id = 0; id < schedule.steps.size(); ++id) {
    const StepRef step{rank, id}, predecessor{rank, predecessors[id]};
    for (uint32_t dep : schedule.steps[id].deps) {
      add_edge(completion_event({rank, dep}), start_event(step));
    }
    if (units_[rank][predecessor.second] != units_[rank][id]) {
      add_edge(completion_event(predecessor), start_event(step));
    }
    if (units_[rank][id] == id) add_edge(start_event(step), completion_event(step));
    if (!receives(schedule.steps[id].kind)) continue;
    add_edge(start_event(matches_[rank][id]), completion_event(step));
    add_edge(completion_event(step), completion_event(matches_[rank][id]));
  }
}

Status Execution::run() {
  std::vector<uint32_t> waiting_for(step_of_event_.size(), 0);
  for (uint32_t rank = 0; rank < schedules_.size(); ++rank) add_edges(rank);
  for (const auto& successors : successors_) {
    for (uint32_t event : successors) ++waiting_for[event];
  }
  std::vector<uint32_t> ready;
  for (uint32_t event = 0; event < waiting_for.size(); ++event) {
    if (waiting_for[event] == 0) ready.push_back(event);
  }
  while (!ready.empty()) {
    const uint32_t event = ready.back();
    ready.pop_back();
    const StepRef step = step_of_event_[event];
    const bool completes = event == completion_event(step);
    if (completes) DMLCOMM_RETURN_IF_ERROR(complete_unit(step));
    for (uint32_t next : successors_[event]) {
      if (--waiting_for[next] == 0) ready.push_back(next);
    }
  }
  return deadlock(waiting_for);
}

// Ok if no event still waits. Else follows events that wait backwards until
// one comes again: a cycle.
Status Execution::deadlock(const std::vector<uint32_t>& waiting_for) const {
  const auto stuck = std::find_if(waiting_for.begin(), waiting_for.end(),
                                  [](uint32_t count) { return count > 0; });
  if (stuck == waiting_for.end()) return {};
  std::vector<uint32_t> cause(waiting_for.size(), 0);
  for (uint32_t event = 0; event < waiting_for.size(); ++event) {
    if (waiting_for[event] == 0) continue;
    for (uint32_t next : successors_[event]) cause[next] = event;
  }
  auto event = static_cast<uint32_t>(stuck - waiting_for.begin());
  std::vector<bool> passed(waiting_for.size(), false);
  for (; !passed[event]; event = cause[event]) passed[event] = true;
  std::string cycle;
  const uint32_t start = event;
  do {
    const auto [rank, id] = step_of_event_[event];
    cycle += str_cat(" rank ", rank, " step ", id, " (", to_string(schedules_[rank].steps[id]), ")",
                     event == start_event({rank, id}) ? " starts after" : " completes after");
    event = cause[event];
  } while (event != start);
  const auto [rank, id] = step_of_event_[start];
  return step_error(schedules_, rank, id, str_cat("deadlock:", cycle, " itself"));
}

Status Execution::complete_unit(StepRef first) {
  const auto [rank, id] = first;
  for (uint32_t i = id; i < units_[rank].size(); ++i) {
    if (units_[rank][i] != id) continue;
    DMLCOMM_RETURN_IF_ERROR(apply({rank, i}));
    spread_knowledge({rank, i});
  }
  return {};
}

// Sends have no effect of their own: their receive reads the sender's memory, which no step may
// have overwritten, since the send is not complete before.
Status Execution::apply(StepRef ref) {
  const auto [rank, id] = ref;
  const Step& step = schedules_[rank].steps[id];
  if (step.kind == StepKind::send) return {};
  const auto [source_rank, source_id] = matches_[rank][id];
  const Range& source =
      step.kind == StepKind::copy ? step.source : schedules_[source_rank].steps[source_id].range;
  // Bytes that only take time may be any, if they go to scratch memory.
  const bool is_filling = step.kind == StepKind::recv && source.buffer == BufferId::scratch &&
                          step.range.buffer == BufferId::scratch;
  std::vector<ExpressionId> values;
  const uint64_t first = source.length == 0 ? 0 : memory_[source_rank].cell(source);
  for (uint64_t i = 0; i < source.length; ++i) {
    values.push_back(cells_[source_rank][first + i]);
    if (values.back() != kNothing || is_filling) continue;
    return step_error(schedules_, source_rank, source_id,
                      str_cat("reads element ", source.offset + i, ", where nothing is yet"));
  }
  return move(ref, values);
}

Status Execution::move(StepRef ref, const std::vector<ExpressionId>& values) {
  const auto [rank, id] = ref;
  const Step& step = schedules_[rank].steps[id];
  if (values.empty()) return {};
  auto& cells = cells_[rank];
  const uint64_t target = memory_[rank].cell(step.range);
  if (step.kind != StepKind::recv_reduce) {
    std::copy(values.begin(), values.end(), cells.begin() + static_cast<ptrdiff_t>(target));
    return {};
  }
  const uint64_t source = memory_[rank].cell(step.source);
  for (uint64_t i = 0; i < values.size(); ++i) {
    const ExpressionId local = cells[source + i];
    if (local == kNothing) return step_error(schedules_, rank, id, "combines with nothing");
    if (values[i] == kNothing) return step_error(schedules_, rank, id, "combines nothing");
    if (expressions_.is_final(local) || expressions_.is_final(values[i])) {
      return step_error(schedules_, rank, id, "combines a value that is final already");
    }
    const ExpressionId sum = step.received_first ? expressions_.combine(values[i], local)
                                                 : expressions_.combine(local, values[i]);
    cells[target + i] = step.finalizes ? expressions_.finalize(sum) : sum;
  }
  return {};
}

// A rank has entered when any of its steps starts. A message tells what its
// sender knew at its start.
void Execution::spread_knowledge(StepRef ref) {
  const auto [rank, id] = ref;
  if (shapes_[0].kind != OpKind::barrier) return;
  std::vector<bool>& known = known_[rank][id];
  known.assign(shapes_.size(), false);
  const auto learn = [&](StepRef from) {
    known[from.first] = true;
    for (uint32_t dep : schedules_[from.first].steps[from.second].deps) {
      const auto& theirs = known_[from.first][dep];
      for (size_t p = 0; p < theirs.size(); ++p) known[p] = known[p] || theirs[p];
    }
  };
  learn(ref);
  if (schedules_[rank].steps[id].kind == StepKind::recv) learn(matches_[rank][id]);
}

Status Execution::check_barrier() const {
  for (uint32_t rank = 0; rank < shapes_.size(); ++rank) {
    std::vector<bool> known(shapes_.size(), false);
    known[rank] = true;
    for (const auto& at_step : known_[rank]) {
      for (size_t p = 0; p < at_step.size(); ++p) known[p] = known[p] || at_step[p];
    }
    for (uint32_t peer = 0; peer < known.size(); ++peer) {
      if (known[peer]) continue;
      return {StatusCode::invalid_argument,
              name_of(schedules_[rank]),
              ": rank ",
              rank,
              " may leave before rank ",
              peer,
              " has entered"};
    }
  }
  return {};
}

}  // namespace dmlcomm::schedule::verifier
