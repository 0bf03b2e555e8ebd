#include "transport/tcp/relay_service.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/exceptions.h"
#include "base/log.h"
#include "base/str_cat.h"
#include "transport/relay.h"
#include "transport/relay_preamble.h"
#include "transport/socket.h"
#include "transport/tcp/tcp_channel.h"

namespace dmlcomm::transport::tcp {
namespace {

// Who connects and does not say what it wants is dropped after this time...
constexpr double kPreambleTimeoutS = 5.0;
// ...and when more than this wait beside the ranks of the job, the oldest is dropped at once.
constexpr size_t kMaxStrangers = 64;
// Ranks of the job that may connect at once, per address.
constexpr size_t kExpectedPerAddress = 4;
constexpr int kTickMs = 50;
// The destructor gives relayed connections this long to end.
constexpr double kLingerS = 1.0;
constexpr size_t kScratchBytes = 256 * 1024;
// What the kernel queues beyond the bytes on their way: what is here already delays what comes.
constexpr size_t kRelayQueueBytes = 128 * 1024;

// The number of an event: the guest above the end.
constexpr uint32_t kEnds = 2;

}  // namespace

// A connection that came in. It says where it wants to go, the next hop is connected and told the
// rest of the way, and then bytes are copied.
class RelayService::Guest {
 public:
  Guest(UniqueFd fd, RelayService& service, uint32_t id)
      : service_(service), id_(id), from_(std::move(fd)), in_(kRelayHeaderBytes) {
    deadline_ = Deadline::after_s(kPreambleTimeoutS);
  }

  enum class Progress { waiting, busy, over };

  Progress advance() {
    if (relay_) return relay_bytes();
    if (!preamble_) {
      const Progress progress = read_preamble();
      if (!preamble_) return progress;
    }
    if (!to_.valid()) {
      const Progress progress = begin_connect();
      if (!to_.valid()) return progress;
    }
    return connect_next();
  }

  // It has not said what it wants.
  bool is_stranger() const { return !preamble_; }

  void ready(uint32_t end, Channel::Ready ready) {
    if (relay_) relay_->end(end).descriptor_ready(ready);
  }

  // Looked at from time to time: what takes too long ends.
  Progress check(int64_t now) {
    if (relay_) return relay_->stalled_ns(now) > kStallNs ? Progress::over : Progress::waiting;
    if (deadline_.expired()) return preamble_ ? refuse(RelayAnswer::unreachable) : Progress::over;
    return advance();
  }

 private:
  Progress read_preamble() {
    while (in_done_ < in_.size()) {
      const auto room = std::span(in_).subspan(in_done_);
      const Result<size_t> got = recv_some(from_.get(), room, nullptr);
      if (!got.ok()) return Progress::over;
      if (*got == 0) return Progress::waiting;
      in_done_ += *got;
      if (in_done_ != kRelayHeaderBytes) continue;
      const Result<size_t> size = relay_preamble_bytes(in_);
      if (!size.ok()) return drop(size.status());
      in_.resize(*size);
    }
    Result<RelayPreamble> preamble = decode_relay_preamble(in_);
    if (!preamble.ok()) return drop(preamble.status());
    preamble_ = std::move(*preamble);
    return Progress::waiting;
  }

  static Progress drop(const Status& status) {
    log_info("dropped a connection that wants to be relayed: ", status.message());
    return Progress::over;
  }

  // Ranks that were faster wait until this one knows the addresses, too.
  Progress begin_connect() {
    const RelayHop next = preamble_->hops.front();
    const Result<bool> may_connect = service_.may_connect(preamble_->secret, next.address);
    if (!may_connect.ok()) return drop(may_connect.status());
    if (!*may_connect) return Progress::waiting;
    preamble_->hops.erase(preamble_->hops.begin());
    // On a grid the subnet says by which card the next hop is reached.
    Result<UniqueFd> to = tcp::begin_connect("", "", next.address, next.port, service_.options_);
    if (!to.ok()) return refuse(answer_to(to.status()));
    to_ = std::move(*to);
    deadline_ = Deadline::after_s(kHopTimeoutS);
    if (!is_last()) out_ = encode(*preamble_);
    const Status watched =
        service_.loop_.watch(to_.get(), service_.guest_source_, kEnds * id_ + 1, true);
    return watched.ok() ? Progress::waiting : refuse(RelayAnswer::unreachable);
  }

  bool is_last() const { return preamble_->hops.empty(); }

  // A relay that refuses is one that has gone; its end of the way may well be there.
  RelayAnswer answer_to(const Status& status) const {
    const bool is_refused = status.code() == StatusCode::peer_lost && is_last();
    return is_refused ? RelayAnswer::refused : RelayAnswer::unreachable;
  }

