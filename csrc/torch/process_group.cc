#include "torch/process_group.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <tuple>
#include <unordered_set>
#include <variant>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/sha256.h"
#include "base/str_cat.h"
#include "torch/block_allocator.h"
#include "torch/errors.h"
#include "torch/gil.h"
#include "torch/store_rendezvous.h"
#include "transport/address.h"

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

c10::intrusive_ptr<GroupOptions> backend_options_of(const engine::CommunicatorOptions& options) {
  auto result = c10::make_intrusive<GroupOptions>("dmlcomm", options.timeout);
  result->group_name = options.name;
  result->global_ranks_in_group.assign(options.global_ranks.begin(), options.global_ranks.end());
  return result;
}

void close(const Communicator& communicator, const std::shared_ptr<ServerAllReduce>& servers,
           const std::shared_ptr<HostwiseAllReduce>& hostwise) {
  if (hostwise) hostwise->close();
  if (servers) servers->close({StatusCode::aborted, "the group was closed"});
  if (communicator) communicator->close();
}

c10::intrusive_ptr<c10d::Store> below_prefixes(c10::intrusive_ptr<c10d::Store> store) {
  while (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get())) {
    store = prefixed->getUnderlyingStore();
  }
  return store;
}

// "host:port" where others reach the store; empty for a store that has none.
std::string address_of(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto below = below_prefixes(store);
  const auto* tcp = dynamic_cast<c10d::TCPStore*>(below.get());
  return tcp == nullptr ? "" : str_cat(tcp->getHost(), ":", tcp->getPort());
}

// Another one for each group of each process: "host/process/random@address of its store".
std::string new_handle(const c10::intrusive_ptr<c10d::Store>& store) {
  std::random_device random;
  return str_cat(transport::local_host_address().host_name, "/", getpid(), "/", random(), "-",
                 random(), "@", address_of(store));
}

// Throws what create() does. Ends early once `group` has failed, if it is not null.
Communicator meet(const engine::CommunicatorOptions& options,
                  const c10::intrusive_ptr<c10d::Store>& store, const Communicator& group) {
  if (options.num_ranks > 1 && process_config().ok()) share_large_tensors(*process_config());
  auto rendezvous = std::make_shared<StoreRendezvous>(
      store, [group] { return group == nullptr ? Status() : group->error(); });
  auto communicator = engine::Communicator::create(options, rendezvous);
  if (rendezvous->interrupt()) std::rethrow_exception(rendezvous->interrupt());
  throw_if_error(communicator.status());
  return *communicator;
}

}  // namespace

c10::intrusive_ptr<ProcessGroupDmlcomm> ProcessGroupDmlcomm::create(
    c10::intrusive_ptr<c10d::Store> store, engine::CommunicatorOptions options,
    std::shared_ptr<ServerAllReduce> servers) {
  Communicator communicator = meet(options, store, nullptr);
  return c10::make_intrusive<ProcessGroupDmlcomm>(std::move(communicator), std::move(options),
                                                  std::move(servers), std::move(store));
}

