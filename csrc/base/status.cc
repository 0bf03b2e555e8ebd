#include "base/status.h"

#include <cstring>

namespace dmlcomm {

const char* to_string(StatusCode code) {
  switch (code) {
#define DMLCOMM_STATUS_NAME(name) \
  case StatusCode::name: return #name;
    DMLCOMM_STATUS_CODES(DMLCOMM_STATUS_NAME)
#undef DMLCOMM_STATUS_NAME
  }
  return "unknown_status";
}

std::string Status::to_string() const {
  std::string text = dmlcomm::to_string(code_);
  if (!message_.empty()) text.append(": ").append(message_);
  return text;
}

Status errno_status(StatusCode code, const std::string& what, int error_number) {
  char buffer[128];
  // GNU's strerror_r: the result may or may not be the buffer.
  return Status(code, what + ": " + strerror_r(error_number, buffer, sizeof(buffer)));
}

Status received_status(uint64_t code, const std::string& message) {
  const bool is_known = code > 0 && code <= static_cast<uint64_t>(StatusCode::internal_error);
  return Status(is_known ? static_cast<StatusCode>(code) : StatusCode::aborted, message);
}

std::ostream& operator<<(std::ostream& out, const Status& status) {
  return out << status.to_string();
}

}  // namespace dmlcomm
