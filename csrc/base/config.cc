#include "base/config.h"

#include <arpa/inet.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/proxy_setting.h"
#include "base/str_cat.h"
#include "base/ticket.h"

namespace dmlcomm {
namespace {

// Longest names the kernel takes: IFNAMSIZ and TCP_CA_NAME_MAX are 16 with the terminating zero.
constexpr size_t kMaxInterfaceName = 15;
constexpr size_t kMaxCongestionName = 15;

// As csrc/ps has room for.
constexpr int32_t kMaxPsWorker = 4095;

// setsockopt takes an int, and the kernel doubles it.
constexpr uint64_t kMaxBufferBytes = 1u << 30;
constexpr uint64_t kMinCreditBytes = 16 * 1024;
constexpr uint64_t kMinCudaChunkBytes = 256 * 1024;

// One variable: its name and its text. Every parser below leaves *out alone, so at the default,
// when the variable is not set.
struct Variable {
  explicit Variable(const char* variable_name) : name(variable_name) {
    const char* value = std::getenv(variable_name);
    text = value != nullptr ? value : "";
  }

  bool is_set() const { return !text.empty(); }

  Status illegal(std::string_view legal) const {
    return Status(StatusCode::invalid_argument, name, "=\"", text, "\" is not legal: expected ",
                  legal);
  }

  std::string_view name;
  std::string_view text;
};

template <typename Number>
bool parse_whole(std::string_view text, Number* out) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *out);
  return error == std::errc() && stop == end;
}

template <typename Number>
Status parse_number(const char* name, Number low, Number high, std::string_view unit, Number* out) {
  const Variable variable(name);
  if (!variable.is_set()) return {};
  Number value{};
  // Written so that NaN, which compares false, is refused too.
  if (!parse_whole(variable.text, &value) || !(value >= low && value <= high)) {
    return variable.illegal(str_cat("a number from ", low, " to ", high, " (", unit, ")"));
  }
  *out = value;
  return {};
}

template <typename Value, size_t N>
Status parse_choice(const char* name,
                    const std::array<std::pair<std::string_view, Value>, N>& choices, Value* out) {
  const Variable variable(name);
  if (!variable.is_set()) return {};
  std::string legal;
  for (const auto& [word, value] : choices) {
    if (variable.text == word) {
      *out = value;
      return {};
    }
    append_text(&legal, legal.empty() ? "one of " : ", ");
    append_text(&legal, word);
  }
  return variable.illegal(legal);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> items;
  for (size_t end; (end = text.find(separator)) != std::string_view::npos;) {
    items.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  items.push_back(text);
  return items;
}

bool is_word(std::string_view text, std::string_view extra) {
  for (const char c : text) {
    const bool alphanumeric =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!alphanumeric && extra.find(c) == std::string_view::npos) return false;
  }
  return !text.empty();
}

// Linux takes nearly every byte in an interface's name; a space, a slash or a control character is
// a mistake in the list.
bool is_interface_item(std::string_view item) {
  if (item.starts_with('=')) item.remove_prefix(1);
  if (item.empty() || item.size() > kMaxInterfaceName) return false;
  for (const char c : item) {
    if (static_cast<unsigned char>(c) <= ' ' || c == '/' || c == '^' || c == '=') return false;
  }
  return true;
}

Status parse_interfaces(const char* name, std::string* out) {
  const Variable variable(name);
  if (!variable.is_set()) return {};
  std::string_view list = variable.text;
  if (list.starts_with('^')) list.remove_prefix(1);
  for (const std::string_view item : split(list, ',')) {
    if (is_interface_item(item)) continue;
    return variable.illegal(
        "a comma list of interface name prefixes, \"=\" before an item for the exact name, "
        "\"^\" before the list to exclude (eth,=ib0 or ^lo,docker)");
  }
  *out = variable.text;
  return {};
}

// No form is demanded here: a path may be any text.
void read_text(const char* name, std::string* out) {
  const Variable variable(name);
  if (variable.is_set()) *out = variable.text;
}

