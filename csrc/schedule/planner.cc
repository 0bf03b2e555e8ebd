#include "schedule/planner.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <sstream>

#include "base/check.h"
#include "base/str_cat.h"
#include "schedule/joining_barrier.h"
#include "schedule/probe.h"

namespace dmlcomm::schedule {
namespace {

using topology::Topology;

// A training step repeats some tens of shapes. A schedule of 64 ranks has some hundred steps, of
// about 120 bytes each; one in blocks has many thousands.
constexpr size_t kCachedSchedules = 256;
constexpr size_t kCachedSteps = 128 * 1024;

// The three leading bits: a fifth too small at most, and 4 sizes from one power of two to the next.
uint64_t rounded(uint64_t bytes) {
  const int dropped = std::max(0, static_cast<int>(std::bit_width(bytes)) - 3);
  return bytes >> dropped << dropped;
}

// "all_reduce: direct, ring; reduce: direct, tree; ...", of the algorithms that are `legal`.
template <typename Legal>
std::string legal_names(Legal legal) {
  std::string text;
  for (OpKind kind : kOpKinds) {
    std::string names;
    for (const Algorithm& algorithm : all_algorithms()) {
      if (algorithm.kind != kind || !legal(algorithm)) continue;
      names += str_cat(names.empty() ? "" : ", ", algorithm.name);
    }
    if (names.empty()) continue;
    text += str_cat(text.empty() ? "" : "; ", to_string(kind), ": ", names);
  }
  return text;
}

// `setting`: where the user has chosen.
constexpr char kOverride[] = "DMLCOMM_ALGORITHM or Options.algorithm";
constexpr char kPlanFile[] = "the plan file";

template <typename... Text>
Status illegal(const char* setting, const Text&... what) {
  return {StatusCode::invalid_argument,
          setting,
          ": ",
          what...,
          "; legal are ",
          legal_names([](const Algorithm&) { return true; })};
}

Status does_not_apply(const char* setting, const Algorithm& algorithm, const Topology& topology) {
  return {StatusCode::invalid_argument,
          setting,
          ": ",
          to_string(algorithm.kind),
          "=",
          algorithm.name,
          " needs ",
          algorithm.needs.text,
          ", which this communicator does not have; legal are ",
          legal_names([&](const Algorithm& other) { return other.applies(topology); })};
}

Result<const Algorithm*> find_named(const char* setting, const std::string& op,
                                    const std::string& algorithm) {
  for (OpKind kind : kOpKinds) {
    if (op != to_string(kind)) continue;
    if (const Algorithm* found = find_algorithm(kind, algorithm)) return found;
    return illegal(setting, op, " has no algorithm \"", algorithm, "\"");
  }
  return illegal(setting, "there is no operation \"", op, "\"");
}

// Reads "op:first_bytes=name" into *choices.
Status add_sized_choice(const std::string& item, SizedChoices* choices) {
  const size_t colon = item.find(':'), equals = item.find('=');
  if (colon == std::string::npos || equals == std::string::npos || equals < colon) {
    return illegal(kPlanFile, "\"", item, "\" is not of the form operation:bytes=name");
  }
  SizedChoice choice;
  const char* const end = item.data() + equals;
  const auto [stop, error] = std::from_chars(item.data() + colon + 1, end, choice.first_bytes);
  if (error != std::errc() || stop != end) {
    return illegal(kPlanFile, "\"", item, "\" has no number of bytes");
  }
  const auto named = find_named(kPlanFile, item.substr(0, colon), item.substr(equals + 1));
  if (!named.ok()) return named.status();
  choice.algorithm = *named;
  const OpKind kind = choice.algorithm->kind;
  std::vector<SizedChoice>& of_kind = (*choices)[kind];
  const bool ascends = of_kind.empty() ? choice.first_bytes == 0
                                       : choice.first_bytes > of_kind.back().first_bytes &&
                                             all_ranks_know_counts(kind);
  if (!ascends) {
    return illegal(kPlanFile, "\"", item, "\": sizes ascend from 0, which is the only one of an ",
                   "operation whose size not every rank knows");
  }
  of_kind.push_back(choice);
  return {};
}

// "op=name,op=name" rather than one name for every operation that has it.
bool is_list(const std::string& text) { return text.find('=') != std::string::npos; }

}  // namespace

Result<Overrides> parse_overrides(const std::string& text) {
  Overrides overrides;
  if (!text.empty() && !is_list(text)) {
    for (const Algorithm& candidate : all_algorithms()) {
      if (candidate.name == text) overrides[candidate.kind] = &candidate;
    }
    if (!overrides.empty()) return overrides;
    return illegal(kOverride, "no operation has an algorithm \"", text, "\"");
  }
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos) {
      return illegal(kOverride, "\"", item, "\" is not of the form operation=name");
    }
    const auto named = find_named(kOverride, item.substr(0, equals), item.substr(equals + 1));
    if (!named.ok()) return named.status();
    overrides[(*named)->kind] = *named;
  }
  return overrides;
}

