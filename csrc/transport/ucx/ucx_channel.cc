#include "transport/ucx/ucx_channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "transport/tcp/flow.h"

namespace dmlcomm::transport::ucx {
namespace {

// Small messages are bounded by this, large ones by the window.
constexpr size_t kMostUnread = 64;
// Of a new sample of the rate. Single ones tell when threads of both ends had a core.
constexpr double kSampleWeight = 1.0 / 8;

void send_byte(int socket) {
  const char byte = 0;
  // A full socket has bytes on their way, and a broken one is seen by its end.
  (void)!send(socket, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

UcxChannel::UcxChannel(UniqueFd socket, UcxRail& rail, uint64_t key, size_t window_bytes,
                       std::string description)
    : socket_(std::move(socket)),
      rail_(rail),
      key_(key),
      window_bytes_(window_bytes),
      description_(std::move(description)) {}

UcxChannel::~UcxChannel() {
  rail_.remove(key_);
  for (const Arrival& arrival : arrivals_) rail_.release(arrival);
}

Status UcxChannel::connect(const std::string& address) {
  DMLCOMM_RETURN_IF_ERROR(rail_.add(key_, *this, address));
  send_byte(socket_.get());
  return Status();
}

Status UcxChannel::lost(const char* what) const {
  return Status(StatusCode::peer_lost, what, description_, ": ", error_);
}

// --- sending ---

bool UcxChannel::has_room() const {
  return unread_bytes_ < window_bytes_ && unread_.size() < kMostUnread;
}

bool UcxChannel::maybe_writable() const {
  return !error_.empty() || (peer_is_there_ && has_room());
}

Result<size_t> UcxChannel::write(const iovec* parts, int num_parts) {
  size_t total = 0;
  Slot* slot = nullptr;
  for (int i = 0; i < num_parts && peer_is_there_; ++i) {
    const auto* from = static_cast<const std::byte*>(parts[i].iov_base);
    size_t left = parts[i].iov_len;
    while (left > 0 && error_.empty()) {
      if (slot == nullptr && !has_room()) return total;
      if (slot == nullptr) slot = rail_.take_slot(key_);
      const size_t bytes = std::min(left, kSlotBytes - slot->bytes);
      std::memcpy(slot->memory.get() + slot->bytes, from, bytes);
      slot->bytes += bytes;
      from += bytes;
      left -= bytes;
      total += bytes;
      if (slot->bytes == kSlotBytes) send(std::exchange(slot, nullptr));
    }
  }
  if (slot != nullptr) send(slot);
  if (!error_.empty()) return lost("write to ");
  return total;
}

void UcxChannel::send(Slot* slot) {
  const int64_t now = now_ns();
  if (unread_.empty()) busy_since_ns_ = now;
  unread_.push_back({slot->bytes, now, read_bytes_, false});
  unread_bytes_ += slot->bytes;
  unread_.back().fills_window = !has_room();
  slot->header.number = num_sent_++;
  rail_.send(slot);
}

// Counts may overtake each other.
void UcxChannel::messages_were_read(uint64_t count) {
  if (count > num_sent_) return failed("the peer has read more than was sent");
  Unread last;
  while (!unread_.empty() && num_sent_ - unread_.size() < count) {
    last = unread_.front();
    unread_bytes_ -= last.bytes;
    read_bytes_ += last.bytes;
    unread_.pop_front();
    if (unread_.empty()) busy_ns_ += now_ns() - busy_since_ns_;
  }
  if (last.bytes > 0) take_sample(last);
}

// What the peer has read while the message was on its way, as kernels do for TCP. If there was room
// for more meanwhile, that is what there was to send, and the channel carries at least so much.
void UcxChannel::take_sample(const Unread& read) {
  const auto duration_ns = static_cast<double>(std::max<int64_t>(now_ns() - read.sent_ns, 1));
  const double sample = static_cast<double>(read_bytes_ - read.read_before) * kNsPerS / duration_ns;
  if (!read.fills_window && sample <= bytes_per_second_) return;
  const double weight = bytes_per_second_ > 0 ? kSampleWeight : 1;
  bytes_per_second_ += weight * (sample - bytes_per_second_);
}

// Bytes of messages count when the peer has read them. Those on the socket tell of the way, also
// while the peer is stopped, or busy.
Channel::Flow UcxChannel::flow() const {
  Flow flow = tcp::flow_of(socket_.get(), window_bytes_);
  if (!unread_.empty() && !flow.some_on_the_way) send_byte(socket_.get());
  // A peer that has ended its side reads nothing any more that it needs.
  const bool may_arrive = !peer_is_gone_ && error_.empty();
  flow.some_on_the_way = may_arrive && (!unread_.empty() || flow.some_on_the_way);
  flow.confirmed_bytes += read_bytes_;
  const int64_t busy_ns = busy_ns_ + (unread_.empty() ? 0 : now_ns() - busy_since_ns_);
  flow.busy_us = static_cast<uint64_t>(busy_ns / kNsPerUs);
  flow.queued_bytes = unread_bytes_;
  flow.most_queued_bytes = window_bytes_;
  flow.bytes_per_second = bytes_per_second_;
  return flow;
}

// --- receiving ---

Arrival* UcxChannel::arrival_of(uint64_t number) {
  const uint64_t index = number - num_read_;
  if (index >= kMostUnread) return nullptr;
  if (index >= arrivals_.size()) arrivals_.resize(index + 1);
  return &arrivals_[index];
}

bool UcxChannel::message_began(uint64_t number, const Arrival& arrival) {
  Arrival* const place = arrival_of(number);
  if (place == nullptr || place->data != nullptr) {
    failed(str_cat("message ", number, " came, but ", num_read_, " is the next"));
    return false;
  }
  *place = arrival;
  return true;
}

void UcxChannel::message_complete(uint64_t number) {
  if (Arrival* const arrival = arrival_of(number)) arrival->is_complete = true;
}

// Messages before it can be read.
void UcxChannel::message_failed(uint64_t number, const std::string& why) {
  if (Arrival* const arrival = arrival_of(number)) *arrival = {};
  failed(why);
}

bool UcxChannel::maybe_readable() const {
  return has_arrived() || peer_is_gone_ || !error_.empty();
}

Result<size_t> UcxChannel::read(const iovec* parts, int num_parts) {
  size_t total = 0;
  for (int i = 0; i < num_parts; ++i) {
    auto* to = static_cast<std::byte*>(parts[i].iov_base);
    size_t left = parts[i].iov_len;
    while (left > 0 && has_arrived()) {
      const Arrival& arrival = arrivals_.front();
      const size_t bytes = std::min(left, arrival.bytes - front_read_bytes_);
      std::memcpy(to, arrival.data + front_read_bytes_, bytes);
      front_read_bytes_ += bytes;
      to += bytes;
      left -= bytes;
      total += bytes;
      if (front_read_bytes_ < arrival.bytes) break;
      rail_.release(arrival);
      arrivals_.pop_front();
      front_read_bytes_ = 0;
      ++num_read_;
    }
  }
  if (total > 0) return total;
  if (!error_.empty()) return lost("read from ");
  if (peer_is_gone_) {
    return Status(StatusCode::peer_lost, "it closed the connection; has it ended?");
  }
  return size_t{0};
}

// --- beside the bytes ---

void UcxChannel::settle() {
  if (num_told_ < num_read_ && error_.empty()) {
    Slot* const slot = rail_.take_slot(key_);
    slot->header.number = num_told_ = num_read_;
    rail_.send(slot);
  }
  if (shuts_down_ && unread_.empty()) {
    shuts_down_ = false;
    shutdown(socket_.get(), SHUT_WR);
  }
}

void UcxChannel::failed(const std::string& why) {
  if (error_.empty()) error_ = str_cat("UCX: ", why);
}

void UcxChannel::descriptor_ready(Ready ready) {
  if (!ready.readable) return;
  char bytes[64];
  ssize_t got;
  while ((got = recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
    peer_is_there_ = true;
  }
  const bool may_come = got < 0 && (errno == EAGAIN || errno == EINTR);
  if (!may_come) peer_is_gone_ = true;
}

}  // namespace dmlcomm::transport::ucx
