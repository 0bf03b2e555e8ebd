#include "transport/ucx/ucx_rail.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/clock.h"

namespace dmlcomm::transport::ucx {
namespace {

// More than the headers of UCX and ours in a segment.
constexpr size_t kSegmentOverhead = 8 * 1024;

// For UCX to send what is left.
constexpr int64_t kFlushLimitNs = 100 * kNsPerMs;

// So many rounds at most, so that links get their turn.
constexpr int kMostRounds = 64;

// An RDMA NIC is the device of its network interface, and has UCX's name for it: "mlx5_0:1".
std::string rdma_device_of(const std::string& interface) {
  const std::string folder = str_cat("/sys/class/net/", interface);
  std::error_code none;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder + "/device/infiniband", none)) {
    int port = 0;
    std::ifstream(folder + "/dev_port") >> port;
    return str_cat(entry.path().filename().string(), ":", port + 1);
  }
  return "";
}

// Until UCX 1.17 an option of a transport has no prefix in this place.
bool names_transports(const UcxApi& api) {
  unsigned major = 0, minor = 0, release = 0;
  api.version_numbers(&major, &minor, &release);
  return std::pair(major, minor) >= std::pair(1u, 17u);
}

// UCX warns of options that nothing takes, so there must be what they are for.
bool is_offered(std::string_view prefix) {
  static const Result<UcxOffer> offer = ucx_offer();  // it opens a context: once is enough
  return offer.ok() && std::ranges::any_of(offer->resources, [&](const std::string& resource) {
           return resource.starts_with(prefix);
         });
}

// UCX's TCP cuts messages into segments: of 8 KiB unless told otherwise, which took 1.5 times as
// long as with a segment per slot, between emulated hosts of two NICs.
void add_segment_sizes(const UcxApi& api, UcxApi::Options* options) {
  if (!is_offered("tcp/")) return;
  const std::string prefix = names_transports(api) ? "TCP_" : "";
  const std::string bytes = std::to_string(kSlotBytes + kSegmentOverhead);
  options->emplace_back(prefix + "TX_SEG_SIZE", bytes);
  options->emplace_back(prefix + "RX_SEG_SIZE", bytes);
}

// Inside a host: of the transports that the user names in UCX_TLS, if any.
bool may_have_remote_memory(const std::string& interface) {
  return interface == kLoopback ? is_offered("cma/") : !rdma_device_of(interface).empty();
}

// Inside a host: UCX's shared memory and CMA count only if they tell of a peer's end and take
// memory back, which they do not by themselves. Members do both: they watch the peer's socket, and
// confirm what was fetched. A rank that has no CMA says so of its shared memory, too: UCX finds no
// way between ranks that differ there.
void add_memory_inside_host(const UcxApi& api, UcxApi::Options* options) {
  const bool named = names_transports(api);
  if (is_offered("posix/"))
    options->emplace_back(named ? "POSIX_ERROR_HANDLING" : "MM_ERROR_HANDLING", "y");
  if (is_offered("cma/"))
    options->emplace_back(named ? "CMA_MEMORY_INVALIDATE" : "MEMORY_INVALIDATE", "y");
}

// Between hosts nothing may go around the NIC, as it could where hosts are namespaces of one
// kernel.
UcxApi::Options options_of(const UcxApi& api, const std::string& interface,
                           UcxRemoteMemory remote_memory, bool seeks_remote_memory) {
  UcxApi::Options options;
  add_segment_sizes(api, &options);
  if (seeks_remote_memory) options.emplace_back("RNDV_SCHEME", "get_zcopy");
  if (interface == kLoopback && remote_memory != UcxRemoteMemory::off) {
    add_memory_inside_host(api, &options);
  }
  const std::string rdma = interface == kLoopback ? "" : rdma_device_of(interface);
  options.emplace_back("NET_DEVICES", rdma.empty() ? interface : str_cat(rdma, ",", interface));
  if (interface == kLoopback) return options;
  options.emplace_back("SHM_DEVICES", "");
  options.emplace_back("SELF_DEVICES", "");
  return options;
}

MessageHeader header_of(const void* bytes) {
  MessageHeader header;
  std::memcpy(&header, bytes, sizeof(header));
  return header;
}

}  // namespace

