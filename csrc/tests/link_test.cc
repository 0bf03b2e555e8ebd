// Link over a pipe in memory, with channels that move one byte at a time or many.

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "tests/memory_channel.h"
#include "tests/notes.h"
#include "transport/link.h"

namespace dmlcomm::transport {
namespace {

using tests::MemoryChannel;
using tests::Notes;

constexpr uint64_t kJob = 42;

struct Case {
  size_t max_bytes;
  bool pulls;
};

class LinkTest : public testing::TestWithParam<Case> {
 protected:
  LinkTest()
      : a_(LinkOptions{0, 1, kJob, 1, &notes_a_, &counters_}),
        b_(LinkOptions{1, 0, kJob, 1, &notes_b_, &counters_}) {}

  void connect() {
    auto to_b = std::make_shared<MemoryChannel::Pipe>();
    auto to_a = std::make_shared<MemoryChannel::Pipe>();
    const auto [max_bytes, pulls] = GetParam();
    a_.attach(0, std::make_unique<MemoryChannel>(to_b, to_a, max_bytes, pulls));
    b_.attach(0, std::make_unique<MemoryChannel>(to_a, to_b, max_bytes, pulls));
  }

  void settle() {
    bool moved = true;
    while (moved) {
      moved = a_.progress();
      moved = b_.progress() || moved;
      moved = a_.flush_last_words() || moved;
      moved = b_.flush_last_words() || moved;
    }
  }

  SendRequest sending(Tag tag, const std::vector<std::byte>& data) {
    SendRequest request;
    request.tag = tag;
    request.data = data.data();
    request.bytes = data.size();
    return request;
  }
  RecvRequest receiving(Tag tag, std::vector<std::byte>& data) {
    RecvRequest request;
    request.tag = tag;
    request.destination = data.data();
    request.bytes = data.size();
    return request;
  }
  // What the engine does with an offered message.
  void take_offer(Link& link, RecvRequest& request) {
    if (!request.offered) return;
    bool moved = false;
    bool complete = false;
    ASSERT_TRUE(link.take_offer(request, &moved, &complete).ok());
    ASSERT_TRUE(complete);  // no message of these tests is so large that it takes several turns
  }

