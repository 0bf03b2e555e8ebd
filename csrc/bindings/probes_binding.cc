// Probes: find out by trial which features this machine permits. For `dmlcomm doctor`.
//
// No probe trusts a version, a flag or a name. Each may fork short-lived children, leaves nothing
// behind, and takes milliseconds. A child calls only what POSIX permits after fork in a process
// with threads. Call from one thread at a time.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pybind11/stl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/alignment.h"
#include "base/unique_fd.h"
#include "bindings/bindings.h"
#include "transport/ucx/ucx_api.h"

namespace py = pybind11;

namespace dmlcomm::bindings {
namespace {

struct ProbeResult {
  bool works = false;
  std::string detail;  // how, or the reason why not
};

struct CongestionControls {
  std::string system_default;
  std::vector<std::string> usable;   // a socket of this process accepts it
  std::vector<std::string> refused;  // the kernel has it, but not for this user
};

constexpr int kSecret = 0x5ec2e7;

// Longest wait for a child: it only makes a few system calls, even on a machine with no free core.
constexpr int kChildTimeoutMs = 5000;

ProbeResult failed(const std::string& what, int error_number) {
  return {false, what + ": " + std::strerror(error_number)};
}

// Runs `body` in a child; its result is an errno (0: fine) that becomes the child's exit code.
// -1 when there was no child.
template <typename Body>
pid_t run_in_child(const Body& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body() & 0xff);
  return pid;
}

// The errno with which the child ended; ECHILD when it did not end by itself.
int result_of_child(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return errno;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : ECHILD;
}

// What a sibling's memory looks like from here: 0 when `address` of `pid` holds the secret, an
// errno otherwise. Runs in a child.
int read_secret_of(pid_t pid, void* address) {
  int value = 0;
  iovec local{&value, sizeof value};
  iovec remote{address, sizeof value};
  if (process_vm_readv(pid, &local, 1, &remote, 1, 0) != sizeof value) return errno;
  return value == kSecret ? 0 : EBADMSG;
}

// Reads one byte, or gives up after kChildTimeoutMs.
bool await_byte(int fd) {
  pollfd waiting{fd, POLLIN, 0};
  char byte = 0;
  return poll(&waiting, 1, kChildTimeoutMs) == 1 && read(fd, &byte, 1) == 1;
}

// One attempt of the single-copy probe: a sibling writes a secret into its own copy of a variable
// and waits; a second sibling reads it. `permit_all` makes the first one ask Yama to let anyone
// read.
int try_single_copy(bool permit_all) {
  int secret = 0;  // the siblings inherit its address
  int ready[2];
  int release[2];
  if (pipe(ready) != 0) return errno;
  UniqueFd ready_out(ready[0]);
  UniqueFd ready_in(ready[1]);
  if (pipe(release) != 0) return errno;
  UniqueFd release_out(release[0]);
  UniqueFd release_in(release[1]);

  const pid_t owner = run_in_child([&] {
    if (permit_all) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    *static_cast<volatile int*>(&secret) = kSecret;
    if (write(ready_in.get(), "r", 1) != 1) return errno;
    await_byte(release_out.get());
    return 0;
  });
  if (owner < 0) return errno;

  int result = ETIMEDOUT;
  if (await_byte(ready_out.get())) {
    const pid_t reader = run_in_child([&] { return read_secret_of(owner, &secret); });
    result = reader < 0 ? errno : result_of_child(reader);
  }
  // If this write fails, the owner leaves by its own timeout.
  [[maybe_unused]] const ssize_t written = write(release_in.get(), "g", 1);
  result_of_child(owner);
  return result;
}

std::vector<std::string> words_of(const char* path) {
  std::ifstream file(path);
  std::vector<std::string> words;
  for (std::string word; file >> word;) words.push_back(word);
  return words;
}

bool accepts_congestion_control(const std::string& name) {
  UniqueFd socket_fd(socket(AF_INET, SOCK_STREAM, 0));
  return socket_fd.valid() && setsockopt(socket_fd.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(),
                                         static_cast<socklen_t>(name.size())) == 0;
}

// Whether memory of an unlinked file (memfd) can be shared between processes.
ProbeResult probe_shared_memory() {
  const size_t bytes = page_bytes();
  UniqueFd memory(memfd_create("dmlcomm-probe", MFD_CLOEXEC));
  if (!memory.valid()) return failed("memfd_create", errno);
  if (ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) return failed("ftruncate", errno);
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (mapped == MAP_FAILED) return failed("mmap", errno);

  auto* word = static_cast<volatile int*>(mapped);
  const pid_t child = run_in_child([&] {
    *word = kSecret;
    return 0;
  });
  const int error_number = child < 0 ? errno : result_of_child(child);
  const bool arrived = *word == kSecret;
  munmap(mapped, bytes);
  if (error_number != 0) return failed("writing from a second process", error_number);
  if (!arrived) return {false, "what a second process wrote did not arrive"};
  return {true, "memfd, mapped by two processes"};
}

// Whether a process may read its sibling's memory with process_vm_readv, as ranks that one launcher
// started would.
ProbeResult probe_single_copy() {
  int error_number = try_single_copy(/*permit_all=*/false);
  if (error_number == 0) return {true, "process_vm_readv between siblings"};
  if (error_number == EPERM && try_single_copy(/*permit_all=*/true) == 0) {
    return {true, "process_vm_readv between siblings, after PR_SET_PTRACER (Yama)"};
  }
  ProbeResult result = failed("process_vm_readv", error_number);
  if (error_number == EPERM) {
    result.detail +=
        "; containers permit it with --cap-add SYS_PTRACE or a seccomp profile that "
        "allows process_vm_readv, Yama with kernel.yama.ptrace_scope=0";
  }
  return result;
}

// Whether a TCP connection over loopback can be made.
ProbeResult probe_tcp() {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid()) return failed("socket", errno);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.get(), generic, length) != 0) return failed("bind(127.0.0.1)", errno);
  if (listen(listener.get(), 1) != 0) return failed("listen", errno);
  if (getsockname(listener.get(), generic, &length) != 0) return failed("getsockname", errno);

  UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!client.valid()) return failed("socket", errno);
  if (connect(client.get(), generic, length) != 0) return failed("connect(127.0.0.1)", errno);
  return {true, "listens and connects"};
}