Result<SizedChoices> parse_sized_choices(const std::string& text) {
  SizedChoices choices;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    DMLCOMM_RETURN_IF_ERROR(add_sized_choice(item, &choices));
  }
  return choices;
}

size_t cheapest_of(const std::vector<double>& seconds) {
  size_t best = 0;
  for (size_t i = 1; i < seconds.size(); ++i) {
    if (seconds[i] < kClearlyCheaper * seconds[best]) best = i;
  }
  return best;
}

Planner::Planner(topology::Topology topology, const std::string& algorithm_override,
                 const std::string& sized_choices)
    : topology_(std::move(topology)),
      override_text_(algorithm_override),
      plan_text_(sized_choices) {
  status_ = topology::validate(topology_);
  if (status_.ok()) status_ = configure();
}

void Planner::share_memory(const topology::SharedMemory& memory) {
  if (!status_.ok()) return;
  topology_.memory = memory;
  estimates_.reset();
  status_ = configure();
}

void Planner::learn(const std::vector<uint64_t>& rail_rates_bps, double alpha_s) {
  topology_ = topology::at_rates(std::move(topology_), rail_rates_bps);
  topology_.inter_host.alpha_s = alpha_s;
  estimates_.reset();
  for (auto& [key, trials] : choices_) {
    trials.estimate(estimate(schedules_of(key.first), key.second));
  }
  cache_.clear();
  recent_.clear();
  num_cached_steps_ = 0;
}

Latency Planner::latency(const Algorithm& algorithm, const OpShape& shape) const {
  Topology fast = topology_;
  fast.inter_host.beta_s_per_byte = fast.intra_host.beta_s_per_byte = 0;
  fast.rail_betas_s_per_byte.clear();
  fast.gamma_s_per_byte = fast.core_s_per_byte = 0;
  const auto with_alpha = [&](double alpha_s) {
    fast.inter_host.alpha_s = alpha_s;
    return algorithm.estimate(estimate_terms(fast, static_cast<double>(known_bytes(shape))));
  };
  Latency latency;
  latency.rest_s = with_alpha(0);
  latency.alphas = with_alpha(1) - latency.rest_s;
  return latency;
}

Status Planner::configure() {
  for (auto& of_kind : in_memory_) of_kind.clear();
  for (const Algorithm& algorithm : all_algorithms()) {
    if (algorithm.is_schedule() || !algorithm.applies(topology_)) continue;
    in_memory_[static_cast<size_t>(algorithm.kind)].push_back(&algorithm);
  }
  auto overrides = parse_overrides(override_text_);
  if (!overrides.ok()) return overrides.status();
  DMLCOMM_RETURN_IF_ERROR(apply(*overrides));
  auto choices = parse_sized_choices(plan_text_);
  return choices.ok() ? apply(*choices) : choices.status();
}

Result<std::shared_ptr<const Schedule>> Planner::plan(const OpShape& shape) {
  if (Status status = check(shape); !status.ok()) return status;
  return schedule_of(shape, choose(shape));
}

std::shared_ptr<const Schedule> Planner::schedule_of(const OpShape& shape,
                                                     const Algorithm& algorithm,
                                                     const Carried& carried) {
  const auto is_last = [&](const Key& key) {
    return key.algorithm == &algorithm && key.carried == carried && key.shape == shape;
  };
  if (!recent_.empty() && is_last(recent_.front().first)) return recent_.front().second;
  const Key key{shape, &algorithm, carried};
  if (const auto cached = cache_.find(key); cached != cache_.end()) {
    recent_.splice(recent_.begin(), recent_, cached->second);
    return cached->second->second;
  }
  Schedule schedule = algorithm.generate(shape, topology_);
  if (carried.barrier) add_barrier(shape, topology_, &schedule);
  if (carried.probe) add_probe(shape, topology_, &schedule);
  return remember(key, std::move(schedule));
}

const Algorithm& Planner::choose(const OpShape& shape) {
  if (const Algorithm* fixed = fixed_for(shape); fixed != nullptr) return *fixed;
  return trials_of(shape)->next();
}

const Algorithm* Planner::fixed_for(const OpShape& shape) const {
  if (const Algorithm* named = named_for(shape); named != nullptr) return named;
  for (const Algorithm* algorithm : in_memory_[static_cast<size_t>(shape.kind)]) {
    if (algorithm->wins(shape, topology_.memory)) return algorithm;
  }
  return nullptr;
}

double Planner::seconds(const OpShape& shape) {
  const Algorithm* chosen = fixed_for(shape);
  if (chosen == nullptr) {
    const auto found = choices_.find({shape.kind, rounded(known_bytes(shape))});
    if (found != choices_.end()) chosen = &found->second.usual();
  }
  const std::vector<double> all = estimate(
      chosen != nullptr ? std::vector{chosen} : schedules_of(shape.kind), own_bytes(shape));
  return *std::min_element(all.begin(), all.end());
}

