// Messages that stay in the sender's memory until the receiver has taken them.
#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/str_cat.h"
#include "transport/link.h"

namespace dmlcomm::transport {

void Link::offer(RemoteMemory& memory, FrameHeader header, SendRequest& request) {
  header.kind = FrameKind::offer;
  header.id = request.id = next_id_++;
  header.offset = reinterpret_cast<uintptr_t>(request.data);
  offered_.push_back(&request);
  OutFrame frame = announcement(header, request);
  if (const uint64_t key = memory.key_for(request.data, request.bytes); key != 0) {
    frame.owned.assign(reinterpret_cast<const char*>(&key), kKeyBytes);
    frame.header.payload_bytes = kKeyBytes;
  }
  lanes_.push_ordered(std::move(frame));
}

Result<const std::byte*> Link::fetch(RecvRequest& request, size_t position, size_t bytes,
                                     std::byte* scratch) {
  if (!request.offered) return request.window + position % request.window_bytes;
  if (request.access == Access::idle) {
    DMLCOMM_RETURN_IF_ERROR(read_memory(request.offer + position, scratch, bytes, &request.access));
  }
  return static_cast<const std::byte*>(request.access == Access::done ? scratch : nullptr);
}

void Link::release(RecvRequest& request, size_t position) {
  request.consumed = position;
  request.access = Access::idle;
}

Status Link::read_memory(RemoteAddress from, void* to, size_t bytes, Access* access) {
  if (state_ == State::failed) return error_;
  Status status = memory()->read(from, to, bytes, access);
  if (!status.ok()) fail(status);
  return status;
}

Status Link::write_memory(RemoteAddress to, const void* from, size_t bytes, Access* access) {
  if (state_ == State::failed) return error_;
  Status status = memory()->write(to, from, bytes, access);
  if (!status.ok()) fail(status);
  return status;
}

void Link::finish_offer(RecvRequest& request) {
  DMLCOMM_CHECK(request.offered);
  --num_taken_offers_;
  if (state_ == State::up) push_control(FrameKind::ack, request.tag, request.offer_id, request.op);
}

Status Link::take_offer(RecvRequest& request, bool* moved, bool* complete) {
  if (state_ == State::failed) return error_;
  const bool together = !options_.reads_alone && can_copy_together(*memory(), request.bytes);
  DMLCOMM_RETURN_IF_ERROR(together ? copy_offer_together(request, moved, complete)
                                   : read_offer(request, moved, complete));
  if (*complete) finish_offer(request);
  return Status();
}

Status Link::read_offer(RecvRequest& request, bool* moved, bool* complete) {
  const size_t bytes = std::min(kPullBytes, request.bytes - request.consumed);
  if (request.access == Access::idle) {
    DMLCOMM_RETURN_IF_ERROR(read_memory(request.offer + request.consumed,
                                        request.destination + request.consumed, bytes,
                                        &request.access));
  }
  if (request.access != Access::done) return Status();
  release(request, request.consumed + bytes);
  *moved = true;
  *complete = request.consumed == request.bytes;
  return Status();
}

Status Link::copy_offer_together(RecvRequest& request, bool* moved, bool* complete) {
  if (!request.shared) {
    if (!cooperative_copy_.open(*cooperative(), request)) return Status();
    request.shared = true;
    push_control(FrameKind::share, request.tag, request.offer_id, request.op,
                 reinterpret_cast<uintptr_t>(request.destination));
    // The sender starts while we read; what fails is reported by progress().
    (void)lanes_.any()->flush(moved);
  }
  const Status status = cooperative_copy_.read_chunks(*memory(), request, moved);
  if (!status.ok()) {
    fail(status);
    return status;
  }
  *complete = cooperative_copy_.complete(request);
  return Status();
}

Status Link::on_share(const FrameHeader& header) {
  const auto it = std::find_if(offered_.begin(), offered_.end(),
                               [&](SendRequest* r) { return r->id == header.id; });
  if (it == offered_.end() || cooperative() == nullptr) {
    return Status(StatusCode::protocol_error, str_cat("share of unknown message ", header.id));
  }
  cooperative_copy_.on_share(**it, header.offset);
  return Status();
}

// Writes some of what the peer wants written.
bool Link::write_shared() {
  if (!cooperative_copy_.has_work()) return false;
  const Result<CooperativeCopy::Written> written = cooperative_copy_.write_chunks(*memory());
  if (!written.ok()) {
    fail(written.status());
  } else if (written->finished != nullptr && written->num_chunks > 0) {
    const SendRequest& request = *written->finished;
    push_control(FrameKind::shared, request.tag, request.id, request.op, written->num_chunks);
  }
  return true;
}

}  // namespace dmlcomm::transport
