#include "transport/address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <sstream>

#include "base/check.h"
#include "base/cores.h"
#include "base/sha256.h"
#include "base/str_cat.h"

namespace dmlcomm::transport {

std::string to_hex(const std::byte* bytes, size_t count) {
  static const char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    const auto value = std::to_integer<unsigned>(bytes[i]);
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
  }
  return text;
}

bool from_hex(const std::string& text, std::byte* bytes, size_t count) {
  if (text.size() != 2 * count) return false;
  for (size_t i = 0; i < count; ++i) {
    unsigned value;
    if (std::sscanf(text.c_str() + 2 * i, "%2x", &value) != 1) return false;
    bytes[i] = static_cast<std::byte>(value);
  }
  return true;
}

namespace {

const std::string kNoRails = ": ";  // no interface has such a name

// Begins a HostAddress. The number changes with what follows.
const std::string kHostFormat = "dmlcomm/2";

Status malformed(const char* what, const std::string& text) {
  return Status(StatusCode::protocol_error,
                str_cat("the rendezvous holds a malformed ", what, ": '", text,
                        "'; do all ranks run the same version of dmlcomm?"));
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

// The inode names the network namespace: containers and emulated hosts have their own.
uint64_t network_namespace() {
  struct stat info {};
  return stat("/proc/self/ns/net", &info) == 0 ? info.st_ino : 0;
}

// Of the interface that came first: virtual machines that were copied with their memory have one
// boot id and one namespace number, but not one address of their NIC. "-": none has one.
std::string first_hardware_address() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "-";
  int first = 0;
  std::string address = "-";
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_PACKET) continue;
    const auto& link = reinterpret_cast<const sockaddr_ll&>(*one->ifa_addr);
    if ((one->ifa_flags & IFF_LOOPBACK) != 0 || link.sll_halen == 0) continue;
    if (first != 0 && link.sll_ifindex > first) continue;
    first = link.sll_ifindex;
    address = to_hex(reinterpret_cast<const std::byte*>(link.sll_addr), link.sll_halen);
  }
  freeifaddrs(all);
  return address;
}

void note_cores(HostAddress* address) {
  const std::optional<cpu_set_t> cores = allowed_cores();
  if (!cores) return;
  address->num_cores = std::max(1, CPU_COUNT(&*cores));
  const std::string mask = to_hex(reinterpret_cast<const std::byte*>(&*cores), sizeof(*cores));
  address->cores = mask.substr(0, mask.find_last_not_of('0') + 1);
}

}  // namespace

std::string HostAddress::encode() const {
  return str_cat(kHostFormat, " ", host_id, " ", host_name, " ", pid, " ", unix_name, " ",
                 num_cores, " ", cores, " ", tunes ? 1 : 0, " ", probes ? 1 : 0, " ",
                 ticket_connections, " ", transport);
}

Result<HostAddress> HostAddress::decode(const std::string& text) {
  HostAddress address;
  std::istringstream in(text);
  std::string format;
  in >> format;
  if (format != kHostFormat) {
    return Status(StatusCode::protocol_error,
                  "another version of dmlcomm has written its address, '", text,
                  "', which begins with '", kHostFormat,
                  "' in this one; install the same version for all ranks");
  }
  in >> address.host_id >> address.host_name >> address.pid >> address.unix_name >>
      address.num_cores >> address.cores >> address.tunes >> address.probes >>
      address.ticket_connections >> address.transport;
  if (!in || address.num_cores < 1) return malformed("host address", text);
  return address;
}

// Ranks of a kernel may be allowed different cores; together they have at least the most of one.
double ranks_per_shared_core(const std::vector<HostAddress>& hosts) {
  struct Machine {
    std::set<std::string> host_ids;
    int num_ranks = 0;
    int num_cores = 1;
  };
  std::map<std::string, Machine> machines;
  double most = 0;
  for (const HostAddress& host : hosts) {
    Machine& machine = machines[host.machine_id()];
    machine.host_ids.insert(host.host_id);
    ++machine.num_ranks;
    machine.num_cores = std::max(machine.num_cores, host.num_cores);
  }
  for (const auto& [id, machine] : machines) {
    if (machine.host_ids.size() == 1) continue;
    most = std::max(most, static_cast<double>(machine.num_ranks) / machine.num_cores);
  }
  return most;
}

int ranks_per_core_of_host(const std::vector<HostAddress>& ranks) {
  const bool are_the_same = std::all_of(ranks.begin(), ranks.end(), [&](const HostAddress& rank) {
    return rank.host_id == ranks[0].host_id && rank.cores == ranks[0].cores && rank.cores != "-";
  });
  const int num_ranks = static_cast<int>(ranks.size());
  const bool is_even = are_the_same && num_ranks % ranks[0].num_cores == 0;
  return is_even ? num_ranks / ranks[0].num_cores : 0;
}

namespace {

// What carries bytes between this rank and others of its host, or of other hosts.
std::string carrier(const HostAddress& rank, bool same_host) {
  if (same_host) return rank.transport == "auto" ? "shm" : rank.transport;
  return rank.transport == "ucx" ? "ucx" : "tcp";
}

Status differ(const char* setting, const std::vector<HostAddress>& hosts, size_t rank, size_t other,
              const auto& value) {
  return Status(StatusCode::invalid_argument, setting, " differs: rank ", rank, " on host ",
                hosts[rank].host_name, " has ", value(hosts[rank]), ", and rank ", other,
                " on host ", hosts[other].host_name, " ", value(hosts[other]), "; set it alike");
}

}  // namespace

