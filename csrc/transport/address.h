// Addresses: a rank publishes them, and the others connect to them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dmlcomm::transport {

// The place of a rank. Published first: it decides who shares memory with whom.
struct HostAddress {
  std::string host_id;    // of host_id_of(): the same text on ranks that can share memory
  std::string host_name;  // for messages
  int pid = 0;
  std::string unix_name;            // abstract Unix socket of this communicator
  int num_cores = 1;                // that the process may use
  std::string cores = "-";          // which these are, as a bit mask in hexadecimal; "-": not known
  bool tunes = true;                // see MeshOptions
  bool probes = true;               // see Config
  uint32_t ticket_connections = 0;  // see Config
  std::string transport = "auto";   // the word of DMLCOMM_TRANSPORT

  // The part of host_id that names the kernel. Hosts of one kernel (containers, a lab) share its
  // cores.
  std::string machine_id() const { return host_id.substr(0, host_id.find(':')); }

  std::string encode() const;
  // `protocol_error` says whether another version of dmlcomm has written the text.
  static Result<HostAddress> decode(const std::string& text);
};

// Ranks per core of a kernel that several hosts share, the largest if there are several such
// kernels; 0 if each host has its own. The same on all ranks, since all know all addresses.
double ranks_per_shared_core(const std::vector<HostAddress>& hosts);

// Ranks per core of one host, if all may use the same cores and divide evenly among them; else 0.
int ranks_per_core_of_host(const std::vector<HostAddress>& ranks);

// `invalid_argument` if two ranks have different settings of what connects them, be it inside a
// host or between hosts; the same on all ranks, since all know all addresses.
Status check_same_settings(const std::vector<HostAddress>& hosts);

// An interface of this host that may carry data between hosts.
struct RailAddress {
  std::string interface;  // "eth1"
  std::string address;    // "10.0.1.7" or "fd00::7"
};

// The address at which a rank listens, one per rail.
struct RailEndpoint {
  std::string interface;
  std::string address;
  uint16_t port = 0;
  uint16_t relay_port = 0;  // of its relay service; 0: it has none
};

std::string encode_rails(const std::vector<RailEndpoint>& rails);
// Of a rank that cannot listen: decode_rails() fails with `why`, as `peer_lost`.
std::string encode_no_rails(const std::string& why);
Result<std::vector<RailEndpoint>> decode_rails(const std::string& text);

// The secret that admits connections, and the number that marks frames of this communicator.
struct JobKey {
  std::array<std::byte, 16> secret{};
  uint64_t job_id = 0;

  static Result<JobKey> random();
  // The user's secret joins this one, which stands in the store: both are needed from now on.
  void mix_in(std::string_view users_secret);
  // What shows others that this rank has the same secret of the user; of `text`, so that none is
  // like another.
  static std::string mark_of(std::string_view users_secret, std::string_view text);
  // For relays, to which it travels in clear text: it tells nothing of `secret`.
  std::array<std::byte, 16> relay_secret() const;
  // A number that only those who have the secret can know; of `text`.
  uint64_t derived(std::string_view text) const;
  std::string encode() const;
  static Result<JobKey> decode(const std::string& text);
};

std::string to_hex(const std::byte* bytes, size_t count);
// False if `text` is no such text.
bool from_hex(const std::string& text, std::byte* bytes, size_t count);

// Unlike any before, in this process or elsewhere.
std::array<std::byte, 16> random_challenge();

// Names a kernel, a network namespace and its first NIC, joined by colons. Without a `boot_id` it
// is like no other.
std::string host_id_of(const std::string& boot_id, uint64_t network,
                       const std::string& hardware_address);

// This host and process.
HostAddress local_host_address();

}  // namespace dmlcomm::transport
