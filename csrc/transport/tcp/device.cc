#include "transport/tcp/device.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/log.h"
#include "base/str_cat.h"

namespace dmlcomm::transport::tcp {
namespace {

bool read_bytes(const sockaddr* from, std::array<uint8_t, 16>* to) {
  if (from == nullptr) return false;
  if (from->sa_family == AF_INET) {
    std::memcpy(to->data(), &reinterpret_cast<const sockaddr_in*>(from)->sin_addr, 4);
    return true;
  }
  if (from->sa_family != AF_INET6) return false;
  std::memcpy(to->data(), &reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr, 16);
  return true;
}

bool is_in_subnet(const CardAddress& card, int family, const std::array<uint8_t, 16>& address) {
  if (card.family != family) return false;
  for (size_t i = 0; i < address.size(); ++i) {
    if (((card.address[i] ^ address[i]) & card.mask[i]) != 0) return false;
  }
  return true;
}

// A parameter of IPv4 for which the larger one of the card's and all cards' counts. 0 where it
// cannot be read.
int parameter(const std::string& interface, const char* name) {
  int greatest = 0;
  for (const std::string& of : {std::string("all"), interface}) {
    int value = 0;
    std::ifstream file(str_cat("/proc/sys/net/ipv4/conf/", of, "/", name));
    if (file >> value) greatest = std::max(greatest, value);
  }
  return greatest;
}

// The setting that keeps packets for the address of one card from reaching it, or empty. IPv6 has
// neither.
std::string obstacle(const std::vector<std::string>& cards, const std::string& peer) {
  if (peer.find(':') != std::string::npos) return "";
  for (const std::string& card : cards) {
    // It answers for the addresses of the others, and gets what is for them.
    if (parameter(card, "arp_ignore") == 0) return str_cat("arp_ignore is 0 on ", card);
    // It drops what would not be answered by the same card.
    if (parameter(card, "rp_filter") == 1) return str_cat("rp_filter is 1 on ", card);
  }
  return "";
}

void warn_once(const std::vector<std::string>& cards, const std::string& reason) {
  static std::atomic<bool> has_warned{false};
  if (has_warned.exchange(true)) return;
  std::string names;
  for (const std::string& card : cards) names += str_cat(names.empty() ? "" : ", ", card);
  log_warning(names, " are in one subnet, and the kernel sends by one of them only: ", reason,
              "; docs/topology.md, 'Several cards in one subnet', says what to set");
}

}  // namespace

std::vector<CardAddress> card_addresses() {
  std::vector<CardAddress> cards;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return cards;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if ((each->ifa_flags & IFF_UP) == 0 || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    CardAddress card;
    if (!read_bytes(each->ifa_addr, &card.address) || !read_bytes(each->ifa_netmask, &card.mask)) {
      continue;
    }
    // "eth0:1" is a further address of eth0.
    const std::string label = each->ifa_name;
    card.interface = label.substr(0, label.find(':'));
    card.family = each->ifa_addr->sa_family;
    cards.push_back(std::move(card));
  }
  freeifaddrs(all);
  return cards;
}

std::vector<std::string> cards_beside(const std::vector<CardAddress>& cards,
                                      const std::string& interface, const std::string& peer) {
  const int family = peer.find(':') == std::string::npos ? AF_INET : AF_INET6;
  std::array<uint8_t, 16> address{};
  if (inet_pton(family, peer.c_str(), address.data()) != 1) return {};
  std::vector<std::string> names;
  for (const CardAddress& card : cards) {
    const bool is_known = std::find(names.begin(), names.end(), card.interface) != names.end();
    if (!is_known && is_in_subnet(card, family, address)) names.push_back(card.interface);
  }
  const bool has_own = std::find(names.begin(), names.end(), interface) != names.end();
  return has_own && names.size() > 1 ? names : std::vector<std::string>();
}

void hold_to_card(int fd, const std::string& interface, const std::string& peer) {
  const std::vector<std::string> cards = cards_beside(card_addresses(), interface, peer);
  if (cards.empty()) return;
  if (const std::string reason = obstacle(cards, peer); !reason.empty()) {
    return warn_once(cards, reason);
  }
  if (setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, interface.data(),
                 static_cast<socklen_t>(interface.size())) != 0) {
    warn_once(cards, str_cat("SO_BINDTODEVICE ", interface, ": ", std::strerror(errno)));
  }
}

}  // namespace dmlcomm::transport::tcp