c10::intrusive_ptr<ProcessGroupDmlcomm> ProcessGroupDmlcomm::create_unformed(
    c10::intrusive_ptr<c10d::Store> store, engine::CommunicatorOptions options) {
  throw_if_error(process_config().status());
  return c10::make_intrusive<ProcessGroupDmlcomm>(nullptr, std::move(options), nullptr,
                                                  std::move(store));
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
      owner_(getpid()),
      handle_(new_handle(store_)) {
  init();
  std::lock_guard lock(registry().mutex);
  registry().groups.insert(this);
}

ProcessGroupDmlcomm::~ProcessGroupDmlcomm() {
  const GilReleasedIfHeld released;  // torch may destroy a group with the GIL held
  if (owner_ != getpid()) {
    // Leaked: their destructors would join threads that are not here.
    new Communicator(communicator_);
    new Staged(staged_);
    new Hostwise(hostwise_);
    new std::shared_ptr<ServerAllReduce>(servers_);
    return;
  }
  {
    std::lock_guard lock(registry().mutex);
    registry().groups.erase(this);
  }
  close(outermost_or_null(), servers_, hostwise_or_null());
}

void ProcessGroupDmlcomm::close_all() {
  std::vector<std::tuple<Communicator, std::shared_ptr<ServerAllReduce>, Hostwise>> living;
  {
    std::lock_guard lock(registry().mutex);
    for (auto* group : registry().groups) {
      if (group->owner_ != getpid()) continue;
      living.emplace_back(group->outermost_or_null(), group->servers_, group->hostwise_or_null());
    }
  }
  // What they are made of is among the groups.
  for (const auto& each : living) {
    if (const Hostwise& hostwise = std::get<Hostwise>(each)) hostwise->close();
  }
  for (const auto& [communicator, servers, hostwise] : living) {
    close(communicator, servers, nullptr);
  }
}

Communicator ProcessGroupDmlcomm::communicator_or_null() const {
  std::lock_guard lock(communicator_mutex_);
  return communicator_;
}

Communicator ProcessGroupDmlcomm::communicator() const {
  const Communicator communicator = communicator_or_null();
  if (communicator == nullptr) {
    throw_if_error({StatusCode::aborted,
                    str_cat("group '", communicator_options_.name,
                            "' has no ranks yet: all its members call reconfigure() first")});
  }
  return communicator;
}

ProcessGroupDmlcomm::Staged ProcessGroupDmlcomm::staged_or_null() const {
  std::lock_guard lock(communicator_mutex_);
  return staged_;
}

Communicator ProcessGroupDmlcomm::outermost_or_null() const {
  std::lock_guard lock(communicator_mutex_);
  return staged_ == nullptr ? communicator_ : staged_;
}

// For operations of CUDA tensors. Meets nobody yet.
ProcessGroupDmlcomm::Staged ProcessGroupDmlcomm::staged_on(c10::Device device) {
  std::lock_guard lock(communicator_mutex_);
  if (staged_ != nullptr) {
    TORCH_CHECK_VALUE(device == *staged_device_, "dmlcomm: group '", communicator_options_.name,
                      "' has had tensors on ", *staged_device_, ", and now one on ", device,
                      "; a group uses one GPU per process: start a process for each GPU, and call "
                      "torch.cuda.set_device() first");
    return staged_;
  }
  engine::CommunicatorOptions options = communicator_options_;
  options.name += " (cuda)";
  // The relays of the job are the group's.
  if (options.relaying == transport::Relaying::whole_job) {
    options.relaying = transport::Relaying::part;
  }
  const auto& store = meeting_store_ ? meeting_store_ : store_;
  auto meet_again = [this, options = std::move(options), group = communicator_,
                     store = c10::make_intrusive<c10d::PrefixStore>("cuda", store->clone())] {
    engine::CommunicatorOptions current = options;
    current.timeout = timeout_.load();
    return Result<Communicator>(meet(current, store, group));
  };
  Result<Staged> staged = device::StagedCommunicator::create(
      TorchDevice::at(device), communicator_, std::move(meet_again),
      communicator_options_.config->cuda_chunk_bytes);
  throw_if_error(staged.status());
  staged_device_ = device;
  staged_ = *staged;
  return staged_;
}

ProcessGroupDmlcomm::Hostwise ProcessGroupDmlcomm::hostwise_or_null() const {
  std::lock_guard lock(communicator_mutex_);
  return hostwise_;
}

ProcessGroupDmlcomm::Hostwise ProcessGroupDmlcomm::hostwise_for(const Call& call,
                                                                const TensorList& tensors,
                                                                const c10d::ReduceOp& op) {
  if (call.cuda == nullptr || size_ == 1) return nullptr;
  if (communicator_options_.config->cuda_nccl == CudaNccl::never) return nullptr;
  for (const at::Tensor& tensor : tensors) {
    if (!HostwiseAllReduce::can_reduce(tensor, op)) return nullptr;
  }
  std::unique_lock lock(hostwise_meeting_);
  if (std::exchange(has_met_hostwise_, true)) return hostwise_or_null();
  try {
    return meet_hostwise_on(tensors.front().device());
  } catch (const std::exception& error) {
    lock.unlock();  // hooks may call the group
    // The others may have met, and would wait for this rank.
    abort(str_cat("all_reduce of CUDA tensors did not begin on a rank: ", error.what()));
    throw;
  }
}

ProcessGroupDmlcomm::Hostwise ProcessGroupDmlcomm::meet_hostwise_on(c10::Device device) {
  const auto& store = meeting_store_ ? meeting_store_ : store_;
  const auto own = c10::make_intrusive<c10d::PrefixStore>("hostwise", store->clone());
  engine::CommunicatorOptions current = communicator_options_;
  current.timeout = timeout_.load();
  const auto make_across = [&](const std::vector<int>& ranks) -> HostwiseAllReduce::BackendPtr {
    engine::CommunicatorOptions part = options_of_part(ranks);
    part.timeout = current.timeout;
    part.name += " (between hosts)";
    part.config->cuda_nccl = CudaNccl::never;  // no two of them are on one host
    const auto meeting =
        c10::make_intrusive<c10d::PrefixStore>(str_cat("across/", ranks.front()), own->clone());
    Communicator met = meet(part, meeting, communicator_);
    auto group =
        c10::make_intrusive<ProcessGroupDmlcomm>(std::move(met), std::move(part), nullptr, meeting);
    throw_if_error(group->staged_on(device)->meet());
    return group;
  };
  HostwiseAllReduce::Groups groups =
      meet_hostwise(device, current, own, communicator_, make_across);
  if (groups.inside == nullptr) return nullptr;
  Hostwise met =
      HostwiseAllReduce::create(device, std::move(groups), outermost_or_null(), current.timeout);
  std::lock_guard lock(communicator_mutex_);
  hostwise_ = met;
  return met;
}

uint64_t ProcessGroupDmlcomm::getSequenceNumberForGroup() {
  const Staged staged = staged_or_null();
  const Hostwise hostwise = hostwise_or_null();
  return communicator()->sequence() + (staged == nullptr ? 0 : staged->sequence()) +
         (hostwise == nullptr ? 0 : hostwise->sequence());
}

std::vector<transport::RailCounters> ProcessGroupDmlcomm::rails() const {
  (void)communicator();  // throws
  std::vector<transport::RailCounters> all = outermost_or_null()->rails();
  const Hostwise hostwise = hostwise_or_null();
  if (hostwise == nullptr || hostwise->across() == nullptr) return all;
  transport::add_rails(all, static_cast<ProcessGroupDmlcomm&>(*hostwise->across()).rails());
  return all;
}

void ProcessGroupDmlcomm::setTimeout(std::chrono::milliseconds timeout) {
  backend_options_->timeout = timeout;
  timeout_.store(timeout);
  if (const Communicator outermost = outermost_or_null()) outermost->set_timeout(timeout);
  if (servers_) servers_->set_timeout(timeout);
  if (const Hostwise hostwise = hostwise_or_null()) hostwise->set_timeout(timeout);
}

Status ProcessGroupDmlcomm::error() const {
  const Communicator outermost = outermost_or_null();
  return outermost == nullptr ? Status() : outermost->error();
}

c10d::ErrorType ProcessGroupDmlcomm::getError() {
  switch (error().code()) {
    case StatusCode::ok: return c10d::ErrorType::SUCCESS;
    case StatusCode::timeout: return c10d::ErrorType::TIMEOUT;
    case StatusCode::peer_lost: return c10d::ErrorType::REMOTE_ERROR;
    default: return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupDmlcomm::abort() { abort("abort() of the process group was called"); }

void ProcessGroupDmlcomm::abort(const std::string& reason) {
  if (owner_ != getpid()) return;
  hooks_->on_abort();
  const Communicator communicator = communicator_or_null();
  if (communicator == nullptr) return;
  outermost_or_null()->abort(reason);
  if (const Hostwise hostwise = hostwise_or_null()) {
    hostwise->abort({StatusCode::aborted, reason});
  }
  if (!servers_) return;
  // The engine may be about to take the reason.
  const Status error = communicator->error();
  servers_->close(error.ok() ? Status(StatusCode::aborted, reason) : error);
}

void ProcessGroupDmlcomm::shutdown() {
  if (owner_ == getpid()) close(outermost_or_null(), servers_, hostwise_or_null());
}

void ProcessGroupDmlcomm::set_given_options(std::string algorithm, int priority) {
  backend_options_->algorithm = std::move(algorithm);
  backend_options_->priority = priority;
}

c10::intrusive_ptr<ProcessGroupDmlcomm> ProcessGroupDmlcomm::create_descendant(
    c10::intrusive_ptr<c10d::Store> store, engine::CommunicatorOptions options) {
  auto group = create(std::move(store), std::move(options));
  group->set_given_options(backend_options_->algorithm, backend_options_->priority);
  return group;
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
  return create_descendant(store->clone(), std::move(child));
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
  const auto& store = meeting_store_ ? meeting_store_ : store_;
  return create_descendant(c10::make_intrusive<c10d::PrefixStore>(key, store->clone()),
                           std::move(rest));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupDmlcomm::merge(
    const c10::intrusive_ptr<c10d::Store>& store, const c10::intrusive_ptr<Options>& options,
    const int& rank, const int& size) {
  engine::CommunicatorOptions merged = options_with_strangers(rank, size);
  if (options) {
    merged.timeout = options->timeout;
    merged.name = options->group_name;
  }
  return create_descendant(store->clone(), std::move(merged));
}

// Of a group with ranks of whose hosts nobody has said how they are wired.
engine::CommunicatorOptions ProcessGroupDmlcomm::options_with_strangers(int rank, int size) const {
  engine::CommunicatorOptions options = communicator_options_;
  options.rank = rank;
  options.num_ranks = size;
  options.global_ranks.resize(static_cast<size_t>(size));
  std::iota(options.global_ranks.begin(), options.global_ranks.end(), 0);
  options.grid.clear();
  options.host_of_rank.clear();
  options.relaying = transport::Relaying::none;
  options.plan.clear();
  return options;
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE

namespace {

// By rank: as given, or in the order of their text.
std::vector<std::string> members_of(const c10d::ReconfigureOptions& options) {
  std::vector<std::string> members;
  if (const auto* ordered = std::get_if<std::vector<std::string>>(&options.handles)) {
    members = *ordered;
  } else {
    const auto& any = std::get<std::unordered_set<std::string>>(options.handles);
    members.assign(any.begin(), any.end());
    std::sort(members.begin(), members.end());
  }
  return members;
}

// Where the members meet: at the store of the first one, if it has an address, else at the one that
// all share. Those who were told of other members do not meet there.
c10::intrusive_ptr<c10d::Store> meeting_store(const c10::intrusive_ptr<c10d::Store>& own,
                                              const std::vector<std::string>& members, int64_t uuid,
                                              std::chrono::milliseconds timeout) {
  std::string text;
  for (const std::string& member : members) text += str_cat(member.size(), ":", member);
  std::string key = str_cat("dmlcomm/reconfigured/", uuid, "/");
  const Digest digest = sha256(std::as_bytes(std::span(text)));
  for (size_t i = 0; i < 8; ++i) key += str_cat(static_cast<int>(digest[i]), ".");

  const std::string& first = members.front();
  const size_t at = first.rfind('@');
  const std::string address = at == std::string::npos ? "" : first.substr(at + 1);
  c10::intrusive_ptr<c10d::Store> store = own->clone();
  if (address == address_of(own)) {
    if (!address.empty()) store = below_prefixes(store);
  } else {
    const size_t colon = address.rfind(':');
    int port = 0;
    const char* const end = address.data() + address.size();
    const bool has_port = colon != std::string::npos &&
                          std::from_chars(address.data() + colon + 1, end, port).ptr == end;
    TORCH_CHECK_VALUE(has_port && port > 0 && port <= UINT16_MAX, "dmlcomm reconfigure: member ",
                      first,
                      " has no store that others reach; use a TCPStore, or one store for all");
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.waitWorkers = false;
    options.timeout = timeout;
    store = c10::make_intrusive<c10d::TCPStore>(address.substr(0, colon), options);
  }
  return c10::make_intrusive<c10d::PrefixStore>(key, std::move(store));
}

}  // namespace

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::reconfigure(
    const c10d::ReconfigureOptions& options) {
  const std::vector<std::string> members = members_of(options);
  const auto self = std::find(members.begin(), members.end(), handle_);
  TORCH_CHECK_VALUE(self != members.end(), "dmlcomm reconfigure: the handle of this process, ",
                    handle_, ", is not among the ", members.size(), " members");
  TORCH_CHECK_VALUE(std::find(self + 1, members.end(), handle_) == members.end(),
                    "dmlcomm reconfigure: this process is a member twice: ", handle_);
  TORCH_CHECK_VALUE(uuids_.insert(options.uuid).second, "dmlcomm reconfigure: uuid ", options.uuid,
                    " was used before; each call needs another one");
  TORCH_CHECK(servers_ == nullptr,
              "dmlcomm reconfigure: a group whose all_reduce goes through "
              "parameter servers keeps its ranks");
  const Communicator old = communicator_or_null();
  if (old != nullptr) {
    abort("the group is being reconfigured");
    close(outermost_or_null(), nullptr, hostwise_or_null());
  }
  const int rank = static_cast<int>(self - members.begin());
  engine::CommunicatorOptions ours = options_with_strangers(rank, static_cast<int>(members.size()));
  ours.timeout = options.timeout.value_or(timeout_.load());
  c10::intrusive_ptr<c10d::Store> store =
      meeting_store(store_, members, options.uuid, ours.timeout);
  Communicator formed = meet(ours, store, nullptr);
  ours.timeout = timeout_.load();
  formed->set_timeout(ours.timeout);
  flight_log_.regroup(ours.global_ranks);
  backend_options_->global_ranks_in_group.assign(ours.global_ranks.begin(),
                                                 ours.global_ranks.end());
  backend_options_->is_reconfigured = true;
  Hostwise before;  // its groups go without a lock
  const std::scoped_lock locks(hostwise_meeting_, communicator_mutex_);
  rank_ = ours.rank;
  size_ = ours.num_ranks;
  communicator_options_ = std::move(ours);
  communicator_ = std::move(formed);
  staged_ = nullptr;
  staged_device_.reset();
  before.swap(hostwise_);
  has_met_hostwise_ = false;
  meeting_store_ = std::move(store);
  return c10::make_intrusive<JointWork>(rank_, std::vector<WorkPtr>());
}

#endif

#if DMLCOMM_HAS_HOOKS

void ProcessGroupDmlcomm::registerAbortHook(int64_t id, c10d::AbortHook hook) {
  hooks_->add_abort(id, std::move(hook));
}

void ProcessGroupDmlcomm::registerCompletionHook(int64_t id, c10d::CompletionHook hook) {
  hooks_->add_completion(id, [hook = std::move(hook)](uint64_t key) {
    hook({.completionKey = key, .duration_ms = std::nullopt});
  });
}

#endif

void ProcessGroupDmlcomm::addEphemeralTimeout(const std::chrono::milliseconds& timeout) {
  std::lock_guard lock(extensions_->mutex);
  extensions_->active.push_back(std::make_shared<Extension>(timeout));
  extensions_->total_ms += timeout.count();
}

// `work` is the first after each extension that has none yet.
void ProcessGroupDmlcomm::expect_end_of_extensions(Work& work) {
  std::vector<std::shared_ptr<Extension>> ending;
  {
    std::lock_guard lock(extensions_->mutex);
    for (const auto& extension : extensions_->active) {
      if (!std::exchange(extension->has_work, true)) ending.push_back(extension);
    }
  }
  if (ending.empty()) return;
  work.after_operations([extensions = extensions_, ending = std::move(ending)](bool) {
    std::lock_guard lock(extensions->mutex);
    for (const auto& extension : ending) {
      std::erase(extensions->active, extension);
      extensions->total_ms -= extension->timeout.count();
    }
  });
}

bool ProcessGroupDmlcomm::is_estimating() const {
  return communicator_ != nullptr && communicator_->is_estimating();
}

void ProcessGroupDmlcomm::startTimeEstimate() { throw_if_error(communicator()->start_estimate()); }

float ProcessGroupDmlcomm::endTimeEstimate() {
  const Result<double> seconds = communicator()->end_estimate();
  throw_if_error(seconds.status());
  return static_cast<float>(*seconds * 1e6);
}

void ProcessGroupDmlcomm::startCoalescing() {
  std::lock_guard lock(coalesced_mutex_);
  TORCH_CHECK(!coalescing_.load(), "dmlcomm: startCoalescing() inside a coalesced block");
  coalescing_.store(true);
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::endCoalescing() {
  std::lock_guard lock(coalesced_mutex_);
  TORCH_CHECK(coalescing_.exchange(false), "dmlcomm: endCoalescing() without startCoalescing()");
  auto joint = c10::make_intrusive<JointWork>(rank_, std::exchange(coalesced_, {}));
  if (hooks_->any()) [[unlikely]] {
    joint->call_at_end(hooks_);
  }
  return joint;
}

c10::intrusive_ptr<Work> ProcessGroupDmlcomm::make_work(const Call& call, CallTensors tensors,
                                                        const TensorList& inputs) {
  if (is_estimating()) [[unlikely]] {
    tensors.leave_results();
    return c10::make_intrusive<Work>(rank_, call.type, nullptr, std::nullopt, communicator_,
                                     std::move(tensors));
  }
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
  auto work = c10::make_intrusive<Work>(
      rank_, call.type, is_profiled ? call.title : nullptr, profiled,
      call.cuda ? call.cuda->communicator() : communicator_, std::move(tensors));
  work->set_flight_entry(entry);
  if (hooks_->any()) [[unlikely]] {
    work->set_hooks(hooks_);
  }
  return work;
}

ProcessGroupDmlcomm::WorkPtr ProcessGroupDmlcomm::finish(const Call& call,
                                                         c10::intrusive_ptr<Work> work) {
  if (extensions_->total_ms.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    expect_end_of_extensions(*work);
  }
  if (call.cuda != nullptr) work->follow(*call.cuda);
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
