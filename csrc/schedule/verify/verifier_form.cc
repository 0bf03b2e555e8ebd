#include "schedule/verify/verifier_parts.h"

#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "base/str_cat.h"
#include "schedule/message_matching.h"
#include "schedule/pieces.h"

namespace dmlcomm::schedule::verifier {
namespace {

bool has_source(const Step& step) {
  return step.kind == StepKind::copy || step.kind == StepKind::recv_reduce;
}

// The lengths of the pieces of `buffer`, or null where it is one piece.
const std::vector<uint64_t>* piece_counts(const OpShape& shape, BufferId buffer) {
  const bool is_input = buffer == BufferId::input, is_output = buffer == BufferId::output;
  switch (shape.kind) {
    case OpKind::all_gather:
    case OpKind::gather: return is_output ? &shape.counts : nullptr;
    case OpKind::scatter:
    case OpKind::reduce_scatter: return is_input ? &shape.counts : nullptr;
    case OpKind::all_to_all:
      if (is_input) return &shape.counts;
      return is_output ? &shape.recv_counts : nullptr;
    default: return nullptr;
  }
}

// Checks one rank's steps, each by itself.
class FormCheck {
 public:
  FormCheck(const OpShape& shape, const Schedule& schedule)
      : shape_(shape), schedule_(schedule), memory_(shape, schedule, Aliasing::separate) {
    for (BufferId buffer : {BufferId::input, BufferId::output, BufferId::scratch}) {
      std::vector<uint64_t>& borders = borders_.emplace_back();
      const std::vector<uint64_t>* counts = piece_counts(shape, buffer);
      if (counts != nullptr)
        std::partial_sum(counts->begin(), counts->end(), std::back_inserter(borders));
    }
  }

  // Empty, or what is wrong with step `id`.
  std::string fault(uint32_t id, const std::vector<uint32_t>& units) const {
    const Step& step = schedule_.steps[id];
    if (schedule_.stream_of[id] >= schedule_.num_streams) return "its stream does not exist";
    if (std::string text = peer_fault(step); !text.empty()) return text;
    if (std::string text = range_fault(step.range); !text.empty()) return text;
    if (has_source(step)) {
      if (std::string text = source_fault(id, units); !text.empty()) return text;
    }
    if (step.kind != StepKind::send && step.range.buffer == BufferId::input) {
      return "writes to the input";
    }
    if (step.finalizes && step.kind != StepKind::recv_reduce) {
      return "finalizes, but only a recv_reduce can";
    }
    return deps_fault(id, units);
  }

 private:
  std::string peer_fault(const Step& step) const {
    if (step.kind == StepKind::copy) {
      return step.peer == shape_.rank ? "" : "a copy's peer must be the rank itself";
    }
    if (step.peer < shape_.num_ranks && step.peer != shape_.rank) return "";
    return str_cat("peer ", step.peer, " is not another rank of ", shape_.num_ranks);
  }

  std::string range_fault(const Range& range) const {
    const uint64_t elements = memory_.buffer_elements(range.buffer);
    if (range.offset > elements || range.length > elements - range.offset) {
      return str_cat("outside its buffer of ", elements, " elements");
    }
    for (uint64_t border : borders_[static_cast<size_t>(range.buffer)]) {
      if (range.offset < border && border < range.offset + range.length) {
        return str_cat("crosses the border between two pieces at ", border);
      }
    }
    return "";
  }

  std::string source_fault(uint32_t id, const std::vector<uint32_t>& units) const {
    const Step& step = schedule_.steps[id];
    if (step.range.length == 0) return "has no length, and only messages may have none";
    if (step.source.length != step.range.length) return "source and range differ in length";
    if (std::string text = range_fault(step.source); !text.empty()) return "source: " + text;
    if (step.kind != StepKind::recv_reduce) return "";
    if (!reduces(shape_.kind)) return "combines in an operation that only moves data";
    const bool is_alone = units[id] == id && (id + 1 == units.size() || units[id + 1] != id);
    if (step.received_first && !is_alone) return "exchanges the operands inside a run";
    if (units[id] != id && step.source != step.range) {
      return "only the first step of a run may name another source";
    }
    return "";
  }

