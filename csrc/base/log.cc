#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>

namespace dmlcomm {
namespace {

struct Identity {
  std::mutex mutex;
  std::string prefix;  // "[dmlcomm rank R host H "; guarded by mutex
};

std::string make_prefix(std::string_view rank, std::string_view host) {
  return str_cat("[dmlcomm rank ", rank, " host ", host, ' ');
}

std::string default_prefix() {
  char host[256] = "";
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  return make_prefix("-", host[0] != '\0' ? host : "-");
}

// Never destroyed: progress threads may log while the process's statics are torn down.
Identity& identity() {
  static Identity* const instance = new Identity{{}, default_prefix()};
  return *instance;
}

LogLevel configured_level() {
  const Result<Config>& config = process_config();
  return config.ok() ? config->log_level : Config().log_level;
}

std::atomic<LogLevel>& current_level() {
  static std::atomic<LogLevel> level{configured_level()};
  return level;
}

}  // namespace

void set_log_identity(int rank, std::string_view host) {
  std::string prefix = make_prefix(str_cat(rank), host);
  Identity& self = identity();
  const std::lock_guard lock(self.mutex);
  self.prefix = std::move(prefix);
}

void set_log_level(LogLevel level) { current_level().store(level, std::memory_order_relaxed); }

bool log_enabled(LogLevel level) {
  return level <= current_level().load(std::memory_order_relaxed);
}

void log_line(LogLevel level, std::string_view text) {
  if (!log_enabled(level)) return;
  std::string line;
  {
    Identity& self = identity();
    const std::lock_guard lock(self.mutex);
    line = self.prefix;
  }
  append_text(&line, to_string(level));
  line.append("] ").append(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  line.push_back('\n');
  // A stderr that is closed or full must not fail the training run: the line is lost.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace dmlcomm