// Of two ranks of one host that differ, one at least also differs from a rank of another host.
Status check_same_settings(const std::vector<HostAddress>& hosts) {
  std::map<std::string, size_t> first_of_host;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const size_t near = first_of_host.emplace(hosts[rank].host_id, rank).first->second;
    for (const size_t other : {size_t{0}, near}) {
      const bool same_host = hosts[other].host_id == hosts[rank].host_id;
      if (carrier(hosts[other], same_host) == carrier(hosts[rank], same_host)) continue;
      return differ("DMLCOMM_TRANSPORT", hosts, other, rank,
                    [](const HostAddress& host) { return host.transport; });
    }
  }
  if (first_of_host.size() == 1) return Status();
  for (size_t rank = 1; rank < hosts.size(); ++rank) {
    if (hosts[rank].ticket_connections == hosts[0].ticket_connections) continue;
    return differ("DMLCOMM_TICKET_CONNECTIONS", hosts, 0, rank,
                  [](const HostAddress& host) { return host.ticket_connections; });
  }
  return Status();
}

std::string encode_rails(const std::vector<RailEndpoint>& rails) {
  std::string text;
  for (const RailEndpoint& rail : rails) {
    text += str_cat(rail.interface, " ", rail.address, " ", rail.port, " ", rail.relay_port, "\n");
  }
  return text;
}

std::string encode_no_rails(const std::string& why) { return kNoRails + why; }

Result<std::vector<RailEndpoint>> decode_rails(const std::string& text) {
  if (text.starts_with(kNoRails)) {
    return Status(StatusCode::peer_lost, text.substr(kNoRails.size()));
  }
  std::vector<RailEndpoint> rails;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    RailEndpoint rail;
    std::istringstream fields(line);
    fields >> rail.interface >> rail.address >> rail.port >> rail.relay_port;
    if (!fields) return malformed("list of network addresses", text);
    rails.push_back(rail);
  }
  return rails;
}

Result<JobKey> JobKey::random() {
  JobKey key;
  std::byte bytes[sizeof(key.secret) + sizeof(key.job_id)];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) {
    return errno_status(StatusCode::io_error, "getrandom", errno);
  }
  std::memcpy(key.secret.data(), bytes, sizeof(key.secret));
  std::memcpy(&key.job_id, bytes + sizeof(key.secret), sizeof(key.job_id));
  return key;
}

void JobKey::mix_in(std::string_view users_secret) {
  if (users_secret.empty()) return;
  const Digest mixed = hmac_sha256(std::as_bytes(std::span(users_secret)), secret);
  std::copy_n(mixed.begin(), secret.size(), secret.begin());
}

std::string JobKey::mark_of(std::string_view users_secret, std::string_view text) {
  if (users_secret.empty()) return "none";
  const std::string marked = str_cat("mark of ", text);
  const Digest mark =
      hmac_sha256(std::as_bytes(std::span(users_secret)), std::as_bytes(std::span(marked)));
  return to_hex(mark.data(), mark.size());
}

std::array<std::byte, 16> JobKey::relay_secret() const {
  constexpr std::string_view kText = "relay";
  const Digest derived = hmac_sha256(secret, std::as_bytes(std::span(kText)));
  std::array<std::byte, 16> first;
  std::copy_n(derived.begin(), first.size(), first.begin());
  return first;
}

std::array<std::byte, 16> random_challenge() {
  std::array<std::byte, 16> challenge;
  // Of up to 256 bytes it fails only where the kernel has no such call.
  DMLCOMM_CHECK(getrandom(challenge.data(), challenge.size(), 0) == challenge.size());
  return challenge;
}

uint64_t JobKey::derived(std::string_view text) const {
  const Digest digest = hmac_sha256(secret, std::as_bytes(std::span(text)));
  uint64_t first;
  std::memcpy(&first, digest.data(), sizeof(first));
  return first;
}

std::string JobKey::encode() const {
  return str_cat(to_hex(secret.data(), secret.size()), " ", job_id);
}

Result<JobKey> JobKey::decode(const std::string& text) {
  JobKey key;
  std::string hex;
  std::istringstream in(text);
  in >> hex >> key.job_id;
  if (!in || !from_hex(hex, key.secret.data(), key.secret.size())) return malformed("key", "...");
  return key;
}

std::string host_id_of(const std::string& boot_id, uint64_t network,
                       const std::string& hardware_address) {
  // Nobody is on the host of a process that does not know its own: messages take the network.
  const std::string kernel = boot_id.empty() ? to_hex(random_challenge().data(), 16) : boot_id;
  return str_cat(kernel, ":", network, ":", hardware_address);
}

HostAddress local_host_address() {
  HostAddress address;
  char name[256] = "unknown";
  gethostname(name, sizeof(name) - 1);
  address.host_name = name;
  address.host_id = host_id_of(boot_id(), network_namespace(), first_hardware_address());
  address.pid = getpid();
  note_cores(&address);
  return address;
}

}  // namespace dmlcomm::transport