  std::string deps_fault(uint32_t id, const std::vector<uint32_t>& units) const {
    const auto& deps = schedule_.steps[id].deps;
    for (size_t i = 0; i < deps.size(); ++i) {
      if (deps[i] >= id) return str_cat("depends on step ", deps[i], ", which is not earlier");
      if (i > 0 && deps[i - 1] >= deps[i]) return "its dependencies do not ascend";
      if (units[deps[i]] == units[id]) return "depends on a step of its own run";
    }
    return "";
  }

  const OpShape& shape_;
  const Schedule& schedule_;
  const MemoryMap memory_;
  std::vector<std::vector<uint64_t>> borders_;
};

// Reaches: which steps of one rank are complete before a step starts. Bit j of row i: step j is.
class Order {
 public:
  explicit Order(const Schedule& schedule)
      : words_((schedule.steps.size() + 63) / 64), rows_(schedule.steps.size() * words_, 0) {
    const auto predecessors = predecessors_onto_range(schedule);
    for (uint32_t i = 0; i < schedule.steps.size(); ++i) {
      for (uint32_t dep : schedule.steps[i].deps) add(i, dep);
      if (predecessors[i] != i) add(i, predecessors[i]);
    }
  }

  bool before(uint32_t earlier, uint32_t later) const {
    return rows_[later * words_ + earlier / 64] >> (earlier % 64) & 1;
  }

 private:
  void add(uint32_t later, uint32_t earlier) {
    for (size_t w = 0; w < words_; ++w) rows_[later * words_ + w] |= rows_[earlier * words_ + w];
    rows_[later * words_ + earlier / 64] |= uint64_t{1} << (earlier % 64);
  }

  size_t words_;
  std::vector<uint64_t> rows_;
};

struct Touch {
  uint32_t step;
  uint64_t begin, end;  // cells
  bool writes;
};

std::vector<Touch> touches_of(const Schedule& schedule, const MemoryMap& memory) {
  std::vector<Touch> touches;
  for (uint32_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (step.range.length == 0) continue;
    const uint64_t begin = memory.cell(step.range);
    const bool writes = step.kind != StepKind::send;
    const bool to_itself = has_source(step) && memory.cell(step.source) == begin;
    if (step.kind == StepKind::copy && to_itself) continue;
    touches.push_back({i, begin, begin + step.range.length, writes});
    if (!has_source(step) || to_itself) continue;
    const uint64_t source = memory.cell(step.source);
    touches.push_back({i, source, source + step.source.length, false});
  }
  return touches;
}

// The first pair of steps that race; a pair of one step where its source and
// its range overlap in part.
std::optional<std::pair<uint32_t, uint32_t>> find_race(const Schedule& schedule,
                                                       const MemoryMap& memory) {
  const Order order(schedule);
  const auto touches = touches_of(schedule, memory);
  for (size_t b = 0; b < touches.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      const Touch &first = touches[a], &second = touches[b];
      if (first.end <= second.begin || second.end <= first.begin) continue;
      if (!first.writes && !second.writes) continue;
      if (first.step == second.step || !order.before(first.step, second.step)) {
        return std::pair{first.step, second.step};
      }
    }
  }
  return std::nullopt;
}

}  // namespace

