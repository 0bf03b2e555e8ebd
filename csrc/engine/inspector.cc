#include "engine/inspector.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "base/exceptions.h"
#include "base/fork_guard.h"
#include "base/log.h"
#include "base/str_cat.h"
#include "engine/metrics_server.h"
#include "transport/socket.h"

namespace dmlcomm::engine {
namespace {

constexpr int kBacklog = 16;
// Who connects and does not read is left after this time: others wait.
constexpr timeval kSendTimeout{1, 0};

// Each module that contains the core has an inspector, and a socket of its own.
std::string socket_path() {
  return str_cat(Inspector::folder(), "/", getpid(), "-",
                 reinterpret_cast<uintptr_t>(&Inspector::instance()), ".sock");
}

// In a forked child it is its parent's.
pid_t owner_of_socket = 0;

void remove_socket() {
  if (owner_of_socket == getpid()) (void)unlink(socket_path().c_str());
}

// Makes the folder, or checks that it is this user's alone: in /tmp anybody may have made it.
Status prepare_folder() {
  const std::string folder = Inspector::folder();
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return errno_status(StatusCode::io_error, str_cat("mkdir ", folder), errno);
  }
  struct stat found {};
  if (lstat(folder.c_str(), &found) != 0) {
    return errno_status(StatusCode::io_error, str_cat("lstat ", folder), errno);
  }
  if (!S_ISDIR(found.st_mode) || found.st_uid != geteuid() || (found.st_mode & 077) != 0) {
    return Status(StatusCode::io_error, folder, " is not a folder of this user alone (mode 700)");
  }
  return Status();
}

Result<UniqueFd> listen_at(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return Status(StatusCode::io_error, path, " is too long for a socket");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno_status(StatusCode::io_error, "socket", errno);
  (void)unlink(path.c_str());  // of a process of before with this id
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return errno_status(StatusCode::io_error, str_cat("listen on ", path), errno);
  }
  return fd;
}

void send_all(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t sent = send(fd, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return;
    done += static_cast<size_t>(sent);
  }
}

std::string metrics_of(uint64_t job, const std::vector<Inspection>& all) {
  Samples samples;
  for (const Inspection& one : all) {
    samples.insert(samples.end(), one.samples.begin(), one.samples.end());
  }
  return metrics_text(str_cat("job_number=", json_number(job)), samples);
}

}  // namespace

Inspector& Inspector::instance() {
  // Never destroyed: its thread may outlive static destructors.
  static auto* inspector = new Inspector;
  return *inspector;
}

std::string Inspector::folder() { return str_cat("/tmp/dmlcomm-", geteuid()); }

void Inspector::add_group(std::weak_ptr<Inspectable> group, uint64_t job,
                          const MetricsPlace& place) {
  std::lock_guard lock(mutex_);
  add_locked(std::move(group));
  if (job_ == 0) job_ = job;
  if (place.first_port == 0 || metrics_generation_ == fork_generation()) return;
  metrics_generation_ = fork_generation();
  const int port = place.first_port + place.local_rank;
  const Status status =
      port > UINT16_MAX
          ? Status(StatusCode::invalid_argument, "there is no port ", port)
          : serve_metrics(place.host, static_cast<uint16_t>(port), [this] { return metrics(); });
  if (!status.ok()) {
    log_warning("rank ", place.local_rank, " of this host serves no metrics: ", status.message(),
                "; choose another DMLCOMM_METRICS_PORT");
  }
}

void Inspector::add(std::weak_ptr<Inspectable> part) {
  std::lock_guard lock(mutex_);
  add_locked(std::move(part));
}

void Inspector::add_locked(std::weak_ptr<Inspectable> part) {
  if (generation_ != fork_generation()) {
    generation_ = fork_generation();
    job_ = 0;
    parts_.clear();
    if (const Status status = start(); !status.ok()) {
      log_info("dmlcomm inspect cannot ask this process: ", status.message());
    }
  }
  std::erase_if(parts_, [](const auto& one) { return one.expired(); });
  parts_.push_back(std::move(part));
}

Status Inspector::start() {
  DMLCOMM_RETURN_IF_ERROR(prepare_folder());
  Result<UniqueFd> listener = listen_at(socket_path());
  if (!listener.ok()) return listener.status();
  if (owner_of_socket == 0) (void)std::atexit(remove_socket);
  owner_of_socket = getpid();
  const int fd = listener->release();  // as long as the process
  drop_in_children(fd);
  std::thread thread;
  DMLCOMM_RETURN_IF_ERROR(start_thread(&thread, [this, fd] { run(fd); }));
  thread.detach();
  return Status();
}

void Inspector::run(int listener) {
  pthread_setname_np(pthread_self(), "dmlcomm-inspect");
  for (;;) {
    const UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd.valid()) {
      // Without a descriptor or memory, for instance: the next one may find them.
      if (errno != EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      continue;
    }
    if (!transport::peer_is_same_user(fd.get())) continue;
    (void)setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kSendTimeout, sizeof(kSendTimeout));
    (void)without_exceptions([&] {
      send_all(fd.get(), text());
      return Status();
    });
  }
}

std::pair<uint64_t, std::vector<Inspection>> Inspector::ask_all() {
  std::vector<std::weak_ptr<Inspectable>> parts;
  uint64_t job = 0;
  {
    std::lock_guard lock(mutex_);
    parts = parts_;
    job = job_;
  }
  std::vector<Inspection> all;
  for (const auto& weak : parts) {
    const auto part = weak.lock();
    if (part != nullptr) all.push_back(part->inspect());
  }
  return {job, std::move(all)};
}

std::string Inspector::text() {
  const auto [job, all] = ask_all();
  const auto list_of = [&all](Inspection::Kind kind) {
    std::string list;
    for (const Inspection& one : all) {
      if (one.kind != kind || one.json.empty()) continue;
      list += str_cat(list.empty() ? "" : ", ", one.json);
    }
    return list;
  };
  return str_cat("{\"pid\": ", getpid(), ", \"job\": ", job == 0 ? "\"\"" : json_number(job),
                 ", \"groups\": [", list_of(Inspection::Kind::group), "], \"servers\": [",
                 list_of(Inspection::Kind::server), "], \"workers\": [",
                 list_of(Inspection::Kind::worker),
                 "], \"metrics\": ", json_text(metrics_of(job, all)), "}\n");
}

std::string Inspector::metrics() {
  const auto [job, all] = ask_all();
  return metrics_of(job, all);
}

std::string json_text(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (c == '\n') {
      json += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += ' ';
    } else {
      json += c;
    }
  }
  return json + "\"";
}

std::string json_number(uint64_t communicator) {
  char number[17];
  std::snprintf(number, sizeof(number), "%016llx", static_cast<unsigned long long>(communicator));
  return json_text(number);
}

}  // namespace dmlcomm::engine