// Only the form: which names an operation has is known where the algorithm is chosen.
Status parse_algorithm(const char* name, std::string* out) {
  const Variable variable(name);
  if (!variable.is_set()) return {};
  bool well_formed = true;
  if (variable.text.find_first_of("=,") == std::string_view::npos) {
    well_formed = is_word(variable.text, "_");
  } else {
    std::vector<std::string_view> seen;
    for (const std::string_view item : split(variable.text, ',')) {
      const size_t equals = item.find('=');
      const std::string_view op = item.substr(0, equals);
      well_formed = well_formed && equals != std::string_view::npos && is_word(op, "_") &&
                    is_word(item.substr(equals + 1), "_");
      for (const std::string_view earlier : seen) well_formed = well_formed && earlier != op;
      seen.push_back(op);
    }
  }
  if (!well_formed) {
    return variable.illegal(
        "\"name\" or \"op=name[,op=name]\" with each op once (all_reduce=ring)");
  }
  *out = variable.text;
  return {};
}

Status parse_port_range(const char* name, uint16_t* first, uint16_t* last) {
  const Variable variable(name);
  if (!variable.is_set()) return {};
  const size_t dash = variable.text.find('-');
  uint16_t low = 0;
  uint16_t high = 0;
  if (dash == std::string_view::npos || !parse_whole(variable.text.substr(0, dash), &low) ||
      !parse_whole(variable.text.substr(dash + 1), &high) || low == 0 || low > high) {
    return variable.illegal("\"first-last\" with 1 <= first <= last <= 65535 (29500-29599)");
  }
  *first = low;
  *last = high;
  return {};
}

Status parse_congestion(const char* name, std::string* out) {
  const Variable variable(name);
  if (!variable.is_set()) return {};
  if (variable.text.size() > kMaxCongestionName || !is_word(variable.text, "_-")) {
    return variable.illegal(
        "the name of a congestion control, of which the system's are in "
        "/proc/sys/net/ipv4/tcp_available_congestion_control");
  }
  *out = variable.text;
  return {};
}

// RANK belongs to others: whatever it holds, only a number that a worker may have counts.
Status parse_ps_worker(const char* name, int32_t* out) {
  if (Variable(name).is_set()) {
    return parse_number<int32_t>(name, 0, kMaxPsWorker, "a worker", out);
  }
  int32_t rank = -1;
  if (parse_whole(Variable("RANK").text, &rank) && rank >= 0 && rank <= kMaxPsWorker) *out = rank;
  return {};
}

// LOCAL_RANK belongs to others, too.
Status parse_metrics(Config* c) {
  const Variable host("DMLCOMM_METRICS_HOST");
  read_text("DMLCOMM_METRICS_HOST", &c->metrics_host);
  in6_addr address{};
  if (inet_pton(AF_INET, c->metrics_host.c_str(), &address) != 1 &&
      inet_pton(AF_INET6, c->metrics_host.c_str(), &address) != 1) {
    return host.illegal("a numeric IPv4 or IPv6 address (127.0.0.1, 0.0.0.0, ::)");
  }
  uint16_t local_rank = 0;
  if (parse_whole(Variable("LOCAL_RANK").text, &local_rank)) c->local_rank = local_rank;
  return parse_number<uint16_t>("DMLCOMM_METRICS_PORT", 1, UINT16_MAX, "a port", &c->metrics_port);
}

// A secret, or the path of a file that holds it, with or without an end of line.
Status read_secret(const char* name, const char* file_name, std::string* out) {
  read_text(name, out);
  const Variable path(file_name);
  if (!path.is_set()) return {};
  if (!out->empty()) return path.illegal(str_cat("nothing, since ", name, " is set"));
  std::ifstream file{std::string(path.text)};
  if (!std::getline(file, *out) || out->empty()) {
    return path.illegal("the path of a file that can be read and holds the secret");
  }
  if (out->back() == '\r') out->pop_back();
  return {};
}

// Left empty without a value.
Status parse_bytes(const char* name, uint64_t least, std::optional<uint64_t>* out) {
  if (!Variable(name).is_set()) return {};
  return parse_number<uint64_t>(name, least, kMaxBufferBytes, "bytes", &out->emplace());
}