CongestionControls probe_congestion_controls() {
  CongestionControls result;
  const auto current = words_of("/proc/sys/net/ipv4/tcp_congestion_control");
  if (!current.empty()) result.system_default = current.front();
  for (const auto& name : words_of("/proc/sys/net/ipv4/tcp_available_congestion_control")) {
    (accepts_congestion_control(name) ? result.usable : result.refused).push_back(name);
  }
  return result;
}

ProbeResult probe_ucx() {
  const Result<transport::ucx::UcxOffer> offer = transport::ucx::ucx_offer();
  if (!offer.ok()) return {false, offer.status().message()};
  std::string detail = str_cat("UCX ", offer->version, ":");
  for (const std::string& resource : offer->resources) detail += " " + resource;
  return {true, detail};
}

}  // namespace

void bind_probes(py::module_& module) {
  py::class_<ProbeResult>(module, "ProbeResult", "Whether something works on this machine.")
      .def_readonly("works", &ProbeResult::works)
      .def_readonly("detail", &ProbeResult::detail, "How, or the reason why not.");
  py::class_<CongestionControls>(module, "CongestionControls")
      .def_readonly("system_default", &CongestionControls::system_default)
      .def_readonly("usable", &CongestionControls::usable)
      .def_readonly("refused", &CongestionControls::refused);

  // The probes fork; with the interpreter's lock released, another thread's wait does not delay
  // them.
  const auto release = py::call_guard<py::gil_scoped_release>();
  module.def("probe_shared_memory", &probe_shared_memory, release);
  module.def("probe_single_copy", &probe_single_copy, release);
  module.def("probe_tcp", &probe_tcp, release);
  module.def("probe_ucx", &probe_ucx, release);
  module.def("probe_congestion_controls", &probe_congestion_controls, release);
}

}  // namespace dmlcomm::bindings
