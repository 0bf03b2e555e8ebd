// Options that connections have from their first packet on.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <fstream>
#include <string>

#include "transport/socket.h"
#include "transport/tcp/socket.h"

namespace dmlcomm::transport::tcp {
namespace {

const std::string kLoopback = "127.0.0.1";

std::string congestion_of(int fd) {
  char name[16] = {};
  socklen_t length = sizeof(name) - 1;
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
  return name;
}

bool is_permitted(const std::string& algorithm) {
  std::ifstream file("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
  for (std::string name; file >> name;) {
    if (name == algorithm) return true;
  }
  return false;
}

// What it is set to later does not end the pacing that another algorithm has begun.
void expect_from_the_start(const std::string& expected, const SocketOptions& options) {
  const auto listener = listen_on(kLoopback, {}, options);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_EQ(congestion_of(listener->fd.get()), expected);
  const auto outgoing = begin_connect("lo", kLoopback, kLoopback, listener->port, options);
  ASSERT_TRUE(outgoing.ok()) << outgoing.status();
  EXPECT_EQ(congestion_of(outgoing->get()), expected);
  pollfd arrived{listener->fd.get(), POLLIN, 0};
  ASSERT_EQ(poll(&arrived, 1, 10'000), 1);
  const UniqueFd incoming = std::move(*accept_from(listener->fd.get()));
  ASSERT_TRUE(incoming.valid());
  EXPECT_EQ(congestion_of(incoming.get()), expected);
}

TEST(SocketTest, CongestionControlOfLoopbackIsCubic) {
  if (!is_permitted("cubic")) GTEST_SKIP() << "this kernel does not permit cubic";
  expect_from_the_start("cubic", {});
}

TEST(SocketTest, CongestionControlIsTheOneThatWasAskedFor) {
  SocketOptions options;
  options.congestion = "reno";  // every kernel has it, and permits it to all
  expect_from_the_start("reno", options);
}

TEST(SocketTest, AnUnknownCongestionControlIsAnError) {
  SocketOptions options;
  options.congestion = "cubicc";
  const Status status = listen_on(kLoopback, {29500, 29600}, options).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("DMLCOMM_TCP_CONGESTION=cubicc"), std::string::npos) << status;
}

}  // namespace
}  // namespace dmlcomm::transport::tcp