Status parse_priority(const char* name, std::optional<uint32_t>* out) {
  if (!Variable(name).is_set()) return {};
  return parse_number<uint32_t>(name, 0, kMaxJobPriority, "0 goes first", &out->emplace());
}

constexpr std::array<std::pair<std::string_view, TransportChoice>, 4> kTransports{{
    {"auto", TransportChoice::automatic},
    {"tcp", TransportChoice::tcp},
    {"shm", TransportChoice::shm},
    {"ucx", TransportChoice::ucx},
}};

constexpr std::array<std::pair<std::string_view, TicketMarking>, 3> kTicketMarkings{{
    {"dscp", TicketMarking::dscp},
    {"ip-option", TicketMarking::ip_option},
    {"none", TicketMarking::none},
}};

constexpr std::array<std::pair<std::string_view, Checksum>, 2> kChecksums{{
    {"none", Checksum::none},
    {"crc32c", Checksum::crc32c},
}};

constexpr std::array<std::pair<std::string_view, LogLevel>, 4> kLogLevels{{
    {"error", LogLevel::error},
    {"warning", LogLevel::warning},
    {"info", LogLevel::info},
    {"debug", LogLevel::debug},
}};

constexpr std::array<std::pair<std::string_view, UcxRemoteMemory>, 3> kUcxRemoteMemory{
    {{"auto", UcxRemoteMemory::automatic},
     {"on", UcxRemoteMemory::on},
     {"off", UcxRemoteMemory::off}}};

constexpr std::array<std::pair<std::string_view, CudaNccl>, 3> kCudaNccl{
    {{"auto", CudaNccl::automatic}, {"always", CudaNccl::always}, {"never", CudaNccl::never}}};

constexpr std::array<std::pair<std::string_view, bool>, 2> kSwitch{{{"1", true}, {"0", false}}};

// The table has every value.
template <typename Value, size_t N>
std::string_view choice_name(const std::array<std::pair<std::string_view, Value>, N>& choices,
                             Value value) {
  for (const auto& [name, choice] : choices) {
    if (choice == value) return name;
  }
  DMLCOMM_CHECK(false);
  return {};
}