Result<std::unique_ptr<UcxRail>> UcxRail::open(const std::string& interface,
                                               UcxRemoteMemory remote_memory) {
  const Result<UcxApi>& api = UcxApi::load();
  if (!api.ok()) return api.status();
  std::unique_ptr<UcxRail> rail(new UcxRail(*api));
  if (const Status status = rail->start(interface, remote_memory); !status.ok()) {
    return Status(status.code(), "interface ", interface, ": ", status.message(),
                  "; `dmlcomm doctor` shows what UCX has here, UCX_TLS chooses");
  }
  return rail;
}

Status UcxRail::start(const std::string& interface, UcxRemoteMemory remote_memory) {
  seeks_remote_memory_ =
      remote_memory == UcxRemoteMemory::on ||
      (remote_memory == UcxRemoteMemory::automatic && may_have_remote_memory(interface));
  Result<UcxApi::Handle> context =
      api_.open_context(options_of(api_, interface, remote_memory, seeks_remote_memory_));
  if (!context.ok()) return context.status();
  context_ = *context;
  abi::WorkerParams params;
  params.field_mask = abi::kWorkerParamThreadMode;
  params.thread_mode = abi::kThreadModeSerialized;
  DMLCOMM_RETURN_IF_ERROR(
      api_.check(api_.create_worker(context_, &params, &worker_), "ucp_worker_create"));
  DMLCOMM_RETURN_IF_ERROR(
      api_.check(api_.get_descriptor(worker_, &descriptor_), "ucp_worker_get_efd"));
  DMLCOMM_RETURN_IF_ERROR(set_handler(MessageKind::data, on_data));
  DMLCOMM_RETURN_IF_ERROR(
      set_handler(MessageKind::read_count, on_number<&UcxUser::messages_were_read>));
  DMLCOMM_RETURN_IF_ERROR(set_handler(MessageKind::lent, on_lent));
  DMLCOMM_RETURN_IF_ERROR(
      set_handler(MessageKind::confirmation, on_number<&UcxUser::message_confirmed>));
  UcxApi::Handle address = nullptr;
  size_t bytes = 0;
  DMLCOMM_RETURN_IF_ERROR(
      api_.check(api_.get_address(worker_, &address, &bytes), "ucp_worker_get_address"));
  address_.assign(static_cast<const char*>(address), bytes);
  api_.release_address(worker_, address);
  return Status();
}

Status UcxRail::set_handler(MessageKind kind, abi::MessageHandler handler) {
  abi::HandlerParam param;
  param.field_mask = abi::kHandlerId | abi::kHandlerFunction | abi::kHandlerArgument;
  param.id = static_cast<unsigned>(kind);
  param.handler = handler;
  param.argument = this;
  return api_.check(api_.set_handler(worker_, &param), "ucp_worker_set_am_recv_handler");
}

// The worker ends what is under way, which calls back. A worker that has to send over a cable that
// is pulled would wait for it: it stays until the process ends.
UcxRail::~UcxRail() {
  const auto is_flushing = [this] {
    return std::ranges::any_of(members_,
                               [](const auto& member) { return member.second.is_flushing; });
  };
  const int64_t end_ns = now_ns() + kFlushLimitNs;
  if (worker_ != nullptr) poll();
  while (is_flushing() && now_ns() < end_ns) poll();
  if (is_flushing()) {
    // With the memory that it may still send from.
    for (std::unique_ptr<Slot>& slot : slots_) (void)slot.release();
    for (std::unique_ptr<Loan>& loan : loans_) (void)loan.release();
    return;
  }
  if (worker_ != nullptr) api_.destroy_worker(worker_);
  if (context_ != nullptr) api_.destroy_context(context_);
}

void UcxRail::poll() {
  for (int i = 0; i < kMostRounds && api_.progress(worker_) > 0;) ++i;
  for (const auto& [key, member] : members_) {
    if (member.user != nullptr) member.user->settle();
  }
  close_flushed();
}

bool UcxRail::arm() { return api_.arm(worker_) == abi::kOk; }

UcxUser* UcxRail::user_of(uint64_t key) const {
  const auto it = members_.find(key);
  return it == members_.end() ? nullptr : it->second.user;
}

