#include "torch/hostwise_all_reduce.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pthread.h>
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <exception>
#include <optional>

#include "base/exceptions.h"
#include "base/log.h"
#include "base/str_cat.h"
#include "engine/completion.h"
#include "torch/errors.h"
#include "torch/process_group.h"
#include "torch/store_rendezvous.h"

namespace py = pybind11;

namespace dmlcomm::adaptor {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr char kModule[] = "dmlcomm.backends.hostwise";

// How often the thread looks while operations run.
constexpr milliseconds kPeriod{1};
// How long an error of NCCL waits for the cause.
constexpr milliseconds kNewsTime{200};

constexpr char kReduceScatter[] = "the reduce-scatter inside the host";
constexpr char kBetweenHosts[] = "the all_reduce between hosts";
constexpr char kAllGather[] = "the all-gather inside the host";
constexpr char kAllReduce[] = "the all_reduce inside the host";

// Of an operation that NCCL gives to the current stream.
c10d::AllreduceOptions inside_options(const c10d::ReduceOp& op) {
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  options.asyncOp = false;
  return options;
}

// NCCL ends the process when an operation has taken so long since it was called. The error of an
// operation is to come first, whose time counts from when the device comes to it.
milliseconds nccl_timeout(milliseconds timeout) { return 4 * timeout + std::chrono::minutes(10); }

// Of a message without bytes that the ranks of a host send each other. No other one has it.
constexpr uint32_t kConnectTag = 0xffffffffu;

// Ranks that are connected notice when one is lost, which NCCL does not.
void connect(engine::Communicator& group, const std::vector<int>& ranks) {
  std::vector<engine::OperationPtr> messages;
  for (int peer : ranks) {
    if (peer == group.rank()) continue;
    messages.push_back(group.send({nullptr, 0}, peer, kConnectTag, {}));
    messages.push_back(group.recv({nullptr, 0}, peer, kConnectTag, {}));
  }
  for (const auto& message : messages) throw_if_error(message->wait(milliseconds(0)));
}

// What a rank makes of all GPUs.
struct Joined {
  HostwiseAllReduce::BackendPtr group;  // null where NCCL is not used
  std::vector<int> inside;
  std::vector<int> across;
};

Joined join(const std::vector<std::string>& gpus, const engine::CommunicatorOptions& options,
            const c10::intrusive_ptr<c10d::Store>& store) {
  const py::gil_scoped_acquire gil;
  const py::object found = py::module_::import(kModule).attr("join")(
      gpus, options.rank, store, options.name, options.global_ranks, nccl_timeout(options.timeout));
  const auto refusal = found.attr("refusal").cast<std::string>();
  if (!refusal.empty()) throw_if_error({StatusCode::unsupported, refusal});
  const py::object group = found.attr("group");
  return {group.is_none() ? nullptr : group.cast<HostwiseAllReduce::BackendPtr>(),
          found.attr("inside").cast<std::vector<int>>(),
          found.attr("across").cast<std::vector<int>>()};
}

// The error of a part of an operation; its text names the part.
Status status_of(const std::exception_ptr& error, const char* part) {
  try {
    std::rethrow_exception(error);
  } catch (const CommException& failure) {
    return {failure.status().code(), part, ": ", failure.status().message()};
  } catch (const c10::Error& failure) {
    return {StatusCode::io_error, part, ": ", failure.what_without_backtrace()};
  } catch (const std::exception& failure) {
    return {StatusCode::io_error, part, ": ", failure.what()};
  }
}

constexpr char kOperation[] = "all_reduce of CUDA tensors";

// What `call`, which returns a Status, returns; or the error of an exception, which names `part`.
template <typename Call>
Status status_of_call(const char* part, Call call) {
  try {
    return call();
  } catch (...) {
    return status_of(std::current_exception(), part);
  }
}

}  // namespace

class HostwiseOperation final : public engine::Completion {
 public:
  explicit HostwiseOperation(uint64_t sequence) : sequence_(sequence) {}
  uint64_t sequence() const override { return sequence_; }

 private:
  const uint64_t sequence_;
};

// An operation that has not ended. It fails `limit` after the device has come to it. One thread
// gives its parts to the device, which may take long while NCCL connects; another one looks on.
class HostwiseAllReduce::Pending {
 public:
  Pending(uint64_t sequence, c10::Stream stream, milliseconds limit)
      : operation(std::make_shared<HostwiseOperation>(sequence)),
        before(stream.device()),
        stream_(stream),
        limit_(limit) {}

