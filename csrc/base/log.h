// The log: lines on stderr, "[dmlcomm rank R host H level] text", for the person who runs the job.
//
// A line is written by one system call, so that the lines of several threads and processes do not
// mix. Every function may be called from any thread. Nothing here reports an operating error: that
// travels as a Status to a caller that can act on it. A line for which there is no memory is lost.
#pragma once

#include <new>
#include <string_view>

#include "base/config.h"
#include "base/str_cat.h"

namespace dmlcomm {

// Names this process in every later line. Until it is called the rank is "-" and the host is the
// machine's own name.
void set_log_identity(int rank, std::string_view host);

// Overrides DMLCOMM_LOG_LEVEL. Before that, a wrong environment means the default level.
void set_log_level(LogLevel level);

// Whether lines of this level are written; guards expensive formatting.
bool log_enabled(LogLevel level);

// Writes the line if its level is enabled. Control characters (a peer may have sent the text)
// become spaces.
void log_line(LogLevel level, std::string_view text);

template <typename... Args>
void log_text(LogLevel level, const Args&... args) {
  try {
    if (log_enabled(level)) log_line(level, str_cat(args...));
  } catch (const std::bad_alloc&) {  // the thread has more to do than to tell
  }
}

template <typename... Args>
void log_error(const Args&... args) {
  log_text(LogLevel::error, args...);
}

template <typename... Args>
void log_warning(const Args&... args) {
  log_text(LogLevel::warning, args...);
}

template <typename... Args>
void log_info(const Args&... args) {
  log_text(LogLevel::info, args...);
}

}  // namespace dmlcomm
