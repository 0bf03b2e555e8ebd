#include "transport/ucx/ucx_channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "transport/frame.h"
#include "transport/tcp/flow.h"

namespace dmlcomm::transport::ucx {
namespace {

// Small messages are bounded by this, large ones by the window.
constexpr size_t kMostUnread = 64;
// Of a new sample of the rate. Single ones tell when threads of both ends had a core.
constexpr double kSampleWeight = 1.0 / 8;
// A part of so many bytes is worth a round trip instead of copies.
constexpr size_t kLeastLentBytes = 64 * 1024;
// For UCX to end fetches of a closed endpoint. CMA has none under way between calls.
constexpr int64_t kEndLimitNs = 1 * kNsPerS;

// The first byte on the socket, and those that mean nothing.
constexpr char kFetches = 1;
constexpr char kFetchesNot = 2;
constexpr char kSign = 0;

// Of a reason: its code, which is not 0, and the size of its text, low byte first.
struct ReasonHeader {
  uint8_t code = 0;
  uint8_t size[2] = {};
};
static_assert(sizeof(ReasonHeader) == 3 && kMaxReasonBytes <= UINT16_MAX);

// A full socket has bytes on their way, and a broken one is seen by its end.
void send_byte(int socket, char byte) {
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
  let_go();
  for (const Arrival& arrival : arrivals_) rail_.release(arrival);
  for (const Lent& lent : lent_) rail_.give_back(lent.loan);
  rail_.remove(key_);
}

Status UcxChannel::connect(const std::string& address, bool fetches) {
  DMLCOMM_RETURN_IF_ERROR(rail_.add(key_, *this, address));
  send_byte(socket_.get(), fetches ? kFetches : kFetchesNot);
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

// Bytes behind some that are lent wait: a channel takes them in their order.
Result<size_t> UcxChannel::write(const iovec* parts, int num_parts) {
  size_t total = take_back_loans();
  size_t with_ucx = total + lent_bytes_;
  Slot* slot = nullptr;
  for (int i = 0; i < num_parts && peer_is_there_ && error_.empty(); ++i) {
    const size_t before = std::min(with_ucx, parts[i].iov_len);
    with_ucx -= before;
    const size_t left = parts[i].iov_len - before;
    if (left == 0) continue;
    const bool goes_on = before > 0 && !lent_.empty();
    if (!lent_.empty() && !goes_on) break;
    const auto* const from = static_cast<const std::byte*>(parts[i].iov_base) + before;
    const bool is_lent = goes_on || (lends_ && left >= kLeastLentBytes && !checks_payloads());
    if (is_lent && slot != nullptr) send(std::exchange(slot, nullptr));
    const size_t taken = is_lent ? lend(from, left) : copy(from, left, &slot);
    total += is_lent ? take_back_loans() : taken;
    if (taken < left) break;
  }
  if (slot != nullptr) send(slot);
  if (!error_.empty()) return lost("write to ");
  return total;
}

size_t UcxChannel::copy(const std::byte* from, size_t bytes, Slot** slot) {
  size_t done = 0;
  while (done < bytes && error_.empty()) {
    if (*slot == nullptr && !has_room()) break;
    if (*slot == nullptr) *slot = rail_.take_slot(key_);
    const size_t part = std::min(bytes - done, kSlotBytes - (*slot)->bytes);
    std::memcpy((*slot)->memory.get() + (*slot)->bytes, from + done, part);
    (*slot)->bytes += part;
    done += part;
    if ((*slot)->bytes == kSlotBytes) send(std::exchange(*slot, nullptr));
  }
  return done;
}

size_t UcxChannel::lend(const std::byte* from, size_t bytes) {
  size_t done = 0;
  while (done < bytes && error_.empty() && has_room()) {
    const size_t part = std::min(bytes - done, kSlotBytes);
    lent_.push_back({rail_.lend({key_, note_sent(part)}, from + done, part), part});
    lent_bytes_ += part;
    done += part;
  }
  return done;
}

// Of those that are done, the bytes.
size_t UcxChannel::take_back_loans() {
  size_t bytes = 0;
  while (!lent_.empty() && lent_.front().loan->is_done) {
    bytes += lent_.front().bytes;
    rail_.give_back(lent_.front().loan);
    lent_.pop_front();
  }
  lent_bytes_ -= bytes;
  bytes_lent_ += bytes;
  return bytes;
}

void UcxChannel::message_was_fetched(uint64_t number) { fetched_.push_back(number); }

uint64_t UcxChannel::note_sent(size_t bytes) {
  const int64_t now = now_ns();
  if (unread_.empty()) busy_since_ns_ = now;
  unread_.push_back({bytes, now, read_bytes_, false});
  unread_bytes_ += bytes;
  unread_.back().fills_window = !has_room();
  return num_sent_++;
}

void UcxChannel::send(Slot* slot) {
  slot->header.number = note_sent(slot->bytes);
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
  if (!unread_.empty() && !flow.some_on_the_way && !has_told_) send_byte(socket_.get(), kSign);
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
  if (place == nullptr || place->bytes > 0) {
    failed(str_cat("message ", number, " came, but ", num_read_, " is the next"));
    return false;
  }
  *place = arrival;
  if (arrival.offered != nullptr) {
    ++num_offered_;
    is_offered_ = true;
  }
  return true;
}

void UcxChannel::message_confirmed(uint64_t number) {
  if (Arrival* const arrival = arrival_of(number)) arrival->is_confirmed = true;
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
  return has_arrived() || is_offered_ || peer_is_gone_ || !error_.empty();
}

Result<size_t> UcxChannel::read(const iovec* parts, int num_parts) {
  fetch(nullptr, parts[0].iov_len, false);
  return read_arrivals(parts, num_parts);
}

Result<size_t> UcxChannel::read_in_place(std::byte* to, size_t bytes) {
  fetch(to, bytes, true);
  const iovec part{to, bytes};
  return read_arrivals(&part, 1);
}

// Fetches the lent messages of the next `bytes`, straight to `to` if `stays`. It fetches the first
// one in any case, so that a reader with little room goes on.
void UcxChannel::fetch(std::byte* to, size_t bytes, bool stays) {
  is_offered_ = false;
  size_t at = 0;
  for (size_t i = 0; i < arrivals_.size() && num_offered_ > 0 && error_.empty(); ++i) {
    Arrival& arrival = arrivals_[i];
    if (arrival.bytes == 0) return;
    const size_t left = arrival.bytes - (i == 0 ? front_read_bytes_ : 0);
    const bool fits = at + left <= bytes;
    if (i > 0 && !fits) return;
    if (arrival.offered != nullptr) {
      fetch_one(&arrival, num_read_ + i, stays && fits ? to + at : nullptr);
    }
    at += left;
  }
}

// The request may end at once, which comes back to the arrival.
void UcxChannel::fetch_one(Arrival* arrival, uint64_t number, std::byte* place) {
  void* const offered = std::exchange(arrival->offered, nullptr);
  --num_offered_;
  if (place != nullptr) {
    arrival->loan = rail_.fetch_to(place, {key_, number}, offered, arrival->bytes);
    return;
  }
  Slot* const slot = rail_.take_slot(key_);
  slot->header.number = number;
  arrival->slot = slot;
  arrival->data = slot->memory.get();
  rail_.receive(slot, offered, arrival->bytes);
}

Result<size_t> UcxChannel::read_arrivals(const iovec* parts, int num_parts) {
  size_t total = 0;
  for (int i = 0; i < num_parts; ++i) {
    auto* to = static_cast<std::byte*>(parts[i].iov_base);
    size_t left = parts[i].iov_len;
    while (left > 0 && has_arrived()) {
      const Arrival& arrival = arrivals_.front();
      const size_t bytes = std::min(left, arrival.bytes - front_read_bytes_);
      // A message with a loan is in its place already.
      if (arrival.loan == nullptr) std::memcpy(to, arrival.data + front_read_bytes_, bytes);
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

bool UcxChannel::is_fetching_to_places() const {
  return std::ranges::any_of(arrivals_, [](const Arrival& arrival) {
    return arrival.loan != nullptr && !arrival.loan->is_done;
  });
}

// What the peer fetches from now on it does not take as good, since it is not confirmed.
void UcxChannel::let_go() {
  const bool lends =
      std::ranges::any_of(lent_, [](const Lent& lent) { return !lent.loan->is_done; });
  if (!lends && !is_fetching_to_places()) return;
  failed("memory was taken back");
  rail_.end_loans(key_);
  // Not every transport of UCX tells the peer.
  shutdown(socket_.get(), SHUT_WR);
  const int64_t end_ns = now_ns() + kEndLimitNs;
  while (is_fetching_to_places() && now_ns() < end_ns) rail_.progress();
  if (is_fetching_to_places()) log_warning("UCX does not end fetches of ", description_);
}

void UcxChannel::settle() {
  if (!error_.empty()) fetched_.clear();
  for (const uint64_t number : fetched_) {
    Slot* const slot = rail_.take_slot(key_, MessageKind::confirmation);
    slot->header.number = number;
    rail_.send(slot);
  }
  fetched_.clear();
  if (num_told_ < num_read_ && error_.empty()) {
    Slot* const slot = rail_.take_slot(key_, MessageKind::read_count);
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

// Endpoints that are closed by force lose what is under way; the socket does not. Without memory of
// its own: what let_go() has to end may be that there is none.
void UcxChannel::tell(const Status& reason) {
  if (std::exchange(has_told_, true)) return;
  const size_t size = std::min<size_t>(reason.message().size(), kMaxReasonBytes);
  ReasonHeader header{static_cast<uint8_t>(reason.code()),
                      {static_cast<uint8_t>(size % 256), static_cast<uint8_t>(size / 256)}};
  iovec parts[] = {{&header, sizeof(header)}, {const_cast<char*>(reason.message().data()), size}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = std::size(parts);
  (void)!sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

Status UcxChannel::told() {
  descriptor_ready({.readable = true});
  ReasonHeader header;
  if (reason_.size() < sizeof(header)) return Status();
  std::memcpy(&header, reason_.data(), sizeof(header));
  const size_t size = header.size[0] + 256u * header.size[1];
  if (reason_.size() < sizeof(header) + size) return Status();
  return received_status(header.code, reason_.substr(sizeof(header), size));
}

void UcxChannel::descriptor_ready(Ready ready) {
  if (!ready.readable) return;
  char bytes[1024];
  ssize_t got;
  while ((got = recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
    take_beside(std::string_view(bytes, static_cast<size_t>(got)));
  }
  const bool may_come = got < 0 && (errno == EAGAIN || errno == EINTR);
  if (!may_come) peer_is_gone_ = true;
}

void UcxChannel::take_beside(std::string_view bytes) {
  if (!std::exchange(peer_is_there_, true)) {
    lends_ = bytes[0] == kFetches && rail_.has_remote_memory(key_);
    bytes.remove_prefix(1);
  }
  const size_t begin = reason_.empty() ? bytes.find_first_not_of(kSign) : 0;
  if (begin != bytes.npos && reason_.size() < sizeof(ReasonHeader) + kMaxReasonBytes) {
    reason_ += bytes.substr(begin);
  }
}

}  // namespace dmlcomm::transport::ucx
