// Any sequence of frames from a peer: a link must fail in good order, and write nowhere but into
// what was posted. The input is read as frames whose envelope is made valid, so that the fuzzer
// gets past the checksum.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "tests/memory_channel.h"
#include "transport/link.h"

using namespace dmlcomm;             // NOLINT: a fuzz target is one function
using namespace dmlcomm::transport;  // NOLINT

namespace {

class Quiet final : public LinkEvents {
 public:
  void on_sent(SendRequest&) override {}
  void on_arrived(RecvRequest& request) override { request.consumed = request.arrived; }
  void provide_window(RecvRequest& request) override {
    std::vector<std::byte>& window = windows.emplace_back();
    window.resize(request.scattered ? request.bytes : kEagerBytes);
    request.window = window.data();
    request.window_bytes = window.size();
  }
  RecvRequest* claim_any_source(Tag, uint64_t) override { return nullptr; }
  Status check_operation(int, Tag, const OpInfo&) override { return Status(); }
  uint64_t oldest_collective() const override { return oldest; }
  bool runs_others() const override { return others; }
  Status size_mismatch(int, const RecvRequest&, const OpInfo&, uint64_t) override {
    return Status(StatusCode::mismatch, "size");
  }
  void on_failed(int, const Status&, bool) override {}
  void on_rail_event(int, bool, const std::string&) override {}
  void on_goodbye(int) override {}

  uint64_t oldest = 1;
  bool others = false;
  std::list<std::vector<std::byte>> windows;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t num_rails = 1 + *data % 2;
  ++data;
  --size;
  Quiet events;
  RailCounters counters[2];
  Link link(LinkOptions{0, 1, 7, num_rails, &events, counters});
  auto out = std::make_shared<tests::MemoryChannel::Pipe>();
  auto in = std::make_shared<tests::MemoryChannel::Pipe>();
  link.attach(0, std::make_unique<tests::MemoryChannel>(out, in, 1 << 16, false));

  std::vector<std::byte> direct_memory(100);
  RecvRequest direct;
  direct.tag = collective_tag(1, 0, 0);
  direct.destination = direct_memory.data();
  direct.bytes = direct_memory.size();
  RecvRequest streamed;
  streamed.tag = collective_tag(1, 0, 1);
  streamed.bytes = 100'000;
  RecvRequest message;
  std::vector<std::byte> message_memory(60'000);
  message.tag = point_to_point_tag(1);
  message.destination = message_memory.data();
  message.bytes = message_memory.size();
  link.recv(direct);
  link.recv(streamed);
  link.recv(message);

  while (size >= kHeaderBytes) {
    FrameHeader header;
    std::memcpy(static_cast<void*>(&header), data, kHeaderBytes);
    // The place of the magic number says how the engine stands.
    events.others = header.magic & 1;
    events.oldest = header.magic >> 1;
    data += kHeaderBytes;
    size -= kHeaderBytes;
    header.magic = FrameHeader::kMagic;
    header.version = FrameHeader::kVersion;
    header.job_id = 7;
    header.source = 1;
    header.payload_bytes %= 4096;
    HeaderBytes raw;
    encode_header(header, raw);
    in->bytes.insert(in->bytes.end(), raw.begin(), raw.end());
    in->bytes.insert(in->bytes.end(), header.payload_bytes, std::byte{0x5a});
    link.progress();
  }
  return 0;
}
