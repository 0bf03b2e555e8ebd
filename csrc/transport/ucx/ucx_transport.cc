#include "transport/ucx/ucx_transport.h"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/str_cat.h"
#include "transport/event_loop.h"
#include "transport/process_memory.h"
#include "transport/ucx/ucx_channel.h"

namespace dmlcomm::transport::ucx {
namespace {

// With UCX or unread, at most: of the only rail to a peer, and of one of several, which is to take
// no more than it will soon carry.
constexpr size_t kWindowBytes = 2 * 1024 * 1024;
constexpr size_t kShortWindowBytes = 512 * 1024;

std::string encode(const Status& opened, std::string_view setting,
                   const std::vector<std::unique_ptr<UcxRail>>& rails) {
  if (!opened.ok()) return str_cat("! ", opened.message());
  std::string text = str_cat(setting, " ");
  for (const auto& rail : rails) {
    const std::string& address = rail->address();
    text += to_hex(reinterpret_cast<const std::byte*>(address.data()), address.size()) + " ";
  }
  return text;
}

// UCX finds no way between ranks with different settings.
Result<std::vector<std::string>> decode(const std::string& text, std::string_view setting) {
  if (text.starts_with('!')) return Status(StatusCode::peer_lost, text.substr(2));
  std::vector<std::string> addresses;
  std::istringstream in(text);
  std::string theirs;
  if (in >> theirs; theirs != setting) {
    return Status(StatusCode::mismatch, "it has DMLCOMM_UCX_REMOTE_MEMORY=", theirs,
                  ", and this rank ", setting, "; it must be the same on all ranks");
  }
  for (std::string hex; in >> hex;) {
    std::string address(hex.size() / 2, '\0');
    if (!from_hex(hex, reinterpret_cast<std::byte*>(address.data()), address.size())) {
      return Status(StatusCode::protocol_error, "a damaged address of UCX: ", text);
    }
    addresses.push_back(std::move(address));
  }
  return addresses;
}

}  // namespace

Status UcxTransport::open_rails() {
  if (job_.grid.size() > 1) {
    return Status(StatusCode::unsupported, "DMLCOMM_TRANSPORT=ucx needs a flat network, and this ",
                  "one is a grid of ", job_.grid.size(), " levels; use auto or tcp");
  }
  const int num_here = job_.num_ranks_on_host();
  std::vector<std::string> interfaces;
  for (const RailAddress& rail : job_.rails) interfaces.push_back(rail.interface);
  if (num_here == job_.num_ranks) interfaces.clear();
  if (num_here > 1) interfaces.push_back(kLoopback);
  if (num_here > 1 && job_.config.ucx_remote_memory != UcxRemoteMemory::off) permit_reading();
  for (const std::string& interface : interfaces) {
    Result<std::unique_ptr<UcxRail>> rail = UcxRail::open(interface, job_.config.ucx_remote_memory);
    if (!rail.ok()) return rail.status();
    rails_.push_back(std::move(*rail));
  }
  const uint32_t source = loop_.add([](uint32_t, Channel::Ready) {});
  for (const auto& rail : rails_) {
    DMLCOMM_RETURN_IF_ERROR(loop_.watch(rail->descriptor(), source, 0, false));
  }
  return Status();
}

// Ranks that wait for the addresses of one that has none are told why.
Status UcxTransport::meet(const std::vector<int>& peers, Rendezvous& rendezvous,
                          Admission& admission) {
  DMLCOMM_RETURN_IF_ERROR(TcpTransport::meet(peers, rendezvous, admission));
  const Status opened = open_rails();
  const std::string_view setting = to_string(job_.config.ucx_remote_memory);
  Result<std::vector<std::string>> texts = rendezvous.exchange(
      "ucx", job_.rank, job_.num_ranks, encode(opened, setting, rails_), job_.timeout);
  DMLCOMM_RETURN_IF_ERROR(opened);
  if (!texts.ok()) return texts.status();
  addresses_.resize(static_cast<size_t>(job_.num_ranks));
  for (const int peer : peers) {
    Result<std::vector<std::string>> addresses = decode((*texts)[peer], setting);
    if (!addresses.ok()) {
      return Status(addresses.status().code(), "rank ", peer, " on host ",
                    job_.hosts[peer].host_name, ": ", addresses.status().message());
    }
    addresses_[peer] = std::move(*addresses);
  }
  return Status();
}

// Both ends derive it from what they alone know, so that no stranger's message is taken.
uint64_t UcxTransport::key_of(int peer, uint64_t connection) const {
  const std::string text =
      str_cat("ucx ", std::min(peer, job_.rank), " ", std::max(peer, job_.rank), " ", connection);
  return job_.key.derived(text);
}

Result<std::unique_ptr<Channel>> UcxTransport::open(int peer, size_t rail, bool is_alone,
                                                    Handshake& handshake) {
  const bool is_local = job_.same_host(peer);
  const std::vector<std::string>& addresses = addresses_[peer];
  const size_t own = is_local ? rails_.size() - 1 : rail;
  const size_t theirs = is_local ? addresses.size() - 1 : rail;
  if (own >= rails_.size() || theirs >= addresses.size()) {
    return Status(StatusCode::protocol_error, "rank ", peer, " has no address of UCX for rail ",
                  rail);
  }
  auto channel = std::make_unique<UcxChannel>(
      handshake.take_fd(), *rails_[own], key_of(peer, handshake.received().connection),
      is_alone ? kWindowBytes : kShortWindowBytes,
      str_cat("ucx to ", job_.hosts[peer].host_name, " over ",
              is_local ? kLoopback : job_.rails[rail].interface));
  // UCX knows what this process may do, and not in which others.
  const Hello& hello = handshake.received();
  const bool fetches = !is_local || (rails_[own]->seeks_remote_memory() &&
                                     can_read_nonce(static_cast<pid_t>(hello.pid),
                                                    hello.nonce_address, hello.nonce));
  DMLCOMM_RETURN_IF_ERROR(channel->connect(addresses[theirs], fetches));
  check_payloads_if_asked(handshake, *channel);
  return std::unique_ptr<Channel>(std::move(channel));
}

void UcxTransport::poll() {
  for (const auto& rail : rails_) rail->poll();
}

bool UcxTransport::arm() {
  return std::all_of(rails_.begin(), rails_.end(), [](const auto& rail) { return rail->arm(); });
}

std::string UcxTransport::description() const {
  return str_cat(TcpTransport::description(), ", bytes over UCX");
}

}  // namespace dmlcomm::transport::ucx