  // Gives one part to the current stream. An exception of `start` ends the operation.
  template <typename Start>
  void add(const char* name, Start start) {
    if (!status().ok()) return;
    {
      std::lock_guard lock(mutex_);
      parts_.push_back({name, nullptr, std::nullopt});
    }
    const Status given = status_of_call(name, [&] {
      const WorkPtr work = start();
      if (work != nullptr) work->wait();  // the stream does
      DeviceEnd end(stream_.device());
      end.add(stream_);
      std::lock_guard lock(mutex_);
      parts_.back().work = work;
      parts_.back().end.emplace(std::move(end));
      return Status();
    });
    if (given.ok()) return;
    std::lock_guard lock(mutex_);
    status_ = given;
  }

  // One of NCCL, whose end the stream tells.
  template <typename Start>
  void add_inside(const char* name, Start start) {
    add(name, [&start] {
      if (const WorkPtr work = start()) work->wait();
      return WorkPtr();
    });
  }

  void end_parts() {
    std::lock_guard lock(mutex_);
    has_all_parts_ = true;
  }

  Status status() const {
    std::lock_guard lock(mutex_);
    return status_;
  }

  // Whether it has ended on the device and on the host; then status() is that of all parts.
  bool has_ended() {
    std::lock_guard lock(mutex_);
    if (!has_all_parts_ || first_open() != parts_.end()) return false;
    for (const Part& part : parts_) {
      if (!status_.ok() || part.work == nullptr) continue;
      const std::exception_ptr error = part.work->exception();
      if (error != nullptr) status_ = status_of(error, part.name);
    }
    return true;
  }

  // Of one that has not ended; `now` is the time.
  Status check_time(Clock::time_point now) {
    std::lock_guard lock(mutex_);
    if (!deadline_) {
      if (before.has_come()) deadline_ = now + limit_;
      return Status();
    }
    const auto part = first_open();
    if (now < *deadline_ || part == parts_.end()) return Status();
    return {StatusCode::timeout, part->name, ": it has not ended within ", limit_.count(),
            " ms; check that every rank calls the same operations in the same order"};
  }

  const std::shared_ptr<HostwiseOperation> operation;
  DeviceEnd before;  // of what the caller has given to the device; constant while others look on

 private:
  struct Part {
    const char* name;
    WorkPtr work;
    std::optional<DeviceEnd> end;  // none while it is being given to the device
  };

  std::vector<Part>::const_iterator first_open() const {
    return std::find_if(parts_.begin(), parts_.end(), [](const Part& part) {
      if (!part.end || !part.end->has_come()) return true;
      return part.work != nullptr && !part.work->isCompleted();
    });
  }

  const c10::Stream stream_;
  const milliseconds limit_;
  mutable std::mutex mutex_;  // held for short times, after order_ and no other
  // Guarded by mutex_.
  std::optional<Clock::time_point> deadline_;  // once the device has come to it
  std::vector<Part> parts_;
  bool has_all_parts_ = false;
  Status status_;
};

bool HostwiseAllReduce::can_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble: break;
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
      if (op.op_ == c10d::ReduceOp::AVG) return false;
      break;
    default: return false;
  }
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::AVG:
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::MIN:
    case c10d::ReduceOp::MAX: return tensor.numel() > 0;
    default: return false;
  }
}

std::shared_ptr<HostwiseAllReduce> HostwiseAllReduce::create(c10::Device device, Groups groups,
                                                             Communicator group,
                                                             milliseconds timeout) {
  auto made =
      std::make_shared<HostwiseAllReduce>(device, std::move(groups), std::move(group), timeout);
  throw_if_error(start_thread(&made->watcher_, [self = made.get()] { self->watch(); }));
  return made;
}

// A stream of torch's pool, of high priority: the next shard goes to the network soon.
HostwiseAllReduce::HostwiseAllReduce(c10::Device device, Groups groups, Communicator group,
                                     milliseconds timeout)
    : device_(device),
      stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, true)),
      inside_(std::move(groups.inside)),
      across_(std::move(groups.across)),
      group_(std::move(group)),
      timeout_(timeout) {}

HostwiseAllReduce::~HostwiseAllReduce() { close(); }

HostwiseAllReduce::Started HostwiseAllReduce::start(const std::vector<at::Tensor>& tensors,
                                                    const c10d::ReduceOp& op,
                                                    milliseconds timeout) {
  std::unique_lock in_order(order_);
  const milliseconds each = timeout.count() > 0 ? timeout : timeout_.load();
  const auto pending =
      std::make_shared<Pending>(++sequence_, stream_, (across_ == nullptr ? 1 : 2) * each);
  Started started{pending->operation, std::make_unique<DeviceEnd>(device_)};
  const Status refusal = status_of_call(kOperation, [&] {
    pending->before.add_current_stream();
    DMLCOMM_RETURN_IF_ERROR(enter(pending));
    const at::NoGradGuard no_grad;
    const c10::StreamGuard guard(stream_);
    pending->before.block_current_stream();
    for (const at::Tensor& tensor : tensors) {
      record_stream(tensor, stream_);
      reduce(*pending, tensor, op, timeout);
    }
    started.end->add(stream_);
    pending->end_parts();
    return pending->status();
  });
  in_order.unlock();
  if (!refusal.ok()) {
    abort(refusal);  // other ranks may have begun
    pending->operation->complete(first_reason());
  }
  return started;
}

