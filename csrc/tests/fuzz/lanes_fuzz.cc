// Two links of several lanes that a script moves: messages in both directions, receives that are
// posted late, are not ready, or reduce, and lanes that die at any byte on either side and come
// back. The input is the script. At its end everything has to arrive once, in order, with the bytes
// that were sent.

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <list>
#include <string_view>

#include "tests/link_pair.h"

using namespace dmlcomm;             // NOLINT: a fuzz target is one function
using namespace dmlcomm::transport;  // NOLINT

namespace {

using tests::Message;
using tests::Pair;

constexpr size_t kMostMessages = 24;
// Around what is sent at once, and with several parts.
constexpr size_t kSizes[] = {0, 1, 3000, kEagerBytes, kEagerBytes + 1, 140'000};
constexpr uint8_t kTickets[] = {0, 1, 2, 128};

void require(bool holds, std::string_view what) {
  if (holds) return;
  std::cerr << what << '\n';
  std::abort();
}

class Script {
 public:
  Script(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool has_more() const { return size_ > 0; }
  // Less than `bound`.
  size_t next(size_t bound) {
    if (size_ == 0) return 0;
    --size_;
    return *data_++ % bound;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// A message, and its two ends.
struct Transfer {
  Transfer(Tag tag, std::vector<std::byte> bytes, Link& from, Link& to, bool reduces)
      : message(tag, std::move(bytes)), sender(from), receiver(to) {
    if (reduces) message.in.destination = nullptr;
  }

  void post() {
    if (!std::exchange(is_posted, true)) receiver.recv(message.in);
  }
  // Adds up to so many bytes of a reducing receive to what it has.
  void reduce(size_t most) {
    RecvRequest& in = message.in;
    if (in.destination != nullptr || in.window == nullptr || !in.ready) return;
    const size_t in_window = in.window_bytes - in.consumed % in.window_bytes;
    const size_t bytes = std::min({most, in.arrived - in.consumed, in_window});
    if (bytes == 0) return;
    const Result<const std::byte*> data = receiver.fetch(in, in.consumed, bytes, nullptr);
    require(data.ok() && *data != nullptr, "bytes that have arrived cannot be fetched");
    for (size_t i = 0; i < bytes; ++i) message.got[in.consumed + i] ^= (*data)[i];
    receiver.release(in, in.consumed + bytes);
  }

  Message message;
  Link& sender;
  Link& receiver;
  bool is_posted = false;
};

class Play {
 public:
  explicit Play(Script& script)
      : script_(script),
        num_classes_(script.next(3)),
        reconnects_(script.next(2) == 0),
        num_rails_((num_classes_ > 0 || reconnects_ ? 1 : 2) + script.next(3)),
        pair_(num_rails_, 1 + 37 * script.next(256), 1, kAnyRail, nullptr, num_classes_,
              reconnects_) {
    pair_.a.open(1, {});
    pair_.b.open(1, {});
  }

  void run() {
    while (script_.has_more()) step();
    for (Transfer& transfer : transfers_) finish_posting(transfer);
    do {
      for (size_t lane = 0; lane < pair_.a.num_lanes(); ++lane) connect(lane);
      for (Transfer& transfer : transfers_) transfer.reduce(SIZE_MAX);
    } while (pair_.step());
    check();
  }

 private:
  void step() {
    switch (script_.next(8)) {
      case 0: return send();
      case 1: return with_one([](Transfer& transfer) { transfer.post(); });
      case 2: return with_one([this](Transfer& transfer) { make_ready(transfer); });
      case 3: return with_one([this](Transfer& t) { t.reduce(1 + 97 * script_.next(256)); });
      case 4: return lose();
      case 5: return connect(script_.next(pair_.a.num_lanes()));
      case 6: return (void)pair_.a.progress();
      default: return (void)pair_.b.progress();
    }
  }

  void send() {
    if (transfers_.size() == kMostMessages) return;
    const bool is_back = script_.next(2) == 1;
    const bool is_p2p = script_.next(2) == 1;
    const bool reduces = !is_p2p && script_.next(2) == 1;
    const auto index = static_cast<uint32_t>(transfers_.size());
    const Tag tag = is_p2p ? point_to_point_tag(static_cast<uint32_t>(script_.next(2)))
                           : collective_tag(1, 0, index);
    Link& from = is_back ? pair_.b : pair_.a;
    Link& to = is_back ? pair_.a : pair_.b;
    std::vector<std::byte> data(kSizes[script_.next(std::size(kSizes))]);
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(31 * i + 7 * index);
    Transfer& transfer = transfers_.emplace_back(tag, std::move(data), from, to, reduces);
    if (num_classes_ > 0) {
      transfer.message.out.order.ticket = kTickets[script_.next(std::size(kTickets))];
    }
    transfer.message.in.ready = is_p2p || reduces || script_.next(2) == 1;
    // Collectives post what they receive before they let anything come, and messages of one tag
    // meet their receives in their order.
    if (!is_p2p) transfer.post();
    from.send(transfer.message.out);
  }

  // The receives of a tag are posted in the order of its messages.
  template <typename Call>
  void with_one(Call call) {
    if (transfers_.empty()) return;
    auto at = std::next(transfers_.begin(), script_.next(transfers_.size()));
    const auto comes_before = [&](const Transfer& one) {
      return !one.is_posted && &one.receiver == &at->receiver &&
             one.message.in.tag == at->message.in.tag;
    };
    call(*std::find_if(transfers_.begin(), at, comes_before));
  }

  void make_ready(Transfer& transfer) {
    if (!transfer.is_posted || transfer.message.in.ready) return;
    transfer.receiver.make_ready(transfer.message.in);
  }

  void finish_posting(Transfer& transfer) {
    transfer.post();
    make_ready(transfer);
  }

  void lose() {
    Link& loser = script_.next(2) == 1 ? pair_.a : pair_.b;
    loser.lose_lane(script_.next(pair_.a.num_lanes()), "fuzz");
  }

  void connect(size_t lane) {
    if (pair_.a.channel(lane) == nullptr && pair_.b.channel(lane) == nullptr) pair_.connect(lane);
  }

  void check() {
    for (const tests::Notes* notes : {&pair_.notes_a, &pair_.notes_b}) {
      require(notes->failure.ok(), notes->failure.to_string());
    }
    require(!pair_.a.has_outstanding() && !pair_.b.has_outstanding(), "something has not come");
    const int num_sent = pair_.notes_a.num_sent + pair_.notes_b.num_sent;
    require(num_sent == static_cast<int>(transfers_.size()), "a send has ended twice, or never");
    for (const Transfer& transfer : transfers_) {
      require(transfer.message.got == transfer.message.data, "other bytes have come");
    }
  }

  Script& script_;
  const size_t num_classes_;
  const bool reconnects_;
  const size_t num_rails_;
  Pair pair_;
  std::list<Transfer> transfers_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Script script(data, size);
  Play(script).run();
  return 0;
}
