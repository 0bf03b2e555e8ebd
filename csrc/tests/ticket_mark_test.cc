// Marks of packets: which ticket counts for the bytes that have not left, and what the socket says.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/socket.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tcp_channel.h"
#include "transport/tcp/ticket_mark.h"

namespace dmlcomm::transport::tcp {
namespace {

TEST(DscpTest, EarlyTicketsHaveOneEachAndLaterOnesShare) {
  EXPECT_EQ(dscp_of(0), 1);
  EXPECT_EQ(dscp_of(31), 32);
  EXPECT_EQ(dscp_of(32), 33);
  EXPECT_EQ(dscp_of(39), 33);
  EXPECT_EQ(dscp_of(40), 34);
  EXPECT_EQ(dscp_of(127), 44);
}

TEST(DscpTest, TheDefaultTicketAndLaterOnesHaveNoMark) {
  for (int ticket = kDefaultTicket; ticket < 256; ++ticket) {
    EXPECT_EQ(dscp_of(static_cast<uint8_t>(ticket)), 0);
  }
}

TEST(DscpTest, OrderIsKept) {
  int last = 0;
  for (int ticket = 0; ticket < kDefaultTicket; ++ticket) {
    EXPECT_GE(dscp_of(static_cast<uint8_t>(ticket)), last);
    last = dscp_of(static_cast<uint8_t>(ticket));
  }
}

TEST(UnsentTicketsTest, UrgentBytesCountUntilTheyHaveLeft) {
  UnsentTickets unsent;
  unsent.wrote(0, 100);
  unsent.wrote(7, 50);
  EXPECT_EQ(unsent.most_urgent_with(9), 0);
  unsent.sent_all_but(51);  // one urgent byte is left
  EXPECT_EQ(unsent.most_urgent_with(9), 0);
  EXPECT_TRUE(unsent.has_other_than(9));
  unsent.sent_all_but(50);
  EXPECT_EQ(unsent.most_urgent_with(9), 7);
  unsent.sent_all_but(0);
  EXPECT_EQ(unsent.most_urgent_with(9), 9);
  EXPECT_FALSE(unsent.has_other_than(9));
}

TEST(UnsentTicketsTest, BytesInFrontOfUrgentOnesAreAsUrgent) {
  UnsentTickets unsent;
  unsent.wrote(7, 100);
  EXPECT_EQ(unsent.most_urgent_with(3), 3);
  EXPECT_FALSE(unsent.has_other_than(3));
  unsent.wrote(3, 10);
  unsent.sent_all_but(20);  // ten bytes of ticket 7 and ten of ticket 3
  EXPECT_EQ(unsent.most_urgent_with(7), 3);
}

TEST(UnsentTicketsTest, WithOneTicketThereIsNothingToAsk) {
  UnsentTickets unsent;
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(unsent.has_other_than(4));
    unsent.wrote(4, 1000);
  }
  EXPECT_EQ(unsent.most_urgent_with(4), 4);
}

// A connection whose receiver takes nothing until it is asked to, so that bytes stay unsent.
class TicketMarkTest : public testing::Test {
 protected:
  void connect(const std::string& address, TicketMarking marking) {
    SocketOptions options;
    options.buffer_bytes = kSendBufferBytes;
    auto listener = listen_on(address, {}, options);
    ASSERT_TRUE(listener.ok()) << listener.status();
    const int little = 4096;
    setsockopt(listener->fd.get(), SOL_SOCKET, SO_RCVBUF, &little, sizeof(little));
    auto outgoing = begin_connect("lo", address, address, listener->port, options);
    ASSERT_TRUE(outgoing.ok()) << outgoing.status();
    pollfd arrived{listener->fd.get(), POLLIN, 0};
    ASSERT_EQ(poll(&arrived, 1, 10'000), 1);
    receiver_ = std::move(*accept_from(listener->fd.get()));
    ASSERT_TRUE(receiver_.valid());
    pollfd connected{outgoing->get(), POLLOUT, 0};
    ASSERT_EQ(poll(&connected, 1, 10'000), 1);
    channel_ = std::make_unique<TcpChannel>(std::move(*outgoing), marking, 0, "test");
  }

  void write(uint8_t ticket, size_t bytes) {
    const std::vector<char> data(bytes);
    const iovec part{const_cast<char*>(data.data()), data.size()};
    channel_->set_ticket(ticket);
    const Result<size_t> wrote = channel_->write(&part, 1);
    ASSERT_TRUE(wrote.ok()) << wrote.status();
    ASSERT_EQ(*wrote, bytes);
  }

  int num_unsent() const {
    int bytes = 0;
    EXPECT_EQ(ioctl(channel_->descriptor(), SIOCOUTQNSD, &bytes), 0);
    return bytes;
  }

  void receive_all() {
    const Deadline deadline = Deadline::after_s(20);
    std::array<std::byte, 65536> data{};
    while (num_unsent() > 0) {
      ASSERT_FALSE(deadline.expired());
      pollfd readable{receiver_.get(), POLLIN, 0};
      poll(&readable, 1, 100);
      if (readable.revents != 0) (void)recv(receiver_.get(), data.data(), data.size(), 0);
    }
  }

  int option(int level, int name) const {
    int value = -1;
    socklen_t length = sizeof(value);
    EXPECT_EQ(getsockopt(channel_->descriptor(), level, name, &value, &length), 0);
    return value;
  }
  int dscp() const { return option(IPPROTO_IP, IP_TOS) >> 2; }

  static constexpr size_t kSendBufferBytes = 4u << 20;
  static constexpr size_t kMuch = 1u << 20;  // more than the receiver has room for
  UniqueFd receiver_;
  std::unique_ptr<TcpChannel> channel_;
};

TEST_F(TicketMarkTest, DefaultTicketIsNotMarked) {
  connect("127.0.0.1", TicketMarking::dscp);
  write(kDefaultTicket, 1000);
  EXPECT_EQ(dscp(), 0);
}

TEST_F(TicketMarkTest, MarkStaysWhileUrgentBytesAreUnsent) {
  connect("127.0.0.1", TicketMarking::dscp);
  write(2, kMuch);
  EXPECT_EQ(dscp(), dscp_of(2));
  ASSERT_GT(num_unsent(), 0);
  write(40, 1000);
  EXPECT_EQ(dscp(), dscp_of(2));
  write(40, 1000);
  EXPECT_EQ(dscp(), dscp_of(2));
  receive_all();
  write(40, 1000);
  EXPECT_EQ(dscp(), dscp_of(40));
}

TEST_F(TicketMarkTest, UrgentBytesTakeThoseInFrontAlong) {
  connect("127.0.0.1", TicketMarking::dscp);
  write(kDefaultTicket, kMuch);
  write(0, 1000);
  EXPECT_EQ(dscp(), dscp_of(0));
}

TEST_F(TicketMarkTest, PriorityInTheOwnHostStays) {
  connect("127.0.0.1", TicketMarking::dscp);
  write(3, 1000);  // as IP_TOS this is "low delay"
  EXPECT_EQ(option(SOL_SOCKET, SO_PRIORITY), 0);
}

// So a job behind another one cannot show switches that it goes first.
TEST_F(TicketMarkTest, TheClassOfAJobGoesBeforeItsTickets) {
  constexpr int kClass = 7;
  for (const TicketMarking marking : {TicketMarking::dscp, TicketMarking::none}) {
    connect("127.0.0.1", marking);
    write(0, 1000);
    channel_->mark_class(kClass);
    EXPECT_EQ(dscp(), kClass);
    EXPECT_EQ(option(SOL_SOCKET, SO_PRIORITY), 0);
    write(0, 1000);
    EXPECT_EQ(dscp(), kClass);
  }
  connect("::1", TicketMarking::dscp);
  channel_->mark_class(kClass);
  EXPECT_EQ(option(IPPROTO_IPV6, IPV6_TCLASS) >> 2, kClass);
}

// A buffer that the kernel does not widen again.
TEST_F(TicketMarkTest, TheKernelKeepsLittleThatIsNotRead) {
  constexpr int kBytes = 64 * 1024;
  connect("127.0.0.1", TicketMarking::dscp);
  channel_->limit_arrivals(kBytes);
  EXPECT_EQ(option(SOL_SOCKET, SO_RCVBUF), 2 * kBytes) << "with its own notes of as many bytes";
}

TEST_F(TicketMarkTest, NoMarkWithoutMarking) {
  connect("127.0.0.1", TicketMarking::none);
  write(0, 1000);
  EXPECT_EQ(dscp(), 0);
}

TEST_F(TicketMarkTest, OptionCarriesTheTicket) {
  if (!check_mark(TicketMarking::ip_option, "127.0.0.1").ok()) GTEST_SKIP() << "not permitted";
  connect("127.0.0.1", TicketMarking::ip_option);
  write(100, 1000);
  std::array<uint8_t, 40> options{};
  socklen_t length = options.size();
  ASSERT_EQ(getsockopt(channel_->descriptor(), IPPROTO_IP, IP_OPTIONS, options.data(), &length), 0);
  ASSERT_EQ(length, 4u);
  EXPECT_EQ(options[0], kTicketOption);
  EXPECT_EQ(options[1], kTicketOptionBytes);
  EXPECT_EQ(options[2], 100);
  receive_all();
  write(200, 1000);  // later than the default one: no mark
  length = options.size();
  ASSERT_EQ(getsockopt(channel_->descriptor(), IPPROTO_IP, IP_OPTIONS, options.data(), &length), 0);
  EXPECT_EQ(length, 0u);
}

TEST_F(TicketMarkTest, SixthVersionHasATrafficClass) {
  SocketOptions options;
  if (!listen_on("::1", {}, options).ok()) GTEST_SKIP() << "no IPv6 here";
  connect("::1", TicketMarking::dscp);
  write(5, 1000);
  EXPECT_EQ(option(IPPROTO_IPV6, IPV6_TCLASS) >> 2, dscp_of(5));
}

TEST(CheckMarkTest, OptionIsOfIPv4Alone) {
  const Status status = check_mark(TicketMarking::ip_option, "fd00::1");
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("fd00::1"), std::string::npos);
  EXPECT_TRUE(check_mark(TicketMarking::dscp, "fd00::1").ok());
}

}  // namespace
}  // namespace dmlcomm::transport::tcp