// From now on a failure, or the end of the time, ends it.
Status HostwiseAllReduce::enter(const std::shared_ptr<Pending>& pending) {
  if (const Status reason = first_reason(); !reason.ok()) return reason;
  if (const Status failed = failure(); !failed.ok()) return failed;
  std::lock_guard lock(mutex_);
  if (reason_.ok()) pending_.push_back(pending);
  changed_.notify_all();
  return reason_;
}

void HostwiseAllReduce::reduce(Pending& pending, const at::Tensor& whole, const c10d::ReduceOp& op,
                               milliseconds timeout) {
  if (across_ != nullptr) return reduce_by_shards(pending, whole, op, timeout);
  std::vector<at::Tensor> tensors{whole};
  pending.add_inside(kAllReduce, [&] { return inside_->allreduce(tensors, inside_options(op)); });
}

// A host with n ranks cuts `whole` into n equal shards. What remains is the end of the last one.
void HostwiseAllReduce::reduce_by_shards(Pending& pending, const at::Tensor& whole,
                                         const c10d::ReduceOp& op, milliseconds timeout) {
  const int64_t num_shards = inside_->getSize();
  const int64_t last = num_shards - 1;
  const int64_t count = whole.numel() / num_shards;
  const int64_t remaining = whole.numel() % num_shards;
  at::Tensor even = whole.narrow(0, 0, count * num_shards);
  at::Tensor even_shard = whole.narrow(0, inside_->getRank() * count, count);
  std::vector<at::Tensor> rest{whole.narrow(0, count * num_shards, remaining)};
  std::vector<at::Tensor> shard{even_shard};
  if (inside_->getRank() == last) shard[0] = whole.narrow(0, last * count, count + remaining);

  if (count > 0) {
    c10d::ReduceScatterOptions options;
    options.reduceOp = op;
    options.asyncOp = false;
    pending.add_inside(kReduceScatter,
                       [&] { return inside_->_reduce_scatter_base(even_shard, even, options); });
  }
  if (remaining > 0) {
    pending.add_inside(kReduceScatter,
                       [&] { return inside_->allreduce(rest, inside_options(op)); });
  }
  if (shard[0].numel() > 0) {
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    options.timeout = timeout;
    pending.add(kBetweenHosts, [&] { return across_->allreduce(shard, options); });
  }
  if (count > 0) {
    c10d::AllgatherOptions options;
    options.asyncOp = false;
    pending.add_inside(kAllGather,
                       [&] { return inside_->_allgather_base(even, even_shard, options); });
  }
  if (remaining > 0) {
    c10d::BroadcastOptions options;
    options.rootRank = last;
    options.asyncOp = false;
    pending.add_inside(kAllGather, [&] { return inside_->broadcast(rest, options); });
  }
}

// NCCL may fail because another rank has aborted it, whose word why goes another way.
Status HostwiseAllReduce::failure() const {
  const Status inside = failure_inside();
  for (const auto end = Clock::now() + kNewsTime;; std::this_thread::sleep_for(kPeriod)) {
    const Status cause = failure_elsewhere();
    if (!cause.ok() || inside.ok()) return cause;
    if (Clock::now() > end) return inside;
  }
}

Status HostwiseAllReduce::failure_inside() const {
  if (inside_->getError() == c10d::ErrorType::SUCCESS) return Status();
  return {StatusCode::io_error,
          "NCCL has failed inside the host; standard error of its ranks says why, and more of it "
          "with NCCL_DEBUG=WARN"};
}

// Of the ranks of the host, which are connected in the group, or of those on other hosts.
Status HostwiseAllReduce::failure_elsewhere() const {
  Status status = group_->error();
  if (!status.ok() || across_ == nullptr) return status;
  status = static_cast<const ProcessGroupDmlcomm&>(*across_).error();
  return status.ok() ? status : Status(status.code(), kBetweenHosts, ": ", status.message());
}

void HostwiseAllReduce::watch() {
  pthread_setname_np(pthread_self(), "dmlcomm-hosts");
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (pending_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const std::shared_ptr<Pending> first = pending_.front();
    lock.unlock();
    bool has_ended = false;
    const Status status = status_of_call(kOperation, [&] {
      const c10::DeviceGuard guard(device_);
      has_ended = first->has_ended();
      if (!has_ended) {
        const Status failed = failure();
        return failed.ok() ? first->check_time(Clock::now()) : failed;
      }
      // NCCL may have ended its parts because of an error, which no Work has.
      return first->status().ok() && !failure_inside().ok() ? failure() : first->status();
    });
    if (!status.ok()) abort(status);
    if (has_ended) first->operation->complete(status);
    lock.lock();
    if (has_ended) {
      pending_.remove(first);
      changed_.notify_all();
    } else {
      changed_.wait_for(lock, kPeriod);
    }
  }
}