Trials* Planner::trials_of(const OpShape& shape) {
  if (named_for(shape) != nullptr) return nullptr;
  const uint64_t bytes = rounded(known_bytes(shape));
  const auto [it, is_new] = choices_.try_emplace({shape.kind, bytes});
  if (is_new) {
    std::vector<const Algorithm*> candidates = schedules_of(shape.kind);
    const std::vector<double> seconds = estimate(candidates, bytes);
    it->second = Trials(std::move(candidates), seconds);
  }
  return &it->second;
}

const Algorithm* Planner::named_for(const OpShape& shape) const {
  const auto of_kind = named_.find(shape.kind);
  if (of_kind == named_.end()) return nullptr;
  const std::vector<SizedChoice>& choices = of_kind->second;
  const auto next = std::upper_bound(
      choices.begin(), choices.end(), known_bytes(shape),
      [](uint64_t value, const SizedChoice& choice) { return value < choice.first_bytes; });
  const Algorithm* named = std::prev(next)->algorithm;
  const bool can = named->can_carry == nullptr || named->can_carry(shape, topology_.memory);
  return can ? named : nullptr;
}

Status Planner::check(const OpShape& shape) const {
  if (!status_.ok()) return status_;
  DMLCOMM_RETURN_IF_ERROR(validate(shape));
  if (shape.num_ranks == topology_.num_ranks()) return {};
  return {StatusCode::invalid_argument, to_string(shape.kind), ": the shape has ", shape.num_ranks,
          " ranks, the topology ",      topology_.num_ranks()};
}

Status Planner::apply(const Overrides& overrides) {
  named_.clear();
  for (const auto& [kind, algorithm] : overrides) {
    if (algorithm->applies(topology_)) {
      named_[kind] = {{0, algorithm}};
    } else if (is_list(override_text_)) {
      return does_not_apply(kOverride, *algorithm, topology_);
    }
  }
  if (!named_.empty() || overrides.empty()) return {};
  return does_not_apply(kOverride, *overrides.begin()->second, topology_);
}

Status Planner::apply(const SizedChoices& choices) {
  for (const auto& [kind, of_kind] : choices) {
    for (const SizedChoice& choice : of_kind) {
      if (choice.algorithm->applies(topology_)) continue;
      return does_not_apply(kPlanFile, *choice.algorithm, topology_);
    }
    named_.emplace(kind, of_kind);
  }
  return {};
}

std::vector<const Algorithm*> Planner::schedules_of(OpKind kind) const {
  std::vector<const Algorithm*> found;
  for (const Algorithm& algorithm : all_algorithms()) {
    if (algorithm.kind != kind || !algorithm.is_schedule() || !algorithm.applies(topology_))
      continue;
    found.push_back(&algorithm);
  }
  return found;
}

std::vector<double> Planner::estimate(const std::vector<const Algorithm*>& candidates,
                                      uint64_t bytes) {
  if (estimates_ == nullptr) estimates_ = std::make_unique<Estimates>(topology_);
  std::vector<double> seconds;
  for (const Algorithm* algorithm : candidates) {
    seconds.push_back(estimates_->seconds(algorithm->estimate, static_cast<double>(bytes)));
  }
  return seconds;
}

std::shared_ptr<const Schedule> Planner::remember(const Key& key, Schedule schedule) {
  num_cached_steps_ += schedule.steps.size();
  recent_.emplace_front(key, std::make_shared<const Schedule>(std::move(schedule)));
  cache_[key] = recent_.begin();
  while (recent_.size() > 1 &&
         (recent_.size() > kCachedSchedules || num_cached_steps_ > kCachedSteps)) {
    num_cached_steps_ -= recent_.back().second->steps.size();
    cache_.erase(recent_.back().first);
    recent_.pop_back();
  }
  return recent_.front().second;
}

size_t Planner::KeyHash::operator()(const Key& key) const {
  const OpShape& shape = key.shape;
  uint64_t hash = 0;
  // The golden ratio's bits: spreads small differences over the whole word.
  const auto mix = [&](uint64_t value) {
    hash = (std::rotl(hash, 23) ^ value) * 0x9e3779b97f4a7c15u;
  };
  mix(static_cast<uint64_t>(shape.kind));
  mix(number_of(*key.algorithm));
  mix((key.carried.barrier ? 1 : 0) + (key.carried.probe ? 2 : 0));
  mix(shape.rank);
  mix(shape.num_ranks);
  mix(shape.root);
  mix(shape.element_bytes);
  for (uint64_t count : shape.counts) mix(count);
  for (uint64_t count : shape.recv_counts) mix(count);
  return hash ^ (hash >> 32);
}

}  // namespace dmlcomm::schedule