Status UcxRail::add(uint64_t key, UcxUser& user, const std::string& address) {
  Member& member = members_[key];
  member = {this, key, &user, nullptr};
  abi::EndpointParams params;
  params.field_mask =
      abi::kEndpointParamAddress | abi::kEndpointParamErrorMode | abi::kEndpointParamErrorHandler;
  params.address = address.data();
  params.error_mode = abi::kErrorModePeer;
  params.error_handler = on_error;
  params.error_argument = &member;
  return api_.check(api_.create_endpoint(worker_, &params, &member.endpoint), "ucp_ep_create");
}

// What the endpoint still has is sent first; the peer drops what it has no channel for.
void UcxRail::remove(uint64_t key) {
  const auto it = members_.find(key);
  if (it == members_.end()) return;
  Member& member = it->second;
  member.user = nullptr;
  if (member.is_closing) return;
  if (member.endpoint == nullptr) return static_cast<void>(members_.erase(it));
  abi::RequestParam param;
  param.mask = abi::kRequestCallback | abi::kRequestUserData;
  param.callback.send = on_flushed;
  param.user_data = &member;
  member.is_flushing = abi::is_request(api_.flush_endpoint(member.endpoint, &param));
}

void UcxRail::on_flushed(void* request, abi::Code, void* at) {
  Member& member = *static_cast<Member*>(at);
  member.rail->api_.free_request(request);
  member.is_flushing = false;
}

// A forced close writes to the socket until it has room, and what UCX has not sent stays with a
// connection that UCX (1.13 to 1.22) frees when the peer closes it too, and writes to once more if
// the socket gets room just then. So there must be nothing left to send.
void UcxRail::close_flushed() {
  for (auto it = members_.begin(); it != members_.end();) {
    Member& member = (it++)->second;
    if (member.user == nullptr && !member.is_flushing && member.endpoint != nullptr) close(member);
  }
}

// By force.
void UcxRail::close(Member& member) {
  abi::RequestParam param;
  param.mask = abi::kRequestFlags | abi::kRequestCallback | abi::kRequestUserData;
  param.flags = abi::kCloseForce;
  param.callback.send = on_closed;
  param.user_data = &member;
  member.is_closing = true;
  UcxApi::Handle const endpoint = std::exchange(member.endpoint, nullptr);
  if (!abi::is_request(api_.close_endpoint(endpoint, &param))) members_.erase(member.key);
}

// The member stays until the endpoint is closed: UCX knows its address.
void UcxRail::on_closed(void* request, abi::Code, void* at) {
  const Member& member = *static_cast<Member*>(at);
  UcxRail& rail = *member.rail;
  rail.api_.free_request(request);
  rail.members_.erase(member.key);
}

void UcxRail::on_error(void* member, void*, abi::Code code) {
  const Member& at = *static_cast<Member*>(member);
  if (at.user != nullptr) at.user->failed(at.rail->api_.text_of(code));
}

// --- remote memory ---

// UCX has no function for it that all versions have, but it prints a line per lane, as
// "#  lane[1]:  3:cma/memory.0 md[2]  -> md[2]/cma/sysdev[255] rma_bw#0". An endpoint with a lane
// of TCP has none: it could not be closed at once.
bool UcxRail::has_remote_memory(uint64_t key) const {
  const auto it = members_.find(key);
  if (!seeks_remote_memory_ || it == members_.end() || it->second.endpoint == nullptr) return false;
  const std::string text = api_.text_of_endpoint(it->second.endpoint);
  return text.find("rma_bw#") != std::string::npos && text.find(":tcp/") == std::string::npos;
}

Loan* UcxRail::new_loan(const MessageHeader& header) {
  return loans_.emplace_back(new Loan{this, header}).get();
}

Loan* UcxRail::lend(const MessageHeader& header, const std::byte* data, size_t bytes) {
  Loan* const loan = new_loan(header);
  abi::RequestParam param;
  param.mask = abi::kRequestCallback | abi::kRequestUserData | abi::kRequestFlags;
  param.flags = abi::kSendByRendezvous;
  param.callback.send = on_fetched_from_us;
  param.user_data = loan;
  const abi::StatusPointer sent =
      api_.send_message(members_[header.key].endpoint, static_cast<unsigned>(MessageKind::lent),
                        &loan->header, sizeof(MessageHeader), data, bytes, &param);
  if (!abi::is_request(sent)) on_fetched_from_us(nullptr, abi::code_of(sent), loan);
  return loan;
}

