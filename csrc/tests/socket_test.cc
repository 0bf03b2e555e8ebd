// Options that connections have from their first packet on.
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "base/str_cat.h"
#include "transport/socket.h"
#include "transport/tcp/socket.h"

namespace dmlcomm::transport::tcp {
namespace {

const std::string kLoopback = "127.0.0.1";

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

// Told apart from "nobody waits", after which a driver would sleep and be woken at once.
TEST(SocketTest, AListenerWithoutDescriptorsSaysSoAndTakesTheConnectionLater) {
  const auto listener = listen_on(kLoopback, {}, {});
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_FALSE(accept_from(listener->fd.get())->valid());
  const auto outgoing = begin_connect("lo", kLoopback, kLoopback, listener->port, {});
  ASSERT_TRUE(outgoing.ok()) << outgoing.status();
  pollfd arrived{listener->fd.get(), POLLIN, 0};
  ASSERT_EQ(poll(&arrived, 1, 10'000), 1);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int first_free = dup(listener->fd.get());
  close(first_free);
  const rlimit none{static_cast<rlim_t>(first_free), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto refused = accept_from(listener->fd.get());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("Too many open files"), std::string::npos);
  const auto accepted = accept_from(listener->fd.get());
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_TRUE(accepted->valid());
}

TEST(SocketTest, TheFirstPreferredCongestionControlThatIsPermittedIsTaken) {
  const auto fd = open_socket(AF_INET);
  ASSERT_TRUE(fd.ok()) << fd.status();
  prefer_congestion(fd->get(), {"nosuch", "reno", "cubic"});
  EXPECT_EQ(congestion_of(fd->get()), "reno");
  prefer_congestion(fd->get(), {"nosuch", "nosucheither"});
  EXPECT_EQ(congestion_of(fd->get()), "reno");
}

// In a child, which gives up the capabilities that root may have.
TEST(SocketTest, WithoutPrivilegesTheChoiceBetweenHostsIsOneThatIsPermittedAndDoesNotPace) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    const __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3]{};
    if (syscall(SYS_capset, &header, none) != 0) _exit(1);
    const auto listener = listen_on("0.0.0.0", {}, {});
    if (!listener.ok()) _exit(2);
    const std::string name = congestion_of(listener->fd.get());
    _exit(is_permitted(name) && !name.starts_with("bbr") ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(SocketTest, AnUnknownCongestionControlIsAnError) {
  SocketOptions options;
  options.congestion = "cubicc";
  const Status status = listen_on(kLoopback, {29500, 29600}, options).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("DMLCOMM_TCP_CONGESTION=cubicc"), std::string::npos) << status;
}

// In a child, which becomes another user and takes the name, as after a rank has died.
TEST(SocketTest, NothingIsSentToAnotherUserWhoListensAtThisName) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string name = str_cat("dmlcomm-test-", getpid());
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (setresuid(kNobody, kNobody, kNobody) != 0) _exit(1);
    const auto listener = listen_unix(name);
    if (!listener.ok() || write(ready[1], "", 1) != 1) _exit(2);
    pollfd end{listener->get(), POLLIN, 0};
    if (poll(&end, 1, 10'000) != 1) _exit(3);
    const UniqueFd incoming = std::move(*accept_from(listener->get()));
    char byte;
    pollfd news{incoming.get(), POLLIN, 0};
    _exit(poll(&news, 1, 10'000) == 1 && recv(incoming.get(), &byte, 1, 0) == 0 ? 0 : 4);
  }
  close(ready[1]);
  char byte;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  const Status refused = connect_unix(name).status();
  EXPECT_EQ(refused.code(), StatusCode::protocol_error) << refused;
  EXPECT_NE(refused.message().find("another user"), std::string::npos) << refused;
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1 to 3: the child could not listen; 4: something was sent";
}

}  // namespace
}  // namespace dmlcomm::transport::tcp
