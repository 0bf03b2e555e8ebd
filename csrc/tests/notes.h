// Notes: what a link says to its engine, for tests.
#pragma once

#include <functional>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "transport/request.h"

namespace dmlcomm::tests {

using namespace transport;  // NOLINT: the notes are all about it

// Takes notes of what a link says.
class Notes final : public LinkEvents {
 public:
  void on_sent(SendRequest&) override { ++num_sent; }
  void on_arrived(RecvRequest& request) override {
    if (request.arrived == request.bytes) ++num_arrived;
  }
  void provide_window(RecvRequest& request) override {
    std::vector<std::byte>& window = windows.emplace_back();
    window.resize(request.scattered ? request.bytes : 64 * 1024);
    request.window = window.data();
    request.window_bytes = window.size();
  }
  RecvRequest* claim_any_source(Tag tag, uint64_t before_order) override {
    if (any == nullptr || any->tag != tag || any->posted_order >= before_order) return nullptr;
    return std::exchange(any, nullptr);
  }
  Status check_operation(int, Tag, const OpInfo& theirs) override {
    return theirs.kind == forbidden_kind ? Status(StatusCode::mismatch, "other operation")
                                         : Status();
  }
  uint64_t oldest_collective() const override { return oldest; }
  bool runs_others() const override { return several; }
  Status size_mismatch(int, const RecvRequest& ours, const OpInfo&, uint64_t theirs) override {
    return Status(StatusCode::mismatch, str_cat("expected ", ours.bytes, ", got ", theirs));
  }
  void on_failed(int, const Status& status, bool reported) override {
    failure = status;
    failure_reported = reported;
    if (when_failed) when_failed(status);
  }
  void on_rail_event(int, bool lost, const std::string&) override {
    ++(lost ? num_lost : num_back);
  }
  void on_goodbye(int) override { goodbye = true; }

  int num_sent = 0;
  int num_arrived = 0;
  int num_lost = 0;
  int num_back = 0;
  bool several = false;
  uint64_t oldest = 1;
  int forbidden_kind = -1;
  RecvRequest* any = nullptr;
  std::list<std::vector<std::byte>> windows;
  Status failure;
  bool failure_reported = false;
  bool goodbye = false;
  std::function<void(const Status&)> when_failed;
};

}  // namespace dmlcomm::tests