void HostwiseAllReduce::abort(const Status& reason) {
  bool has_pending = false;
  {
    std::lock_guard lock(mutex_);
    if (!reason_.ok()) return;
    reason_ = reason;
    has_pending = !pending_.empty();
  }
  if (has_pending) {
    log_warning("all_reduce of CUDA tensors has failed; its results are undefined: ",
                reason.message());
  }
  group_->abort(reason.message());
  if (across_ != nullptr) static_cast<ProcessGroupDmlcomm&>(*across_).abort(reason.message());
  end_all(reason);
  insist([this] { inside_->abort(); });  // it may wait for the GPU
}

// Of the first abort, or ok.
Status HostwiseAllReduce::first_reason() {
  std::lock_guard lock(mutex_);
  return reason_;
}

void HostwiseAllReduce::end_all(const Status& status) {
  std::list<std::shared_ptr<Pending>> ended;
  {
    std::lock_guard lock(mutex_);
    ended.swap(pending_);
  }
  changed_.notify_all();
  for (const auto& each : ended) each->operation->complete(status);
}

void HostwiseAllReduce::close() {
  const Status closed(StatusCode::aborted, "the group was closed");
  bool gives_up = false;
  bool has_failed = false;
  {
    std::unique_lock lock(mutex_);
    if (std::exchange(closed_, true)) return;
    gives_up = !changed_.wait_for(lock, kDrainTime, [this] { return pending_.empty(); });
    has_failed = gives_up || !reason_.ok();
    if (!has_failed) reason_ = closed;  // of operations that come later
  }
  if (gives_up) abort(closed);  // NCCL's shutdown() would wait for the GPU
  if (across_ != nullptr) across_->shutdown();
  if (!has_failed) insist([this] { inside_->shutdown(); });
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

void HostwiseAllReduce::set_timeout(milliseconds timeout) {
  timeout_.store(timeout);
  inside_->setTimeout(nccl_timeout(timeout));
  if (across_ != nullptr) across_->setTimeout(timeout);
}

HostwiseAllReduce::Groups meet_hostwise(
    c10::Device device, const engine::CommunicatorOptions& options,
    const c10::intrusive_ptr<c10d::Store>& store, const Communicator& group,
    const std::function<HostwiseAllReduce::BackendPtr(const std::vector<int>& ranks)>&
        make_across) {
  StoreRendezvous rendezvous(store, [group] { return group->error(); });
  const auto exchange = [&](const char* name, const std::string& own, milliseconds timeout) {
    Result<std::vector<std::string>> all =
        rendezvous.exchange(name, options.rank, options.num_ranks, own, timeout);
    if (rendezvous.interrupt()) std::rethrow_exception(rendezvous.interrupt());
    throw_if_error(all.status());
    return *all;
  };
  std::string own;
  {
    const py::gil_scoped_acquire gil;
    own = py::module_::import(kModule).attr("describe")(device.index()).cast<std::string>();
  }
  const std::vector<std::string> gpus = exchange("GPU for DMLCOMM_CUDA_NCCL", own, options.timeout);
  // An error on one rank is one on all. A step of another rank may meet so often.
  constexpr int kMeetings = 3;
  const auto together = [&](const char* name, const std::function<void()>& step) {
    try {
      step();
    } catch (...) {
      // The others read it; this rank need not wait for them.
      const std::string text = status_of(std::current_exception(), name).message();
      (void)rendezvous.exchange(name, options.rank, options.num_ranks, text, milliseconds(0));
      throw;
    }
    const std::vector<std::string> texts = exchange(name, "", kMeetings * options.timeout);
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      if (!texts[rank].empty()) {
        throw_if_error({StatusCode::aborted, "rank ", rank, ": ", texts[rank]});
      }
    }
  };
  Joined joined;
  HostwiseAllReduce::BackendPtr between_hosts;
  try {
    together("NCCL inside hosts", [&] { joined = join(gpus, options, store); });
    if (joined.group == nullptr) return {};
    together("connections for NCCL inside hosts", [&] {
      connect(*group, joined.inside);
      if (joined.across.size() > 1) between_hosts = make_across(joined.across);
    });
    joined.group->eagerConnectSingleDevice(device);
  } catch (...) {
    if (joined.group != nullptr) insist([&] { joined.group->abort(); });
    throw;
  }
  return {joined.group, between_hosts};
}

}  // namespace dmlcomm::adaptor