  Progress connect_next() {
    if (!is_connected_) {
      pollfd ready{to_.get(), POLLOUT, 0};
      if (poll(&ready, 1, 0) != 1) return Progress::waiting;
      const Status status = connect_result(to_.get(), "connect to the next hop");
      if (!status.ok()) return refuse(answer_to(status));
      is_connected_ = true;
    }
    if (is_last()) {
      // It fits into the empty buffer of a fresh connection.
      const RelayAnswerBytes answer = encode(RelayAnswer::connected);
      if (!send_some(from_.get(), answer, {}).ok()) return Progress::over;
      return begin_relay();
    }
    // The next relay answers to who began the connection.
    const Result<size_t> sent = send_some(to_.get(), out_, {});
    if (!sent.ok() || *sent < out_.size()) return refuse(RelayAnswer::unreachable);
    return begin_relay();
  }

  // Bytes that nobody has read would turn the end into a reset, which may overtake the answer.
  Progress refuse(RelayAnswer answer) {
    (void)recv_some(from_.get(), service_.scratch_, nullptr);
    (void)send_some(from_.get(), encode(answer), {});
    return Progress::over;
  }

  // Watched anew, since an event that came before is not seen by the channels.
  Progress begin_relay() {
    const std::array<int, kEnds> fds{from_.get(), to_.get()};
    for (const int fd : fds) {
      service_.loop_.forget(fd);
      tune(fd, service_.options_);
    }
    const auto channel = [](UniqueFd& fd) {
      return std::make_unique<TcpChannel>(std::move(fd), TicketMarking::none, kRelayQueueBytes,
                                          "relayed");
    };
    relay_ = std::make_unique<Relay>(channel(from_), channel(to_));
    for (uint32_t end = 0; end < kEnds; ++end) {
      const uint32_t number = kEnds * id_ + end;
      const Status watched = service_.loop_.watch(fds[end], service_.guest_source_, number, true);
      if (!watched.ok()) return drop(watched);
    }
    return Progress::busy;
  }

  Progress relay_bytes() {
    if (relay_->advance(service_.scratch_)) return Progress::busy;
    return relay_->is_over() ? Progress::over : Progress::waiting;
  }