MemoryMap::MemoryMap(const OpShape& shape, const Schedule& schedule, Aliasing aliasing)
    : num_input_(input_elements(shape)),
      num_output_(output_elements(shape)),
      num_scratch_(schedule.scratch_elements),
      output_(num_input_),
      scratch_(num_input_ + num_output_) {
  if (aliasing == Aliasing::separate) return;
  const bool is_root = shape.rank == shape.root;
  if (shape.kind == OpKind::reduce && is_root) alias_length_ = num_output_;
  if (shape.kind == OpKind::all_gather || (shape.kind == OpKind::gather && is_root)) {
    alias_begin_ = Pieces(shape.counts).begin(shape.rank);
    alias_length_ = num_input_;
  }
  if (shape.kind == OpKind::scatter && is_root) {
    aliased_buffer_ = BufferId::input;
    alias_begin_ = Pieces(shape.counts).begin(shape.rank);
    alias_length_ = num_output_;
  }
}

uint64_t MemoryMap::buffer_elements(BufferId buffer) const {
  if (buffer == BufferId::input) return num_input_;
  return buffer == BufferId::output ? num_output_ : num_scratch_;
}

uint64_t MemoryMap::cell(BufferId buffer, uint64_t offset) const {
  if (buffer == BufferId::scratch) return scratch_ + offset;
  const bool aliased = buffer == aliased_buffer_ && offset - alias_begin_ < alias_length_;
  if (buffer == BufferId::input) return aliased ? output_ + offset - alias_begin_ : offset;
  return aliased ? offset - alias_begin_ : output_ + offset;
}

std::vector<uint32_t> units_of(const Schedule& schedule) {
  std::vector<uint32_t> units;
  for (uint32_t i = 0; i < schedule.steps.size(); ++i) {
    units.push_back(i);
    if (i == 0 || schedule.stream_of[i - 1] != schedule.stream_of[i]) continue;
    if (are_in_a_run(schedule.steps[i - 1], schedule.steps[i])) units[i] = units[i - 1];
  }
  return units;
}

std::vector<uint32_t> predecessors_onto_range(const Schedule& schedule) {
  std::map<std::tuple<uint16_t, BufferId, uint64_t, uint64_t>, uint32_t> last;
  std::vector<uint32_t> predecessors;
  for (uint32_t i = 0; i < schedule.steps.size(); ++i) {
    predecessors.push_back(i);
    const Range& range = schedule.steps[i].range;
    if (schedule.steps[i].kind != StepKind::recv_reduce) continue;
    const auto [entry, is_new] =
        last.try_emplace({schedule.stream_of[i], range.buffer, range.offset, range.length}, i);
    predecessors[i] = std::exchange(entry->second, i);
  }
  return predecessors;
}

Status check_form(const std::vector<OpShape>& shapes, const std::vector<Schedule>& schedules) {
  for (uint32_t rank = 0; rank < schedules.size(); ++rank) {
    const Schedule& schedule = schedules[rank];
    if (schedule.stream_of.size() != schedule.steps.size()) {
      return {StatusCode::invalid_argument,
              name_of(schedule),
              ": rank ",
              rank,
              " has ",
              schedule.steps.size(),
              " steps and ",
              schedule.stream_of.size(),
              " entries in stream_of"};
    }
    const FormCheck check(shapes[rank], schedule);
    const auto units = units_of(schedule);
    for (uint32_t id = 0; id < schedule.steps.size(); ++id) {
      const std::string fault = check.fault(id, units);
      if (!fault.empty()) return step_error(schedules, rank, id, fault);
    }
  }
  return {};
}

Status check_races(const std::vector<OpShape>& shapes, const std::vector<Schedule>& schedules,
                   Aliasing aliasing) {
  for (uint32_t rank = 0; rank < schedules.size(); ++rank) {
    const Schedule& schedule = schedules[rank];
    const auto race = find_race(schedule, MemoryMap(shapes[rank], schedule, aliasing));
    if (!race) continue;
    const auto [first, second] = *race;
    if (first == second) {
      return step_error(schedules, rank, second, "its source and its range overlap in part");
    }
    return step_error(
        schedules, rank, second,
        str_cat("touches the same memory as step ", first, " (", to_string(schedule.steps[first]),
                "), and no dependency orders them"));
  }
  return {};
}

}  // namespace dmlcomm::schedule::verifier