  RailCounters counters_;
  Notes notes_a_;
  Notes notes_b_;
  Link a_;
  Link b_;
};

std::vector<std::byte> pattern(size_t bytes, unsigned seed = 1) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>((i * 31 + seed * 7) & 0xff);
  return data;
}

const std::vector<size_t> kSizes = {1,           kOfferBytes,     kOfferBytes + 1,
                                    kEagerBytes, kEagerBytes + 1, 100'000};

TEST_P(LinkTest, PostedMessagesArrive) {
  connect();
  for (size_t bytes : kSizes) {
    const auto data = pattern(bytes);
    std::vector<std::byte> got(bytes);
    RecvRequest in = receiving(collective_tag(1, 0, 0), got);
    SendRequest out = sending(collective_tag(1, 0, 0), data);
    b_.recv(in);
    b_.open(1, {});
    a_.send(out);
    settle();
    take_offer(b_, in);
    settle();
    EXPECT_EQ(got, data) << bytes;
    EXPECT_FALSE(a_.has_outstanding());
    EXPECT_FALSE(b_.has_outstanding());
  }
  EXPECT_EQ(notes_a_.num_sent, static_cast<int>(kSizes.size()));
  EXPECT_EQ(notes_b_.num_arrived, static_cast<int>(kSizes.size()));
}

TEST_P(LinkTest, MessagesOfOneTagMeetTheirReceivesInOrderWhateverTheirTickets) {
  const std::vector<size_t> sizes = {3, 100'000, kOfferBytes + 1, 20, 100'000, 5};
  std::list<std::vector<std::byte>> data, got;
  std::list<SendRequest> out;
  std::list<RecvRequest> in;
  for (size_t i = 0; i < sizes.size(); ++i) {
    data.push_back(pattern(sizes[i], static_cast<unsigned>(i)));
    got.emplace_back(sizes[i]);
    out.push_back(sending(point_to_point_tag(3), data.back()));
    out.back().order.ticket = static_cast<uint8_t>(200 - 30 * i);
    a_.send(out.back());  // waits for the connection, and is queued with the others
    in.push_back(receiving(point_to_point_tag(3), got.back()));
    b_.recv(in.back());
  }
  connect();
  settle();
  for (RecvRequest& request : in) take_offer(b_, request);
  settle();
  EXPECT_EQ(got, data);  // or their sizes would not fit
  EXPECT_TRUE(notes_b_.failure.ok());
}

TEST_P(LinkTest, MessagesThatComeFirstWaitForTheirReceive) {
  connect();
  for (size_t bytes : kSizes) {
    const auto data = pattern(bytes);
    std::vector<std::byte> got(bytes);
    SendRequest out = sending(point_to_point_tag(3), data);
    a_.send(out);
    settle();
    EXPECT_NE(b_.oldest_unexpected(point_to_point_tag(3)), 0u);
    RecvRequest in = receiving(point_to_point_tag(3), got);
    b_.recv(in);
    settle();
    take_offer(b_, in);
    settle();
    EXPECT_EQ(got, data) << bytes;
    EXPECT_EQ(in.source, 0);
    EXPECT_FALSE(a_.has_outstanding());
  }
}

TEST_P(LinkTest, SmallMessagesLeaveAndArriveTogether) {
  connect();
  const bool in_one = GetParam().max_bytes >= 4096;
  const auto data = pattern(200);
  std::vector<SendRequest> out(4, sending(point_to_point_tag(3), data));
  std::vector<std::byte> got(data.size());
  std::vector<RecvRequest> in(4, receiving(point_to_point_tag(3), got));
  auto& writer = static_cast<MemoryChannel&>(*a_.channel());
  auto& reader = static_cast<MemoryChannel&>(*b_.channel());
  for (SendRequest& request : out) a_.send(request);
  EXPECT_EQ(writer.num_writes, 0);
  a_.flush_deferred();
  if (in_one) {
    EXPECT_EQ(writer.num_writes, 1);
    EXPECT_EQ(notes_a_.num_sent, 4);
  }
  for (RecvRequest& request : in) b_.recv(request);
  settle();
  EXPECT_EQ(notes_b_.num_arrived, 4);
  EXPECT_EQ(got, data);
  if (in_one) {
    EXPECT_LE(reader.num_reads, 2);  // the second finds nothing
  }
}

TEST_P(LinkTest, WhatWasReadAheadWaitsForRoom) {
  connect();
  const auto data = pattern(300);
  SendRequest first = sending(point_to_point_tag(3), data);
  SendRequest second = sending(point_to_point_tag(4), data);
  std::vector<std::byte> got_first(300);
  std::vector<std::byte> got_second(300);
  RecvRequest in_first = receiving(point_to_point_tag(3), got_first);
  RecvRequest in_second = receiving(point_to_point_tag(4), got_second);
  in_first.ready = false;
  b_.recv(in_first);
  b_.recv(in_second);
  a_.send(first);
  a_.send(second);
  settle();
  EXPECT_EQ(notes_b_.num_arrived, 0);  // both, or one behind the other, are held back
  b_.make_ready(in_first);
  settle();
  EXPECT_EQ(notes_b_.num_arrived, 2);
  EXPECT_EQ(got_first, data);
  EXPECT_EQ(got_second, data);
}

TEST_P(LinkTest, WhatIsSentBeforeTheConnectionFlowsAfterIt) {
  const auto data = pattern(500);
  std::vector<std::byte> got(500);
  SendRequest out = sending(collective_tag(1, 0, 0), data);
  RecvRequest in = receiving(collective_tag(1, 0, 0), got);
  a_.send(out);
  b_.recv(in);
  EXPECT_TRUE(a_.has_outstanding());
  connect();
  settle();
  EXPECT_EQ(got, data);
}

TEST_P(LinkTest, AnUnreadyDestinationIsNotTouched) {
  connect();
  const auto data = pattern(1000);
  std::vector<std::byte> got(1000);
  RecvRequest in = receiving(collective_tag(1, 0, 0), got);
  in.ready = false;
  SendRequest out = sending(collective_tag(1, 0, 0), data);
  a_.send(out);
  settle();
  b_.recv(in);
  settle();
  EXPECT_EQ(got, std::vector<std::byte>(1000));
  b_.make_ready(in);
  settle();
  EXPECT_EQ(got, data);
}

struct LargeAndSmall {
  const std::vector<std::byte> large = pattern(200'000);
  const std::vector<std::byte> small = pattern(10, 2);
  std::vector<std::byte> got_large = std::vector<std::byte>(large.size());
  std::vector<std::byte> got_small = std::vector<std::byte>(small.size());
};

TEST_P(LinkTest, LargeDataWaitsForOpenAndLetsOthersPass) {
  if (GetParam().pulls) GTEST_SKIP() << "offers wait by themselves";
  connect();
  LargeAndSmall data;
  SendRequest out_large = sending(collective_tag(1, 0, 0), data.large);
  SendRequest out_small = sending(point_to_point_tag(1), data.small);
  a_.send(out_large);
  a_.send(out_small);
  RecvRequest in_small = receiving(point_to_point_tag(1), data.got_small);
  b_.recv(in_small);
  settle();
  EXPECT_EQ(data.got_small, data.small);
  RecvRequest in_large = receiving(collective_tag(1, 0, 0), data.got_large);
  b_.recv(in_large);
  b_.open(1, {});
  settle();
  EXPECT_EQ(data.got_large, data.large);
}

TEST_P(LinkTest, DataOfAnOperationOpensItAsWell) {
  if (GetParam().pulls) GTEST_SKIP() << "offers wait by themselves";
  connect();
  LargeAndSmall data;
  SendRequest out_large = sending(collective_tag(2, 0, 0), data.large);
  RecvRequest in_large = receiving(collective_tag(2, 0, 0), data.got_large);
  RecvRequest in_small = receiving(collective_tag(2, 0, 0), data.got_small);
  b_.recv(in_large);
  a_.recv(in_small);
  a_.send(out_large);
  settle();
  EXPECT_NE(data.got_large, data.large);
  SendRequest out_small = sending(collective_tag(2, 0, 0), data.small);
  b_.send(out_small);
  settle();
  EXPECT_EQ(data.got_small, data.small);
  EXPECT_EQ(data.got_large, data.large);
}

// a_ sends as much as may leave; what has not left has no byte at b_.
TEST_P(LinkTest, EachCollectiveIsOpenedForItself) {
  if (GetParam().pulls) GTEST_SKIP() << "offers wait by themselves";
  connect();
  const auto data = pattern(100'000);
  // The numbers of the last two are 2^32 and 2^32 + 1.
  notes_a_.oldest = notes_b_.oldest = (uint64_t{1} << 32) - 2;
  const std::vector<uint32_t> numbers = {0xfffffffe, 0xffffffff, 0, 1};
  std::list<SendRequest> out;
  std::list<RecvRequest> in;
  std::vector<std::vector<std::byte>> got(numbers.size(), std::vector<std::byte>(data.size()));
  for (size_t i = 0; i < numbers.size(); ++i) {
    in.push_back(receiving(collective_tag(numbers[i], 0, 0), got[i]));
    b_.recv(in.back());
    out.push_back(sending(collective_tag(numbers[i], 0, 0), data));
    a_.send(out.back());
  }
  settle();
  for (const size_t opened : {2u, 0u, 3u, 1u}) {
    EXPECT_NE(got[opened], data);
    b_.open(numbers[opened], {});
    settle();
    EXPECT_EQ(got[opened], data);
  }
  EXPECT_EQ(notes_b_.num_arrived, 4);
}

TEST_P(LinkTest, EarlyMessagesBeyondTheBoundAreAnnounced) {
  if (GetParam().pulls || GetParam().max_bytes < 1000) GTEST_SKIP() << "no data, or too slow";
  connect();
  const auto data = pattern(kEagerBytes);
  constexpr uint32_t kNum = 400;
  std::vector<SendRequest> out;
  for (uint32_t i = 0; i < kNum; ++i) out.push_back(sending(point_to_point_tag(i), data));
  for (SendRequest& request : out) a_.send(request);
  settle();
  const auto at_once = static_cast<uint32_t>(kMaxUnexpectedBytes / (kEagerBytes + 256));
  EXPECT_EQ(notes_a_.num_sent, static_cast<int>(at_once));
  for (uint32_t i = kNum; i-- > 0;) {
    std::vector<std::byte> got(data.size());
    RecvRequest in = receiving(point_to_point_tag(i), got);
    b_.recv(in);
    settle();
    ASSERT_EQ(got, data) << i;
  }
  EXPECT_FALSE(a_.has_outstanding());
  // The bound is free again.
  std::vector<std::byte> got(data.size());
  SendRequest again = sending(point_to_point_tag(1), data);
  a_.send(again);
  settle();
  EXPECT_EQ(notes_a_.num_sent, static_cast<int>(kNum) + 1);
}

TEST_P(LinkTest, AnnouncedMessagesKeepTheirPlaceAmongThoseOfTheirTag) {
  if (GetParam().pulls || GetParam().max_bytes < 1000) GTEST_SKIP() << "no data, or too slow";
  connect();
  const auto filling = pattern(kEagerBytes);
  std::vector<SendRequest> fill(kMaxUnexpectedBytes / (kEagerBytes + kUnexpectedRecordBytes),
                                sending(point_to_point_tag(1), filling));
  for (SendRequest& request : fill) a_.send(request);
  const auto first = pattern(kEagerBytes, 2);
  const auto second = pattern(kEagerBytes, 3);
  SendRequest announced = sending(point_to_point_tag(2), first);
  a_.send(announced);
  settle();
  for (size_t i = 0; i < fill.size(); ++i) {
    std::vector<std::byte> got(kEagerBytes);
    RecvRequest in = receiving(point_to_point_tag(1), got);
    b_.recv(in);
    settle();
  }
  SendRequest at_once = sending(point_to_point_tag(2), second);
  a_.send(at_once);
  settle();
  EXPECT_EQ(notes_a_.num_sent, static_cast<int>(fill.size()) + 1) << "the announced one waits";
  std::vector<std::byte> got_first(kEagerBytes);
  std::vector<std::byte> got_second(kEagerBytes);
  RecvRequest in_first = receiving(point_to_point_tag(2), got_first);
  RecvRequest in_second = receiving(point_to_point_tag(2), got_second);
  b_.recv(in_first);
  b_.recv(in_second);
  settle();
  EXPECT_EQ(got_first, first);
  EXPECT_EQ(got_second, second);
}

TEST_P(LinkTest, EmptyMessagesCountForTheBound) {
  if (GetParam().pulls || GetParam().max_bytes < 1000) GTEST_SKIP() << "no data, or too slow";
  connect();
  std::vector<SendRequest> out(kMaxUnexpectedBytes / kUnexpectedRecordBytes + 10,
                               sending(point_to_point_tag(7), {}));
  for (SendRequest& request : out) a_.send(request);
  settle();
  EXPECT_EQ(notes_a_.num_sent, static_cast<int>(out.size()) - 10);
  std::vector<RecvRequest> in(out.size());
  for (RecvRequest& request : in) {
    request.tag = point_to_point_tag(7);
    b_.recv(request);
  }
  settle();
  EXPECT_EQ(notes_b_.num_arrived, static_cast<int>(out.size()));
  EXPECT_FALSE(a_.has_outstanding());
}

TEST_P(LinkTest, OfSeveralOperationsNoneHoldsTheOthersBack) {
  connect();
  const auto data = pattern(300'000);
  RecvRequest streamed;
  streamed.tag = collective_tag(1, 0, 0);
  streamed.bytes = data.size();
  std::vector<std::byte> got_unready(data.size());
  RecvRequest unready = receiving(collective_tag(2, 0, 0), got_unready);
  unready.ready = false;
  std::vector<std::byte> got(data.size());
  RecvRequest in = receiving(collective_tag(3, 0, 0), got);
  std::list<SendRequest> out;
  for (RecvRequest* request : {&streamed, &unready, &in}) {
    b_.recv(*request);
    b_.open(sequence_of(request->tag), {});
    out.push_back(sending(request->tag, data));
    a_.send(out.back());
  }
  settle();
  const size_t taken =
      10'000;  // the window, if there is one, is full, and what is left in it wraps
  std::vector<std::byte> got_streamed(data.size());
  const auto take = [&](size_t from, size_t bytes) {
    const auto piece = b_.fetch(streamed, from, bytes, got_streamed.data() + from);
    ASSERT_TRUE(piece.ok());
    if (*piece != got_streamed.data() + from) {
      std::copy_n(*piece, bytes, got_streamed.data() + from);
    }
    b_.release(streamed, from + bytes);
  };
  take(0, taken);
  settle();
  if (!GetParam().pulls) {
    EXPECT_NE(got, data) << "the collective has the lane for itself";
  }
  notes_b_.several = true;
  settle();
  take_offer(b_, in);
  settle();
  EXPECT_EQ(got, data) << "nobody has taken what came before";
  take(taken, data.size() - taken);
  EXPECT_EQ(got_streamed, data);
  EXPECT_EQ(got_unready, std::vector<std::byte>(data.size()));
  b_.make_ready(unready);
  settle();
  take_offer(b_, unready);
  EXPECT_EQ(got_unready, data);
}

TEST_P(LinkTest, AStreamedMessagePassesThroughItsWindow) {
  connect();
  const auto data = pattern(300'000);
  RecvRequest in;
  in.tag = collective_tag(1, 0, 0);
  in.bytes = data.size();
  SendRequest out = sending(in.tag, data);
  b_.recv(in);
  b_.open(1, {});
  a_.send(out);
  std::vector<std::byte> got;
  std::vector<std::byte> scratch(16 * 1024);
  while (got.size() < data.size()) {
    settle();
    const size_t bytes = std::min(scratch.size(), data.size() - got.size());
    ASSERT_GE(in.arrived, got.size() + bytes);
    auto piece = b_.fetch(in, got.size(), bytes, scratch.data());
    ASSERT_TRUE(piece.ok());
    got.insert(got.end(), *piece, *piece + bytes);
    b_.release(in, got.size());
  }
  if (in.offered) b_.finish_offer(in);
  settle();
  EXPECT_EQ(got, data);
  EXPECT_FALSE(a_.has_outstanding());
}

TEST_P(LinkTest, AReceiveFromAnySourceTakesTheMessage) {
  connect();
  const auto data = pattern(100'000);
  std::vector<std::byte> got(data.size());
  RecvRequest in = receiving(point_to_point_tag(9), got);
  notes_b_.any = &in;
  SendRequest out = sending(point_to_point_tag(9), data);
  a_.send(out);
  settle();
  take_offer(b_, in);
  settle();
  EXPECT_EQ(got, data);
  EXPECT_EQ(in.source, 0);
}

TEST_P(LinkTest, AWrongSizeFailsTheLinkAndSaysBoth) {
  connect();
  const auto data = pattern(100);
  std::vector<std::byte> got(99);
  RecvRequest in = receiving(point_to_point_tag(1), got);
  SendRequest out = sending(point_to_point_tag(1), data);
  b_.recv(in);
  a_.send(out);
  settle();
  EXPECT_EQ(notes_b_.failure.code(), StatusCode::mismatch);
  EXPECT_EQ(notes_b_.failure.message(), "expected 99, got 100");
  b_.end(notes_b_.failure);
  settle();
  EXPECT_EQ(notes_a_.failure.code(), StatusCode::mismatch);
  EXPECT_TRUE(notes_a_.failure_reported);
}

TEST_P(LinkTest, AfterTheLastWordAnEndedLinkIsClosedForThePeer) {
  connect();
  b_.end(Status(StatusCode::aborted, "enough"));
  settle();
  EXPECT_EQ(notes_a_.failure.message(), "enough");
  a_.end(notes_a_.failure);
  settle();
  EXPECT_FALSE(a_.discard_input()) << "the peer's end is not there, and close() waits for it";
  EXPECT_FALSE(b_.discard_input());
}

// The peer may finish its receive before it reads why the communicator has ended.
TEST_P(LinkTest, AMessageThatHasBegunEndsWithItsOwnBytes) {
  connect();
  const auto data = pattern(5000);  // no offer, and more than one write takes
  std::vector<std::byte> sent = data;
  std::vector<std::byte> got(data.size());
  RecvRequest in = receiving(collective_tag(1, 0, 0), got);
  SendRequest out = sending(collective_tag(1, 0, 0), sent);
  b_.recv(in);
  a_.send(out);
  a_.end(Status(StatusCode::aborted, "enough"));
  std::fill(sent.begin(), sent.end(), std::byte{0xee});
  settle();
  EXPECT_EQ(notes_b_.num_arrived, 1);
  EXPECT_EQ(got, data);
  EXPECT_EQ(notes_b_.failure.message(), "enough");
}

// Its memory is used for something else, or gone, before the receiver reads why.
TEST_P(LinkTest, WhatAnEndedPeerHasOfferedIsNotTaken) {
  if (!GetParam().pulls) GTEST_SKIP() << "nothing is offered";
  connect();
  const auto data = pattern(100'000);
  std::vector<std::byte> got(data.size());
  RecvRequest whole = receiving(collective_tag(1, 0, 0), got);
  RecvRequest streamed;
  streamed.tag = collective_tag(1, 0, 1);
  streamed.bytes = data.size();
  SendRequest out = sending(whole.tag, data);
  SendRequest out_streamed = sending(streamed.tag, data);
  b_.recv(whole);
  b_.recv(streamed);
  a_.send(out);
  a_.send(out_streamed);
  settle();
  ASSERT_TRUE(whole.offered && streamed.offered);
  a_.end(Status(StatusCode::aborted, "enough"));
  bool moved = false;
  bool complete = false;
  EXPECT_TRUE(b_.take_offer(whole, &moved, &complete).ok());
  EXPECT_FALSE(moved || complete);
  const auto piece = b_.fetch(streamed, 0, got.size(), got.data());
  ASSERT_TRUE(piece.ok());
  EXPECT_EQ(*piece, nullptr);
  EXPECT_TRUE(b_.has_outstanding());
  settle();
  EXPECT_EQ(notes_b_.failure.message(), "enough");
}

TEST_P(LinkTest, OffersCarryAKeyAndReadsMayEndLater) {
  if (!GetParam().pulls) GTEST_SKIP() << "nothing is offered";
  connect();
  auto& sender = static_cast<MemoryChannel&>(*a_.channel());
  auto& reader = static_cast<MemoryChannel&>(*b_.channel());
  sender.read_later(7);
  reader.read_later(7);
  const auto data = pattern(100'000);
  std::vector<std::byte> got(data.size());
  std::vector<std::byte> scratch(data.size());
  RecvRequest whole = receiving(point_to_point_tag(0), got);
  RecvRequest streamed;
  streamed.tag = point_to_point_tag(1);
  streamed.bytes = data.size();
  SendRequest out = sending(whole.tag, data);
  SendRequest out_streamed = sending(streamed.tag, data);
  b_.recv(whole);
  a_.send(out);
  a_.send(out_streamed);
  settle();
  b_.recv(streamed);  // its offer, with the key, has waited
  ASSERT_TRUE(whole.offered && streamed.offered);
  const auto fetch = [&] { return *b_.fetch(streamed, 0, data.size(), scratch.data()); };
  bool moved = false;
  bool complete = false;
  for (int turn = 0; turn < 3; ++turn) {
    ASSERT_TRUE(b_.take_offer(whole, &moved, &complete).ok());
    EXPECT_FALSE(moved || complete);
    EXPECT_EQ(fetch(), nullptr);
  }
  EXPECT_EQ(notes_a_.num_sent, 0);
  reader.finish_reads();
  ASSERT_TRUE(b_.take_offer(whole, &moved, &complete).ok());
  EXPECT_TRUE(moved && complete);
  EXPECT_EQ(fetch(), scratch.data());
  EXPECT_EQ(fetch(), scratch.data()) << "it is not read again";
  b_.release(streamed, data.size());
  b_.finish_offer(streamed);
  settle();
  EXPECT_EQ(got, data);
  EXPECT_EQ(scratch, data);
  EXPECT_EQ(notes_a_.num_sent, 2);
  EXPECT_FALSE(b_.has_outstanding());
}

TEST_P(LinkTest, AnotherOperationIsAMismatch) {
  connect();
  notes_b_.forbidden_kind = 4;
  const auto data = pattern(100);
  SendRequest out = sending(collective_tag(1, 0, 0), data);
  out.op.kind = 4;
  a_.send(out);
  settle();
  EXPECT_EQ(notes_b_.failure.code(), StatusCode::mismatch);
}

TEST_P(LinkTest, GoodbyeComesAfterWhatWasSent) {
  connect();
  const auto data = pattern(100);
  std::vector<std::byte> got(100);
  RecvRequest in = receiving(collective_tag(1, 0, 0), got);
  SendRequest out = sending(collective_tag(1, 0, 0), data);
  b_.recv(in);
  a_.send(out);
  for (int i = 0; a_.wants_to_write(); ++i) a_.progress();
  a_.send_goodbye();
  for (int i = 0; a_.wants_to_write(); ++i) a_.progress();
  settle();
  EXPECT_EQ(got, data);
  EXPECT_TRUE(notes_b_.goodbye);
  EXPECT_TRUE(notes_b_.failure.ok());
}

TEST_P(LinkTest, AClosedConnectionIsALostPeer) {
  auto to_b = std::make_shared<MemoryChannel::Pipe>();
  auto to_a = std::make_shared<MemoryChannel::Pipe>();
  b_.attach(0, std::make_unique<MemoryChannel>(to_a, to_b, 100, false));
  to_b->closed = true;
  b_.progress();
  EXPECT_EQ(b_.state(), Link::State::failed);
  EXPECT_EQ(notes_b_.failure.code(), StatusCode::peer_lost);
}

// A link whose peer is the test.
class OneLinkTest : public testing::Test {
 protected:
  OneLinkTest() {
    auto channel = std::make_unique<MemoryChannel>(out_, in_, 1000, false);
    channel_ = channel.get();
    link_.attach(0, std::move(channel));
  }

  void receive_no_frame() {
    in_->bytes.resize(200, std::byte{7});
    link_.progress();
  }

  const std::shared_ptr<MemoryChannel::Pipe> out_ = std::make_shared<MemoryChannel::Pipe>();
  const std::shared_ptr<MemoryChannel::Pipe> in_ = std::make_shared<MemoryChannel::Pipe>();
  RailCounters counters_;
  Notes notes_;
  Link link_{LinkOptions{0, 1, kJob, 1, &notes_, &counters_}};
  MemoryChannel* channel_ = nullptr;
};

// As a channel of UCX does, which loses the bytes on their way.
TEST_F(OneLinkTest, TheReasonOfAClosedChannelComesBesideItsBytes) {
  in_->reason = Status(StatusCode::timeout, "rank 2 does not answer");
  link_.progress();
  EXPECT_TRUE(notes_.failure.ok()) << "the channel still works";
  in_->closed = true;
  link_.progress();
  EXPECT_EQ(notes_.failure.to_string(), in_->reason.to_string());
  EXPECT_TRUE(notes_.failure_reported);
}

TEST_F(OneLinkTest, WhatThisEndFindsWrongIsNotReplacedByThePeersReason) {
  in_->reason = Status(StatusCode::timeout, "rank 2 does not answer");
  receive_no_frame();
  EXPECT_EQ(notes_.failure.code(), StatusCode::protocol_error) << notes_.failure;
  EXPECT_FALSE(notes_.failure_reported);
}

TEST_F(OneLinkTest, AnEndThatFailsTellsThePeerBeforeItLetsGoOfMemory) {
  channel_->closes_when_it_lets_go = true;
  notes_.when_failed = [&](const Status& reason) { link_.end(reason); };  // as the engine does
  receive_no_frame();
  EXPECT_EQ(notes_.failure.code(), StatusCode::protocol_error) << notes_.failure;
  EXPECT_EQ(out_->reason.to_string(), notes_.failure.to_string());
  EXPECT_TRUE(out_->closed);
}

// Who reads alone never asks the sender to write to its memory.
TEST(Link, ALargeMessageIsCopiedByBothEndsOrReadAlone) {
  for (const bool alone : {false, true}) {
    Notes notes;
    RailCounters counters;
    LinkOptions options{0, 1, kJob, 1, &notes, &counters};
    Link a(options);
    std::swap(options.rank, options.peer);
    options.reads_alone = alone;
    Link b(options);
    auto to_b = std::make_shared<MemoryChannel::Pipe>();
    auto to_a = std::make_shared<MemoryChannel::Pipe>();
    const auto words = std::make_shared<MemoryChannel::Words>();
    auto end_of_a = std::make_unique<MemoryChannel>(to_b, to_a, 1u << 20, true);
    auto end_of_b = std::make_unique<MemoryChannel>(to_a, to_b, 1u << 20, true);
    end_of_a->share(words, 0);
    end_of_b->share(words, 1);
    a.attach(0, std::move(end_of_a));
    b.attach(0, std::move(end_of_b));
    const auto data = pattern(1'000'000);
    std::vector<std::byte> got(data.size());
    SendRequest out;
    out.data = data.data();
    RecvRequest in;
    in.destination = got.data();
    out.tag = in.tag = collective_tag(1, 0, 0);
    out.bytes = in.bytes = data.size();
    b.recv(in);
    a.send(out);
    bool complete = false;
    for (int turn = 0; turn < 1000 && !complete; ++turn) {
      (void)a.progress();
      (void)b.progress();
      bool moved = false;
      if (!in.offered) continue;
      ASSERT_TRUE(b.take_offer(in, &moved, &complete).ok());
    }
    ASSERT_TRUE(complete);
    EXPECT_EQ(got, data);
    EXPECT_EQ(words->claims[0].load() == 0, alone);
  }
}

INSTANTIATE_TEST_SUITE_P(Channels, LinkTest,
                         testing::Values(Case{1, false}, Case{1000, false}, Case{1u << 20, false},
                                         Case{7, true}, Case{1u << 20, true}),
                         [](const testing::TestParamInfo<Case>& info) {
                           return str_cat(info.param.pulls ? "pull_" : "push_",
                                          info.param.max_bytes);
                         });

}  // namespace
}  // namespace dmlcomm::transport
