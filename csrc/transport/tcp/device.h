// Devices: which network card the packets of a connection leave by.
//
// The kernel chooses it by the address they go to, not by the one they come from: where two cards
// of a host are in one subnet, everything leaves by one of them. There a socket has to be bound to
// its card. It must not be anywhere else: between hosts of a grid that are no neighbours, packets
// that kernels forward come and go by whatever card leads to the next host.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace dmlcomm::transport::tcp {

// An address of a card, in network byte order; IPv4 takes the first four bytes.
struct CardAddress {
  std::string interface;
  int family = 0;
  std::array<uint8_t, 16> address{};
  std::array<uint8_t, 16> mask{};
};

// Of all cards of this host that are up, without loopback.
std::vector<CardAddress> card_addresses();

// The cards that are in one subnet with the numeric address `peer`, `interface` among them; empty
// where `interface` is not, or is the only one.
std::vector<std::string> cards_beside(const std::vector<CardAddress>& cards,
                                      const std::string& interface, const std::string& peer);

// Lets a socket to `peer` send and receive by `interface` alone, if another card would be taken
// otherwise. If the host is not set up for it (docs/topology.md), or the kernel refuses (before
// Linux 5.7 to ordinary users), the socket stays as it is, and the log says so once.
void hold_to_card(int fd, const std::string& interface, const std::string& peer);

}  // namespace dmlcomm::transport::tcp