void UcxRail::on_fetched_from_us(void* request, abi::Code code, void* at) {
  Loan* const loan = static_cast<Loan*>(at);
  UcxRail& rail = *loan->rail;
  if (request != nullptr) rail.api_.free_request(request);
  UcxUser* const user = loan->has_owner ? rail.user_of(loan->header.key) : nullptr;
  if (user != nullptr && code == abi::kOk) user->message_was_fetched(loan->header.number);
  rail.loan_ended(loan, code);
}

Loan* UcxRail::fetch_to(std::byte* to, const MessageHeader& header, void* offered, size_t bytes) {
  Loan* const loan = new_loan(header);
  abi::RequestParam param;
  param.mask = abi::kRequestCallback | abi::kRequestUserData;
  param.callback.receive = on_fetched;
  param.user_data = loan;
  const abi::StatusPointer received = api_.receive_message(worker_, offered, to, bytes, &param);
  if (!abi::is_request(received)) loan_ended(loan, abi::code_of(received));
  return loan;
}

void UcxRail::on_fetched(void* request, abi::Code code, size_t, void* at) {
  Loan* const loan = static_cast<Loan*>(at);
  loan->rail->api_.free_request(request);
  loan->rail->loan_ended(loan, code);
}

void UcxRail::loan_ended(Loan* loan, abi::Code code) {
  loan->is_done = true;
  loan->has_failed = code != abi::kOk;
  if (!loan->has_owner) return give_back(loan);
  UcxUser* const user = user_of(loan->header.key);
  if (code != abi::kOk && user != nullptr) user->failed(api_.text_of(code));
}

void UcxRail::give_back(Loan* loan) {
  loan->has_owner = false;
  if (loan->is_done) std::erase_if(loans_, [&](const auto& each) { return each.get() == loan; });
}

void UcxRail::end_loans(uint64_t key) {
  const auto it = members_.find(key);
  if (it != members_.end() && it->second.endpoint != nullptr) close(it->second);
}

// --- sending ---

Slot* UcxRail::take_slot(uint64_t key, MessageKind kind) {
  if (free_.empty()) {
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->rail = this;
    free_.push_back(slots_.back().get());
  }
  Slot* const slot = free_.back();
  free_.pop_back();
  slot->kind = kind;
  slot->header.key = key;
  slot->bytes = 0;
  return slot;
}

void UcxRail::send(Slot* slot) {
  abi::RequestParam param;
  param.mask = abi::kRequestCallback | abi::kRequestUserData;
  param.callback.send = on_sent;
  param.user_data = slot;
  // A slot may be given back early where endpoints are closed at once: nobody is to fetch it then.
  if (seeks_remote_memory_) param.mask |= abi::kRequestFlags;
  if (seeks_remote_memory_) param.flags = abi::kSendAtOnce;
  const abi::StatusPointer sent = api_.send_message(
      members_[slot->header.key].endpoint, static_cast<unsigned>(slot->kind), &slot->header,
      sizeof(MessageHeader), slot->memory.get(), slot->bytes, &param);
  if (sent == nullptr) return give_back(slot);
  if (!abi::is_error(sent)) return;
  UcxUser* const user = user_of(slot->header.key);
  give_back(slot);
  if (user != nullptr) user->failed(api_.text_of(abi::code_of(sent)));
}

void UcxRail::on_sent(void* request, abi::Code code, void* at) {
  Slot* const slot = static_cast<Slot*>(at);
  UcxRail& rail = *slot->rail;
  rail.api_.free_request(request);
  UcxUser* const user = rail.user_of(slot->header.key);
  rail.give_back(slot);
  if (code != abi::kOk && user != nullptr) user->failed(rail.api_.text_of(code));
}

// --- receiving ---

