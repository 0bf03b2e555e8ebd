#include "device/slot.h"

namespace dmlcomm::device {

Slot::Slot(Span memory, std::byte* words)
    : memory_(memory),
      filled_(words),
      finished_(words + kCacheLineBytes),
      freed_(words + 2 * kCacheLineBytes) {
  filled_.set(0);
  finished_.set(0);
  freed_.set(0);
}

Result<uint32_t> Slot::submit(Queue& out, const std::vector<Copy>& copies_out, Queue& in,
                              const std::vector<Copy>& copies_in) {
  const uint32_t use = ++last_use_;
  const Status status = submit(use, out, copies_out, in, copies_in);
  if (status.ok()) return use;
  finish(use);  // what the device has taken of it does not wait for ever
  return status;
}

Status Slot::submit(uint32_t use, Queue& out, const std::vector<Copy>& copies_out, Queue& in,
                    const std::vector<Copy>& copies_in) const {
  DMLCOMM_RETURN_IF_ERROR(out.wait(freed_, use - 1));
  for (const Copy& copy : copies_out) {
    if (copy.bytes == 0) continue;
    DMLCOMM_RETURN_IF_ERROR(out.copy(memory_.data + copy.offset, copy.device, copy.bytes));
  }
  DMLCOMM_RETURN_IF_ERROR(out.write(filled_, use));
  DMLCOMM_RETURN_IF_ERROR(in.wait(finished_, use));
  for (const Copy& copy : copies_in) {
    if (copy.bytes == 0) continue;
    DMLCOMM_RETURN_IF_ERROR(in.copy(copy.device, memory_.data + copy.offset, copy.bytes));
  }
  return in.write(freed_, use);
}

}  // namespace dmlcomm::device