  RelayService& service_;
  const uint32_t id_;
  UniqueFd from_;
  UniqueFd to_;
  Deadline deadline_;
  std::vector<std::byte> in_;
  size_t in_done_ = 0;
  std::optional<RelayPreamble> preamble_;  // with the hops behind the next one
  std::vector<std::byte> out_;
  bool is_connected_ = false;
  std::unique_ptr<Relay> relay_;
};

RelayService::RelayService(PortRange ports, const SocketOptions& options)
    : ports_(ports), options_(options), scratch_(kScratchBytes) {}

Result<std::shared_ptr<RelayService>> RelayService::create(PortRange ports,
                                                           const SocketOptions& options) {
  std::shared_ptr<RelayService> service(new RelayService(ports, options));
  DMLCOMM_RETURN_IF_ERROR(service->loop_.open());
  RelayService* const self = service.get();
  service->listener_source_ =
      service->loop_.add([self](uint32_t number, auto) { self->accept_all(number); });
  service->guest_source_ = service->loop_.add([self](uint32_t number, Channel::Ready ready) {
    const auto it = self->guests_.find(number / kEnds);
    if (it == self->guests_.end()) return;  // it has ended since
    it->second->ready(number % kEnds, ready);
    self->advance(number / kEnds);
  });
  DMLCOMM_RETURN_IF_ERROR(start_thread(&service->thread_, [self] { self->run(); }));
  return service;
}

RelayService::~RelayService() {
  {
    std::lock_guard lock(mutex_);
    listeners_.clear();
  }
  stopping_.store(true);
  loop_.wake();
  if (thread_.joinable()) thread_.join();
}

Result<uint16_t> RelayService::listen(const std::string& address) {
  std::lock_guard lock(mutex_);
  const auto known = ports_of_addresses_.find(address);
  if (known != ports_of_addresses_.end()) return known->second;
  // Without waiting for a port: a job can do without relays, and others wait for the lock.
  Result<Listener> listener = listen_on(address, ports_, options_);
  if (!listener.ok()) return listener.status();
  const auto number = static_cast<uint32_t>(listeners_.size());
  DMLCOMM_RETURN_IF_ERROR(loop_.watch(listener->fd.get(), listener_source_, number, true));
  listeners_.push_back(std::move(listener->fd));
  ports_of_addresses_[address] = listener->port;
  return listener->port;
}

void RelayService::admit(const Secret& secret) {
  std::lock_guard lock(mutex_);
  ++permits_[secret].num_duties;
}

void RelayService::allow(const Secret& secret, const std::set<std::string>& addresses) {
  std::lock_guard lock(mutex_);
  permits_[secret].addresses = addresses;
}

void RelayService::dismiss(const Secret& secret) {
  std::lock_guard lock(mutex_);
  const auto permit = permits_.find(secret);
  if (permit != permits_.end() && --permit->second.num_duties == 0) permits_.erase(permit);
}

Result<bool> RelayService::may_connect(const Secret& secret, const std::string& address) const {
  std::lock_guard lock(mutex_);
  const auto permit = permits_.find(secret);
  if (permit == permits_.end()) {
    return Status(StatusCode::protocol_error, "it does not know this job's secret");
  }
  const std::set<std::string>& addresses = permit->second.addresses;
  if (addresses.empty()) return false;
  if (addresses.contains(address)) return true;
  return Status(StatusCode::protocol_error, address, " is no address of the job");
}

size_t RelayService::max_strangers() const {
  std::lock_guard lock(mutex_);
  size_t max = kMaxStrangers;
  for (const auto& [_, permit] : permits_) max += kExpectedPerAddress * permit.addresses.size();
  return max;
}

// --- the thread ---

void RelayService::run() {
  Deadline end;
  for (;;) {
    if (stopping_.load() && end.is_never()) end = Deadline::after_s(kLingerS);
    if (!end.is_never() && (guests_.empty() || end.expired())) break;
    const Status status = without_exceptions([this] {
      take_step();
      return Status();
    });
    if (!status.ok()) drop_all(status);
    if (!busy_.empty()) continue;
    const bool is_idle =
        guests_.empty() && waiting_listeners_.empty() && !has_missed_events_ && end.is_never();
    loop_.sleep(is_idle ? -1 : kTickMs, [&] { return stopping_.load() && end.is_never(); });
  }
  guests_.clear();
}

void RelayService::take_step() {
  if (std::exchange(has_missed_events_, false)) {
    const size_t num_listeners = this->num_listeners();
    for (uint32_t listener = 0; listener < num_listeners; ++listener) accept_all(listener);
  }
  loop_.look();
  for (const uint32_t id : std::exchange(busy_, {})) advance(id);
  const int64_t now = now_ns();
  if (now < next_tick_ns_) return;
  // Was this process stopped, the time says nothing of the others.
  const bool is_late = now - next_tick_ns_ > kStallNs;
  next_tick_ns_ = now + kTickMs * kNsPerMs;
  if (!is_late) tick();
}

// Without memory, say. The ends of the connections find other ways, or try again.
void RelayService::drop_all(const Status& reason) {
  log_error("this process ends the connections that it relays: ", reason.message());
  guests_.clear();
  busy_.clear();
  has_missed_events_ = true;
}

size_t RelayService::num_listeners() const {
  std::lock_guard lock(mutex_);
  return listeners_.size();
}

Result<UniqueFd> RelayService::accept(uint32_t listener) {
  std::lock_guard lock(mutex_);
  if (listener >= listeners_.size()) return UniqueFd();
  return accept_from(listeners_[listener].get());
}

void RelayService::accept_all(uint32_t listener) {
  for (;;) {
    Result<UniqueFd> fd = accept(listener);
    if (!fd.ok()) waiting_listeners_.insert(listener);
    if (!fd.ok() || !fd->valid()) return;
    drop_oldest_stranger();
    const uint32_t id = next_id_++ % (UINT32_MAX / kEnds);
    const int watched = fd->get();
    guests_[id] = std::make_unique<Guest>(std::move(*fd), *this, id);
    if (loop_.watch(watched, guest_source_, kEnds * id, true).ok()) {
      advance(id);
    } else {
      guests_.erase(id);
    }
  }
}

// If there are too many of them.
void RelayService::drop_oldest_stranger() {
  const auto is_stranger = [](const auto& item) { return item.second->is_stranger(); };
  const auto num_strangers = std::count_if(guests_.begin(), guests_.end(), is_stranger);
  if (static_cast<size_t>(num_strangers) < max_strangers()) return;
  guests_.erase(std::find_if(guests_.begin(), guests_.end(), is_stranger));
}

void RelayService::advance(uint32_t id) {
  const auto it = guests_.find(id);
  if (it == guests_.end()) return;
  switch (it->second->advance()) {
    case Guest::Progress::waiting: break;
    case Guest::Progress::busy: busy_.insert(id); break;
    case Guest::Progress::over: guests_.erase(it); break;
  }
}

void RelayService::tick() {
  const int64_t now = now_ns();
  std::erase_if(guests_, [now](const auto& item) {
    return item.second->check(now) == Guest::Progress::over;
  });
  for (const uint32_t listener : std::exchange(waiting_listeners_, {})) accept_all(listener);
}

}  // namespace dmlcomm::transport::tcp
