#include "transport/admission.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/str_cat.h"
#include "transport/socket.h"

namespace dmlcomm::transport {
namespace {

// Strangers that connect and say nothing are dropped after this time. A rank says something before,
// also if hundreds wait for a core.
constexpr double kStrangerTimeoutS = 30;
// When more than this wait beside the ranks of the job, the oldest is dropped at once that has not
// yet spoken as a rank of the job; else the oldest.
constexpr size_t kMaxStrangers = 64;

}  // namespace

Admission::Admission(const Job& job, EventLoop& loop, Owner& owner, size_t max_expected)
    : job_(job),
      loop_(loop),
      owner_(owner),
      max_expected_(max_expected),
      nonce_(static_cast<uint64_t>(now_ns()) * 0x9e3779b97f4a7c15u ^
             static_cast<uint64_t>(getpid())),
      listener_source_(loop.add([this](uint32_t number, auto) { accept_all(number); })),
      handshake_source_(loop.add([this](uint32_t number, auto) { advance(number); })) {}

Status Admission::listen(UniqueFd listener, Transport& transport) {
  const auto number = static_cast<uint32_t>(listeners_.size());
  DMLCOMM_RETURN_IF_ERROR(loop_.watch(listener.get(), listener_source_, number, true));
  listeners_.push_back({std::move(listener), &transport});
  return Status();
}

void Admission::accept_all(uint32_t listener) {
  // An event may come for a listener that was closed since.
  while (listener < listeners_.size()) {
    Transport* const transport = listeners_[listener].transport;
    Result<UniqueFd> fd = accept_from(listeners_[listener].fd.get());
    if (!std::exchange(listeners_[listener].is_short, !fd.ok()) && !fd.ok()) {
      log_warning("connections wait: ", fd.status().message());
    }
    if (!fd.ok() || !fd->valid()) return;
    if (!transport->accepts(fd->get())) continue;
    Attempt incoming;
    incoming.fd = std::move(*fd);
    auto handshake =
        std::make_unique<Handshake>(std::move(incoming), transport, -1, 0, "incoming connection",
                                    Deadline::after_s(kStrangerTimeoutS));
    handshake->begin(own_hello(), job_.key, {});
    add(std::move(handshake));
  }
}

void Admission::enter(Attempt attempt, Transport& transport, int peer, size_t lane,
                      std::string what, uint64_t connection, double timeout_s) {
  auto handshake = std::make_unique<Handshake>(std::move(attempt), &transport, peer, lane,
                                               std::move(what), Deadline::after_s(timeout_s));
  Hello hello = own_hello();
  hello.lane = static_cast<uint16_t>(lane);
  hello.connection = connection;
  handshake->begin(hello, job_.key, transport.descriptors());
  add(std::move(handshake));
}

Hello Admission::own_hello() const {
  Hello hello;
  hello.challenge = random_challenge();
  hello.rank = static_cast<uint32_t>(job_.rank);
  hello.num_ranks = static_cast<uint32_t>(job_.num_ranks);
  hello.pid = static_cast<uint32_t>(getpid());
  hello.checks_payloads = job_.config.checksum == Checksum::none ? 0 : 1;
  hello.nonce_address = reinterpret_cast<uintptr_t>(&nonce_);
  hello.nonce = nonce_;
  return hello;
}

void Admission::add(std::unique_ptr<Handshake> handshake) {
  if (handshakes_.size() >= kMaxStrangers + max_expected_) {
    const auto oldest = [this](bool has_spoken) {
      return std::find_if(handshakes_.begin(), handshakes_.end(), [&](const auto& item) {
        return !item.second->outgoing() && item.second->has_heard_rank() == has_spoken;
      });
    };
    auto dropped = oldest(false);
    if (dropped == handshakes_.end()) dropped = oldest(true);
    if (dropped != handshakes_.end()) handshakes_.erase(dropped);
  }
  const uint32_t id = next_id_++;
  const int fd = handshake->fd();
  handshakes_[id] = std::move(handshake);
  if (Status status = loop_.watch(fd, handshake_source_, id, true); !status.ok()) {
    log_warning("cannot watch a connection: ", status.message());
  }
  advance(id);
}

void Admission::advance(uint32_t id) {
  const auto it = handshakes_.find(id);
  if (it == handshakes_.end()) return;
  const Result<Handshake::Progress> progress = it->second->advance(job_.key);
  if (progress.ok() && *progress != Handshake::Progress::received) return;
  const std::unique_ptr<Handshake> handshake = std::move(it->second);
  handshakes_.erase(it);
  loop_.forget(handshake->fd());
  if (progress.ok()) {
    complete(*handshake);
  } else {
    fail(*handshake, progress.status());
  }
}

void Admission::fail(const Handshake& handshake, const Status& status) {
  if (!handshake.outgoing()) {
    return log_info("dropped a connection from a stranger: ", status.message());
  }
  const bool refused = !handshake.connected() && status.code() == StatusCode::peer_lost;
  owner_.failed(handshake.peer(), handshake.lane(),
                Status(status.code(), str_cat(handshake.what(), ": ", status.message())), refused);
}

void Admission::complete(Handshake& handshake) {
  const Hello& hello = handshake.received();
  const int peer = static_cast<int>(hello.rank);
  if (handshake.outgoing()) {
    if (peer != handshake.peer() || hello.lane != handshake.lane()) {
      return fail(handshake, Status(StatusCode::io_error, "another rank or lane has answered"));
    }
    if (hello.kind == kHelloWelcome) return owner_.admitted(handshake);
    return owner_.yielded(peer, handshake.lane());
  }
  const bool plausible = hello.num_ranks == static_cast<uint32_t>(job_.num_ranks) &&
                         hello.rank < hello.num_ranks && peer != job_.rank;
  if (!plausible) return;
  const Owner::Answer answer = owner_.answer(handshake);
  if (answer == Owner::Answer::none) return;
  const bool is_welcome = answer == Owner::Answer::welcome;
  Hello reply = own_hello();
  reply.kind = is_welcome ? kHelloWelcome : kHelloYield;
  reply.lane = hello.lane;
  reply.connection = hello.connection;
  handshake.answer(reply, job_.key, handshake.transport()->descriptors());
  // A hello fits into the empty buffer of a fresh connection.
  if (!handshake.advance(job_.key).ok() || !is_welcome) return;
  std::erase_if(handshakes_, [&](const auto& item) {
    return item.second->peer() == peer && item.second->lane() == hello.lane;
  });
  owner_.admitted(handshake);
}

void Admission::tick() {
  for (uint32_t listener = 0; listener < listeners_.size(); ++listener) {
    if (listeners_[listener].is_short) accept_all(listener);
  }
  std::vector<uint32_t> expired;
  for (const auto& [id, handshake] : handshakes_) {
    if (handshake->expired()) expired.push_back(id);
  }
  for (uint32_t id : expired) {
    const auto it = handshakes_.find(id);
    if (it == handshakes_.end()) continue;  // went with the failure of another one
    const std::unique_ptr<Handshake> handshake = std::move(it->second);
    handshakes_.erase(it);
    fail(*handshake,
         Status(StatusCode::io_error,
                handshake->connected() ? "no answer in time" : "no connection in time"));
  }
}

void Admission::close() {
  handshakes_.clear();
  listeners_.clear();
}

}  // namespace dmlcomm::transport
