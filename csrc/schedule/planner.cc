#include "schedule/planner.h"

#include <bit>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/str_cat.h"

namespace dmlcomm::schedule {
namespace {

// A training step repeats some tens of shapes; a schedule of 64 ranks has about 30 KiB.
constexpr size_t kCachedSchedules = 256;

constexpr OpKind kKinds[] = {
#define DMLCOMM_OP_KIND_ITEM(name) OpKind::name,
    DMLCOMM_OP_KINDS(DMLCOMM_OP_KIND_ITEM)
#undef DMLCOMM_OP_KIND_ITEM
};

bool all_ranks_know_counts(OpKind kind) {
  switch (kind) {
    case OpKind::all_reduce:
    case OpKind::reduce:
    case OpKind::broadcast:
    case OpKind::all_gather:
    case OpKind::reduce_scatter: return true;
    default: return false;
  }
}

// An algorithm displaces an earlier one of the table only if it is this much cheaper. So rounding
// cannot decide between two that cost the same, and ranks built by different compilers agree.
constexpr double kClearlyCheaper = 0.99;

// 0 for no bytes, else 1 + floor(log2(bytes)): bytes in [2^(b-1), 2^b).
int size_bucket(const OpShape& shape) {
  if (!all_ranks_know_counts(shape.kind)) return 0;
  const uint64_t elements = std::accumulate(shape.counts.begin(), shape.counts.end(), uint64_t{0});
  return static_cast<int>(std::bit_width(elements * shape.element_bytes));
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += str_cat(text.empty() ? "" : ", ", word);
  return text;
}

bool anywhere(const Algorithm&) { return true; }

// "all_reduce: direct, ring; reduce: direct, tree; ...", of the algorithms that are `legal`.
template <typename Legal>
std::string legal_names(Legal legal) {
  std::string text;
  for (OpKind kind : kKinds) {
    std::vector<std::string> names;
    for (const Algorithm& algorithm : all_algorithms()) {
      if (algorithm.kind == kind && legal(algorithm)) names.push_back(algorithm.name);
    }
    if (names.empty()) continue;
    text += str_cat(text.empty() ? "" : "; ", to_string(kind), ": ", joined(names));
  }
  return text;
}

template <typename Legal>
Status bad_override(const std::string& what, Legal legal) {
  return {StatusCode::invalid_argument,
          str_cat("DMLCOMM_ALGORITHM: ", what, "; legal are ", legal_names(legal))};
}

Status override_one(const std::string& kind_name, const std::string& algorithm,
                    Overrides* overrides) {
  for (OpKind kind : kKinds) {
    if (kind_name != to_string(kind)) continue;
    const Algorithm* chosen = find_algorithm(kind, algorithm);
    if (chosen == nullptr) {
      return bad_override(str_cat(kind_name, " has no algorithm \"", algorithm, "\""), anywhere);
    }
    (*overrides)[kind] = chosen;
    return {};
  }
  return bad_override(str_cat("there is no operation \"", kind_name, "\""), anywhere);
}

Result<Overrides> override_all(const std::string& algorithm) {
  Overrides overrides;
  for (const Algorithm& candidate : all_algorithms()) {
    if (candidate.name == algorithm) overrides[candidate.kind] = &candidate;
  }
  if (!overrides.empty()) return overrides;
  return bad_override(str_cat("no operation has an algorithm \"", algorithm, "\""), anywhere);
}

std::string does_not_apply(const Algorithm& algorithm) {
  return str_cat(to_string(algorithm.kind), "=", algorithm.name, " needs ", algorithm.needs,
                 ", which this communicator does not have");
}

// "op=name,op=name" rather than one name for every operation that has it.
bool is_list(const std::string& text) { return text.find('=') != std::string::npos; }

}  // namespace

Result<Overrides> parse_overrides(const std::string& text) {
  if (!text.empty() && !is_list(text)) return override_all(text);
  Overrides overrides;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos) {
      return bad_override(str_cat("\"", item, "\" is not of the form operation=name"), anywhere);
    }
    DMLCOMM_RETURN_IF_ERROR(
        override_one(item.substr(0, equals), item.substr(equals + 1), &overrides));
  }
  return overrides;
}