// A message of a channel that is gone, or of a stranger, is dropped.
abi::Code UcxRail::begin(const void* header_bytes, size_t num_header_bytes, void* data,
                         size_t bytes, const abi::MessageParam* param, bool is_lent) {
  if (num_header_bytes != sizeof(MessageHeader) || bytes > kSlotBytes) return abi::kOk;
  const MessageHeader header = header_of(header_bytes);
  UcxUser* const user = user_of(header.key);
  if (user == nullptr) return abi::kOk;
  Arrival arrival;
  arrival.bytes = bytes;
  arrival.is_lent = is_lent;
  if ((param->attributes & abi::kMessageIsKept) != 0) {
    arrival.data = static_cast<const std::byte*>(data);
    arrival.kept = data;
    arrival.is_complete = true;
    return user->message_began(header.number, arrival) ? abi::kInProgress : abi::kOk;
  }
  const bool is_rendezvous = (param->attributes & abi::kMessageIsRendezvous) != 0;
  if (is_lent && is_rendezvous) {
    arrival.offered = data;
    return user->message_began(header.number, arrival) ? abi::kInProgress : abi::kOk;
  }
  Slot* const slot = take_slot(header.key);
  slot->header = header;
  if (!is_rendezvous) std::memcpy(slot->memory.get(), data, bytes);
  arrival.data = slot->memory.get();
  arrival.slot = slot;
  arrival.is_complete = !is_rendezvous;
  if (!user->message_began(header.number, arrival)) {
    give_back(slot);
    return abi::kOk;
  }
  if (!is_rendezvous) return abi::kOk;
  receive(slot, data, bytes);
  return abi::kInProgress;
}

abi::Code UcxRail::on_data(void* rail, const void* header, size_t header_bytes, void* data,
                           size_t bytes, const abi::MessageParam* param) {
  return static_cast<UcxRail*>(rail)->begin(header, header_bytes, data, bytes, param, false);
}

abi::Code UcxRail::on_lent(void* rail, const void* header, size_t header_bytes, void* data,
                           size_t bytes, const abi::MessageParam* param) {
  return static_cast<UcxRail*>(rail)->begin(header, header_bytes, data, bytes, param, true);
}

void UcxRail::receive(Slot* slot, void* message, size_t bytes) {
  abi::RequestParam param;
  param.mask = abi::kRequestCallback | abi::kRequestUserData;
  param.callback.receive = on_received;
  param.user_data = slot;
  slot->bytes = bytes;
  const abi::StatusPointer received =
      api_.receive_message(worker_, message, slot->memory.get(), bytes, &param);
  if (received == nullptr) return received_into(slot, abi::kOk);
  if (abi::is_error(received)) received_into(slot, abi::code_of(received));
}

void UcxRail::on_received(void* request, abi::Code code, size_t, void* at) {
  Slot* const slot = static_cast<Slot*>(at);
  slot->rail->api_.free_request(request);
  slot->rail->received_into(slot, code);
}

// Of a channel that is gone, the slot is free now.
void UcxRail::received_into(Slot* slot, abi::Code code) {
  UcxUser* const user = user_of(slot->header.key);
  if (user != nullptr && code == abi::kOk) return user->message_complete(slot->header.number);
  if (user != nullptr) user->message_failed(slot->header.number, api_.text_of(code));
  give_back(slot);
}

template <void (UcxUser::*kTell)(uint64_t)>
abi::Code UcxRail::on_number(void* rail, const void* header_bytes, size_t num_header_bytes, void*,
                             size_t, const abi::MessageParam*) {
  if (num_header_bytes != sizeof(MessageHeader)) return abi::kOk;
  const MessageHeader header = header_of(header_bytes);
  UcxUser* const user = static_cast<UcxRail*>(rail)->user_of(header.key);
  if (user != nullptr) (user->*kTell)(header.number);
  return abi::kOk;
}

void UcxRail::release(const Arrival& arrival) {
  if (arrival.kept != nullptr) api_.release_message(worker_, arrival.kept);
  if (arrival.offered != nullptr) api_.release_message(worker_, arrival.offered);
  if (arrival.loan != nullptr) give_back(arrival.loan);
  if (arrival.slot != nullptr && arrival.is_complete) give_back(arrival.slot);
}

}  // namespace dmlcomm::transport::ucx
