// Which cards of a host are in one subnet, from lists of addresses.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "transport/tcp/device.h"

namespace dmlcomm::transport::tcp {
namespace {

CardAddress card(const std::string& interface, const std::string& address,
                 const std::string& mask) {
  CardAddress made;
  made.interface = interface;
  made.family = address.find(':') == std::string::npos ? AF_INET : AF_INET6;
  EXPECT_EQ(inet_pton(made.family, address.c_str(), made.address.data()), 1);
  EXPECT_EQ(inet_pton(made.family, mask.c_str(), made.mask.data()), 1);
  return made;
}

using Names = std::vector<std::string>;

const std::vector<CardAddress> kCards = {
    card("eth0", "10.0.0.1", "255.255.255.0"),
    card("eth1", "10.0.0.2", "255.255.255.0"),
    card("eth2", "10.0.1.1", "255.255.255.0"),
    card("eth2", "10.0.1.9", "255.255.255.0"),
    card("eth3", "fd00::1", "ffff:ffff:ffff:ffff::"),
    card("eth4", "fd00::2", "ffff:ffff:ffff:ffff::"),
};

TEST(DeviceTest, CardsOfOneSubnetAreNamed) {
  EXPECT_EQ(cards_beside(kCards, "eth0", "10.0.0.77"), (Names{"eth0", "eth1"}));
  EXPECT_EQ(cards_beside(kCards, "eth1", "10.0.0.77"), (Names{"eth0", "eth1"}));
  EXPECT_EQ(cards_beside(kCards, "eth4", "fd00::77"), (Names{"eth3", "eth4"}));
}

TEST(DeviceTest, ACardThatIsAloneInItsSubnetIsNotHeld) {
  EXPECT_EQ(cards_beside(kCards, "eth2", "10.0.1.77"), Names());
}

TEST(DeviceTest, PeersBeyondTheSubnetMayBeReachedByAnyCard) {
  EXPECT_EQ(cards_beside(kCards, "eth0", "10.0.1.77"), Names());
  EXPECT_EQ(cards_beside(kCards, "eth0", "192.168.0.1"), Names());
  EXPECT_EQ(cards_beside(kCards, "eth0", "no address"), Names());
}

TEST(DeviceTest, ThisHostIsReadable) {
  for (const CardAddress& each : card_addresses()) {
    EXPECT_FALSE(each.interface.empty());
    EXPECT_TRUE(each.family == AF_INET || each.family == AF_INET6);
  }
}

}  // namespace
}  // namespace dmlcomm::transport::tcp
