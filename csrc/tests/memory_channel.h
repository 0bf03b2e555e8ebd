// MemoryChannel: two ends of a pipe inside the test, that moves as many bytes per call as it is
// told.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/channel.h"

namespace dmlcomm::tests {

class MemoryChannel final : public transport::Channel, private transport::RemoteMemory {
 public:
  struct Pipe {
    std::deque<std::byte> bytes;
    bool closed = false;
    bool stopped = false;  // takes bytes, and hands none out
    bool revoked = false;
    Status reason;  // beside the bytes
  };

  MemoryChannel(std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> in, size_t max_bytes, bool pulls)
      : Channel(static_cast<RemoteMemory*>(this)),
        out_(std::move(out)),
        in_(std::move(in)),
        max_bytes_(max_bytes),
        pulls_(pulls) {}
  ~MemoryChannel() override { out_->closed = true; }

  int num_writes = 0;
  int num_reads = 0;
  bool fails_to_write = false;
  bool closes_when_it_lets_go = false;  // as one that has lent memory
  // What flow() says.
  double bytes_per_second = 0;
  uint64_t queued_bytes = 0;

  Result<size_t> write(const iovec* parts, int num_parts) override {
    ++num_writes;
    if (fails_to_write) return Status(StatusCode::peer_lost, "closed");
    size_t total = 0;
    for (int i = 0; i < num_parts; ++i) {
      const auto* from = static_cast<const std::byte*>(parts[i].iov_base);
      const size_t bytes = std::min(parts[i].iov_len, max_bytes_ - total);
      out_->bytes.insert(out_->bytes.end(), from, from + bytes);
      total += bytes;
    }
    return total;
  }

  Result<size_t> read(const iovec* parts, int num_parts) override {
    ++num_reads;
    if (in_->stopped) return size_t{0};
    if (in_->bytes.empty() && in_->closed) return Status(StatusCode::peer_lost, "closed");
    size_t total = 0;
    for (int i = 0; i < num_parts; ++i) {
      const size_t bytes = std::min({parts[i].iov_len, max_bytes_ - total, in_->bytes.size()});
      std::copy_n(in_->bytes.begin(), bytes, static_cast<std::byte*>(parts[i].iov_base));
      in_->bytes.erase(in_->bytes.begin(), in_->bytes.begin() + static_cast<ptrdiff_t>(bytes));
      total += bytes;
    }
    return total;
  }

  // Words that both ends map; from now on messages are copied by both.
  struct Words {
    std::atomic<uint64_t> claims[2]{};  // on what end 0 sends, and end 1
    std::atomic<uint32_t> writing_to[2]{};
  };
  void share(std::shared_ptr<Words> words, uint32_t end) {
    words_ = std::move(words);
    cooperative_.emplace(transport::CooperativeMemory{words_->claims[1 - end], words_->claims[end],
                                                      words_->writing_to[end], 2 - end,
                                                      [] { return true; }});
  }

  bool maybe_readable() const override {
    return !in_->stopped && (!in_->bytes.empty() || in_->closed);
  }
  Flow flow() const override {
    Flow flow;
    flow.bytes_per_second = bytes_per_second;
    flow.queued_bytes = queued_bytes;
    flow.some_on_the_way = !out_->bytes.empty();
    return flow;
  }
  int descriptor() const override { return -1; }
  void descriptor_ready(Ready) override {}
  void shut_down() override { out_->closed = true; }
  void let_go() override { out_->closed |= closes_when_it_lets_go; }
  void tell(const Status& reason) override {
    if (!out_->closed) out_->reason = reason;
  }
  Status told() override { return in_->reason; }
  std::string description() const override { return "memory"; }

  // As behind a host in between that is stopped.
  void stop(bool stopped = true) { in_->stopped = out_->stopped = stopped; }

  // From now on the peer's memory is reached with this key only, and later than asked for.
  void read_later(uint64_t key) { key_ = key; }
  // Ends what is pending.
  void finish_reads() {
    for (const auto& read : std::exchange(pending_, {})) read();
  }

 private:
  transport::CooperativeMemory* cooperative() override {
    return cooperative_ ? &*cooperative_ : nullptr;
  }
  bool peer_reaches_us() const override { return pulls_; }
  bool reaches_peer() const override { return pulls_; }
  uint64_t key_for(const void*, size_t) override { return key_; }
  Status read(transport::RemoteAddress from, void* to, size_t bytes,
              transport::Access* access) override {
    if (from.key != key_) return Status(StatusCode::io_error, "wrong key");
    const auto copy = [this, from, to, bytes, access] {
      std::memcpy(to, reinterpret_cast<const void*>(from.address), bytes);
      *access = in_->revoked ? transport::Access::revoked : transport::Access::done;
    };
    if (key_ == 0) {
      copy();
    } else {
      *access = transport::Access::pending;
      pending_.push_back(copy);
    }
    return Status();
  }
  Status write(transport::RemoteAddress to, const void* from, size_t bytes,
               transport::Access* access) override {
    std::memcpy(reinterpret_cast<void*>(to.address), from, bytes);
    *access = transport::Access::done;
    return Status();
  }
  void revoke() override {
    out_->revoked = true;
    pending_.clear();
  }

  const std::shared_ptr<Pipe> out_;
  const std::shared_ptr<Pipe> in_;
  const size_t max_bytes_;
  const bool pulls_;
  std::shared_ptr<Words> words_;
  std::optional<transport::CooperativeMemory> cooperative_;
  uint64_t key_ = 0;
  std::vector<std::function<void()>> pending_;
};

}  // namespace dmlcomm::tests