Status read_into(Config* c) {
  DMLCOMM_RETURN_IF_ERROR(parse_interfaces("DMLCOMM_SOCKET_IFNAME", &c->socket_ifname));
  read_text("DMLCOMM_TOPOLOGY", &c->topology);
  read_text("DMLCOMM_PLAN", &c->plan);
  DMLCOMM_RETURN_IF_ERROR(parse_choice("DMLCOMM_TRANSPORT", kTransports, &c->transport));
  DMLCOMM_RETURN_IF_ERROR(
      parse_choice("DMLCOMM_UCX_REMOTE_MEMORY", kUcxRemoteMemory, &c->ucx_remote_memory));
  DMLCOMM_RETURN_IF_ERROR(parse_choice("DMLCOMM_TICKET_MARK", kTicketMarkings, &c->ticket_mark));
  DMLCOMM_RETURN_IF_ERROR(parse_choice("DMLCOMM_CHECKSUM", kChecksums, &c->checksum));
  DMLCOMM_RETURN_IF_ERROR(parse_algorithm("DMLCOMM_ALGORITHM", &c->algorithm));
  DMLCOMM_RETURN_IF_ERROR(parse_choice("DMLCOMM_AUTOTUNE", kSwitch, &c->autotune));
  DMLCOMM_RETURN_IF_ERROR(parse_choice("DMLCOMM_PROBE", kSwitch, &c->probe));
  DMLCOMM_RETURN_IF_ERROR(parse_port_range("DMLCOMM_PORT_RANGE", &c->port_first, &c->port_last));
  DMLCOMM_RETURN_IF_ERROR(read_secret("DMLCOMM_SECRET", "DMLCOMM_SECRET_FILE", &c->secret));
  read_text("DMLCOMM_PS_SERVERS", &c->ps_servers);
  DMLCOMM_RETURN_IF_ERROR(read_secret("DMLCOMM_PS_TOKEN", "DMLCOMM_PS_TOKEN_FILE", &c->ps_token));
  DMLCOMM_RETURN_IF_ERROR(parse_ps_worker("DMLCOMM_PS_WORKER", &c->ps_worker));
  DMLCOMM_RETURN_IF_ERROR(parse_priority("DMLCOMM_JOB_PRIORITY", &c->job_priority));
  DMLCOMM_RETURN_IF_ERROR(
      parse_number("DMLCOMM_PEER_TIMEOUT_S", 0.2, 3600.0, "seconds", &c->peer_timeout_s));
  DMLCOMM_RETURN_IF_ERROR(parse_metrics(c));
  DMLCOMM_RETURN_IF_ERROR(parse_choice("DMLCOMM_LOG_LEVEL", kLogLevels, &c->log_level));
  DMLCOMM_RETURN_IF_ERROR(
      parse_number<uint32_t>("DMLCOMM_SPIN_US", 0, 1'000'000, "microseconds", &c->spin_us));
  DMLCOMM_RETURN_IF_ERROR(parse_number<uint64_t>("DMLCOMM_SHM_BOARD_BYTES", 0, 64u << 20, "bytes",
                                                 &c->shm_board_bytes));
  DMLCOMM_RETURN_IF_ERROR(parse_choice("DMLCOMM_SHM_SINGLE_COPY", kSwitch, &c->shm_single_copy));
  DMLCOMM_RETURN_IF_ERROR(parse_choice("DMLCOMM_HUGE_PAGES", kSwitch, &c->huge_pages));
  DMLCOMM_RETURN_IF_ERROR(parse_choice("DMLCOMM_SHARE_TENSORS", kSwitch, &c->share_tensors));
  DMLCOMM_RETURN_IF_ERROR(parse_congestion("DMLCOMM_TCP_CONGESTION", &c->tcp_congestion));
  DMLCOMM_RETURN_IF_ERROR(parse_number<uint64_t>("DMLCOMM_CUDA_CHUNK_BYTES", kMinCudaChunkBytes,
                                                 kMaxBufferBytes, "bytes", &c->cuda_chunk_bytes));
  DMLCOMM_RETURN_IF_ERROR(parse_choice("DMLCOMM_CUDA_NCCL", kCudaNccl, &c->cuda_nccl));
  DMLCOMM_RETURN_IF_ERROR(parse_bytes("DMLCOMM_CREDIT_BYTES", kMinCreditBytes, &c->credit_bytes));
  DMLCOMM_RETURN_IF_ERROR(parse_number<uint32_t>("DMLCOMM_TICKET_CONNECTIONS", 0,
                                                 kMaxTicketConnections, "connections",
                                                 &c->ticket_connections));
  return parse_bytes("DMLCOMM_TCP_BUFFER_BYTES", 0, &c->tcp_buffer_bytes);
}

}  // namespace

std::string_view to_string(TransportChoice choice) { return choice_name(kTransports, choice); }
std::string_view to_string(TicketMarking marking) { return choice_name(kTicketMarkings, marking); }
std::string_view to_string(UcxRemoteMemory choice) { return choice_name(kUcxRemoteMemory, choice); }
std::string_view to_string(CudaNccl choice) { return choice_name(kCudaNccl, choice); }
std::string_view to_string(Checksum checksum) { return choice_name(kChecksums, checksum); }
std::string_view to_string(LogLevel level) { return choice_name(kLogLevels, level); }

Result<Config> read_config() {
  Config config;
  if (Status status = read_into(&config); !status.ok()) return status;
  return config;
}

Result<std::string> proxy_setting() {
  const Variable variable("DMLCOMM_PROXY");
  if (!variable.is_set()) return std::string("auto");
  const std::string text(variable.text);
  if (text == "auto" || text == "none" || text.front() == '/') return text;
  return variable.illegal("auto, none, or the path of a proxy's socket, which begins with /");
}

const Result<Config>& process_config() {
  static const Result<Config> config = read_config();
  return config;
}

}  // namespace dmlcomm
