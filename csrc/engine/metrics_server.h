// The HTTP endpoint at which a rank shows its metrics to Prometheus.
//
// A thread of its own, which takes no lock of an interpreter, answers GET /metrics, one request
// after the other. What connects has a short time for its request and for taking the answer, so
// that one that does neither does not keep the others out for long.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace dmlcomm::engine {

// Listens at `host` (numeric) for as long as the process lives. `text` is called by the thread, for
// each request.
Status serve_metrics(const std::string& host, uint16_t port, std::function<std::string()> text);

// The answer to the request with this head.
std::string http_answer(std::string_view head, const std::function<std::string()>& text);

}  // namespace dmlcomm::engine