Planner::Planner(topology::Topology topology, const std::string& algorithm_override)
    : topology_(std::move(topology)), status_(topology::validate(topology_)) {
  if (!status_.ok()) return;
  auto overrides = parse_overrides(algorithm_override);
  status_ = overrides.ok() ? apply(*overrides, is_list(algorithm_override)) : overrides.status();
}

Result<std::shared_ptr<const Schedule>> Planner::plan(const OpShape& shape) {
  if (const auto cached = cache_.find(shape); cached != cache_.end()) {
    recent_.splice(recent_.begin(), recent_, cached->second);
    return cached->second->second;
  }
  if (Status status = check(shape); !status.ok()) return status;
  return remember(shape, choose(shape).generate(shape, topology_));
}

const Algorithm& Planner::choose(const OpShape& shape) {
  if (const auto chosen = overrides_.find(shape.kind); chosen != overrides_.end()) {
    return *chosen->second;
  }
  const int bucket = size_bucket(shape);
  const Algorithm*& choice = choices_[{shape.kind, bucket}];
  if (choice == nullptr) {
    choice =
        cheapest(shape.kind, bucket == 0 ? 0 : static_cast<double>(uint64_t{1} << (bucket - 1)));
  }
  return *choice;
}

Status Planner::check(const OpShape& shape) const {
  if (!status_.ok()) return status_;
  DMLCOMM_RETURN_IF_ERROR(validate(shape));
  if (shape.num_ranks == topology_.num_ranks()) return {};
  return {StatusCode::invalid_argument,
          str_cat(to_string(shape.kind), ": the shape has ", shape.num_ranks,
                  " ranks, the topology ", topology_.num_ranks())};
}

Status Planner::apply(const Overrides& overrides, bool is_list) {
  const auto applies = [&](const Algorithm& algorithm) { return algorithm.applies(topology_); };
  for (const auto& [kind, algorithm] : overrides) {
    if (applies(*algorithm)) {
      overrides_[kind] = algorithm;
    } else if (is_list) {
      return bad_override(does_not_apply(*algorithm), applies);
    }
  }
  if (!overrides_.empty() || overrides.empty()) return {};
  return bad_override(does_not_apply(*overrides.begin()->second), applies);
}

const Algorithm* Planner::cheapest(OpKind kind, double bytes) const {
  const CostTerms terms = cost_terms(topology_, bytes);
  const Algorithm* best = nullptr;
  double best_seconds = 0;
  for (const Algorithm& candidate : all_algorithms()) {
    if (candidate.kind != kind || !candidate.applies(topology_)) continue;
    const double seconds = candidate.seconds(terms);
    if (best != nullptr && seconds >= kClearlyCheaper * best_seconds) continue;
    best = &candidate;
    best_seconds = seconds;
  }
  DMLCOMM_CHECK(best != nullptr);
  return best;
}

std::shared_ptr<const Schedule> Planner::remember(const OpShape& shape, Schedule schedule) {
  if (recent_.size() == kCachedSchedules) {
    cache_.erase(recent_.back().first);
    recent_.pop_back();
  }
  recent_.emplace_front(shape, std::make_shared<const Schedule>(std::move(schedule)));
  cache_[shape] = recent_.begin();
  return recent_.front().second;
}

size_t Planner::ShapeHash::operator()(const OpShape& shape) const {
  uint64_t hash = 0;
  // The golden ratio's bits: spreads small differences over the whole word.
  const auto mix = [&](uint64_t value) {
    hash = (std::rotl(hash, 23) ^ value) * 0x9e3779b97f4a7c15u;
  };
  mix(static_cast<uint64_t>(shape.kind));
  mix(shape.rank);
  mix(shape.num_ranks);
  mix(shape.root);
  mix(shape.element_bytes);
  for (uint64_t count : shape.counts) mix(count);
  for (uint64_t count : shape.recv_counts) mix(count);
  return hash ^ (hash >> 32);
}

}  // namespace dmlcomm::schedule
