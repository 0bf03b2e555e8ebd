#include "torch/process_group.h"

#include <Python.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <unordered_set>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/str_cat.h"
#include "torch/block_allocator.h"
#include "torch/errors.h"
#include "torch/store_rendezvous.h"

namespace dmlcomm::adaptor {
namespace {

// torch.distributed's SHRINK_ABORT.
constexpr int kShrinkAbort = 1;
// What dmlcomm.backends.creator calls the default group.
constexpr char kDefaultGroup[] = "default_pg";

// The living groups of this process, for close_all().
struct Registry {
  std::mutex mutex;
  std::unordered_set<ProcessGroupDmlcomm*> groups;  // guarded by mutex
};

Registry& registry() {
  static auto* instance = new Registry;  // groups may be destroyed after static destructors
  return *instance;
}

c10::intrusive_ptr<c10d::Backend::Options> backend_options_of(
    const engine::CommunicatorOptions& options) {
  auto result = c10::make_intrusive<c10d::Backend::Options>("dmlcomm", options.timeout);
  result->group_name = options.name;
  result->global_ranks_in_group.assign(options.global_ranks.begin(), options.global_ranks.end());
  return result;
}

void close(const Communicator& communicator, const std::shared_ptr<ServerAllReduce>& servers) {
  if (servers) servers->close({StatusCode::aborted, "the group was closed"});
  communicator->close();
}

// Torch may destroy a group with the GIL held, and closing waits for threads that may need it.
class GilReleasedIfHeld {
 public:
  GilReleasedIfHeld() {
    if (Py_IsInitialized() && PyGILState_Check()) release_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> release_;
};

}  // namespace

c10::intrusive_ptr<ProcessGroupDmlcomm> ProcessGroupDmlcomm::create(
    c10::intrusive_ptr<c10d::Store> store, engine::CommunicatorOptions options,
    std::shared_ptr<ServerAllReduce> servers) {
  if (options.num_ranks > 1 && process_config().ok()) share_large_tensors(*process_config());
  auto rendezvous = std::make_shared<StoreRendezvous>(store);
  auto communicator = engine::Communicator::create(options, rendezvous);
  if (rendezvous->interrupt()) std::rethrow_exception(rendezvous->interrupt());
  throw_if_error(communicator.status());
  return c10::make_intrusive<ProcessGroupDmlcomm>(std::move(*communicator), std::move(options),
                                                  std::move(servers), std::move(store));
}

ProcessGroupDmlcomm::ProcessGroupDmlcomm(Communicator communicator,
                                         engine::CommunicatorOptions options,
                                         std::shared_ptr<ServerAllReduce> servers,
                                         c10::intrusive_ptr<c10d::Store> store)
    : Backend(options.rank, options.num_ranks),
      communicator_(std::move(communicator)),
      communicator_options_(std::move(options)),
      backend_options_(backend_options_of(communicator_options_)),
      servers_(std::move(servers)),
      store_(std::move(store)),
      flight_log_(*this, communicator_options_.global_ranks),
      timeout_(communicator_options_.timeout),
      owner_(getpid()) {
  init();
  std::lock_guard lock(registry().mutex);
  registry().groups.insert(this);
}

ProcessGroupDmlcomm::~ProcessGroupDmlcomm() {
  GilReleasedIfHeld released;
  if (owner_ != getpid()) {
    // Leaked: their destructors would join threads that are not here.
    new Communicator(communicator_);
    new std::shared_ptr<ServerAllReduce>(servers_);
    return;
  }
  {
    std::lock_guard lock(registry().mutex);
    registry().groups.erase(this);
  }
  close(communicator_, servers_);
}

void ProcessGroupDmlcomm::close_all() {
  std::vector<std::pair<Communicator, std::shared_ptr<ServerAllReduce>>> living;
  {
    std::lock_guard lock(registry().mutex);
    for (auto* group : registry().groups) {
      if (group->owner_ == getpid()) living.emplace_back(group->communicator_, group->servers_);
    }
  }
  for (const auto& [communicator, servers] : living) close(communicator, servers);
}

void ProcessGroupDmlcomm::setTimeout(std::chrono::milliseconds timeout) {
  backend_options_->timeout = timeout;
  timeout_.store(timeout);
  communicator_->set_timeout(timeout);
  if (servers_) servers_->set_timeout(timeout);
}

c10d::ErrorType ProcessGroupDmlcomm::getError() {
  switch (communicator_->error().code()) {
    case StatusCode::ok: return c10d::ErrorType::SUCCESS;
    case StatusCode::timeout: return c10d::ErrorType::TIMEOUT;
    case StatusCode::peer_lost: return c10d::ErrorType::REMOTE_ERROR;
    default: return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupDmlcomm::abort() { abort("abort() of the process group was called"); }

void ProcessGroupDmlcomm::abort(const std::string& reason) {
  if (owner_ != getpid()) return;
  communicator_->abort(reason);
  if (!servers_) return;
  // The engine may be about to take the reason.
  const Status error = communicator_->error();
  servers_->close(error.ok() ? Status(StatusCode::aborted, reason) : error);
}

void ProcessGroupDmlcomm::shutdown() {
  if (owner_ == getpid()) close(communicator_, servers_);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupDmlcomm::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& options) {
  for (int rank : ranks) {
    TORCH_CHECK_VALUE(rank >= 0 && rank < size_, "dmlcomm split: rank ", rank,
                      " is not in the parent group of ", size_, " ranks");
  }
  if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) return nullptr;
  engine::CommunicatorOptions child = options_of_part(ranks);
  if (options) {
    child.timeout = options->timeout;
    child.name = options->group_name;
  }
  return create(store->clone(), std::move(child));
}

// Of a group of these ranks, this one among them.
engine::CommunicatorOptions ProcessGroupDmlcomm::options_of_part(
    const std::vector<int>& ranks) const {
  engine::CommunicatorOptions part = communicator_options_;
  const auto self = std::find(ranks.begin(), ranks.end(), rank_);
  part.rank = static_cast<int>(self - ranks.begin());
  part.num_ranks = static_cast<int>(ranks.size());
  part.global_ranks.clear();
  part.host_of_rank.clear();
  part.plan.clear();  // it is for the ranks of the parent
  part.relaying = transport::Relaying::part;
  for (int rank : ranks) {
    part.global_ranks.push_back(communicator_options_.global_ranks[rank]);
    if (!communicator_options_.host_of_rank.empty()) {
      part.host_of_rank.push_back(communicator_options_.host_of_rank[rank]);
    }
  }
  return part;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupDmlcomm::shrink(
    const std::vector<int64_t>& excluded, int flags, const c10::intrusive_ptr<Options>& options) {
  std::vector<int> ranks;
  std::string key = str_cat("shrunk/", ++num_shrinks_);
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(excluded.begin(), excluded.end(), rank) != excluded.end()) continue;
    ranks.push_back(rank);
    key += str_cat("/", rank);
  }
  TORCH_CHECK_VALUE(std::find(ranks.begin(), ranks.end(), rank_) != ranks.end(),
                    "dmlcomm shrink: rank ", rank_, " is excluded, and has nothing to call");
  if ((flags & kShrinkAbort) != 0) abort("the group is made smaller");
  engine::CommunicatorOptions rest = options_of_part(ranks);
  // Torch numbers the ranks of the default group anew.
  if (rest.name == kDefaultGroup) {
    std::iota(rest.global_ranks.begin(), rest.global_ranks.end(), 0);
    rest.relaying = communicator_options_.relaying;
  }
  if (options) rest.timeout = options->timeout;
  return create(c10::make_intrusive<c10d::PrefixStore>(key, store_->clone()), std::move(rest));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupDmlcomm::merge(
    const c10::intrusive_ptr<c10d::Store>& store, const c10::intrusive_ptr<Options>& options,
    const int& rank, const int& size) {
  engine::CommunicatorOptions merged = communicator_options_;
  merged.rank = rank;
  merged.num_ranks = size;
  merged.global_ranks.clear();
  // Nobody has said how the hosts of the newcomers are wired.
  merged.grid.clear();
  merged.host_of_rank.clear();
  merged.relaying = transport::Relaying::none;
  merged.plan.clear();
  for (int r = 0; r < size; ++r) merged.global_ranks.push_back(r);
  if (options) {
    merged.timeout = options->timeout;
    merged.name = options->group_name;
  }
  return create(store->clone(), std::move(merged));
}

void ProcessGroupDmlcomm::startCoalescing() {
  std::lock_guard lock(coalesced_mutex_);
  TORCH_CHECK(!coalescing_.load(), "dmlcomm: startCoalescing() inside a coalesced block");
  coalescing_.store(true);
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::endCoalescing() {
  std::lock_guard lock(coalesced_mutex_);
  TORCH_CHECK(coalescing_.exchange(false), "dmlcomm: endCoalescing() without startCoalescing()");
  return c10::make_intrusive<JointWork>(rank_, std::exchange(coalesced_, {}));
}

c10::intrusive_ptr<Work> ProcessGroupDmlcomm::make_work(const Call& call, CallTensors tensors,
                                                        const TensorList& inputs) {
  const FlightEntry entry = flight_log_.begin(
      {.type = call.type,
       .title = call.title,
       .peer = call.peer,
       .returns_early = !call.options.inline_wait,
       .timeout = call.options.timeout.count() > 0 ? call.options.timeout : timeout_.load(),
       .inputs = inputs,
       .outputs = tensors.results()});
  const bool is_profiled = at::hasCallbacks();
  const auto profiled = is_profiled ? std::optional(inputs) : std::nullopt;
  auto work = c10::make_intrusive<Work>(rank_, call.type, is_profiled ? call.title : nullptr,
                                        profiled, communicator_, std::move(tensors));
  work->set_flight_entry(entry);
  return work;
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::finish(const Call& call,
                                                         c10::intrusive_ptr<Work> work) {
  // A caller that waits at once completes the Work itself.
  if (!call.options.inline_wait) {
    work->complete_entry_early();
    if (work->needs_completion()) work->watch();
  }
  if (coalescing_.load(std::memory_order_relaxed)) [[unlikely]] {
    std::lock_guard lock(coalesced_mutex_);
    coalesced_.push_back(work);
    if (call.blocking) return nullptr;  // endCoalescing()'s Work is the one to wait for
  }
  return work;
}

}  // namespace dmlcomm::adaptor
