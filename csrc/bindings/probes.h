// Probes: find out by trial which features this machine permits. For `dmlcomm doctor`.
//
// No probe trusts a version, a flag or a name. Each may fork short-lived children, leaves nothing
// behind, and takes milliseconds. A child calls only what POSIX permits after fork in a process
// with threads. Call from one thread at a time.
#pragma once

#include <string>
#include <vector>

namespace dmlcomm::bindings {

struct ProbeResult {
  bool works = false;
  std::string detail;  // how, or the reason why not
};

// Whether memory of an unlinked file (memfd) can be shared between processes.
ProbeResult probe_shared_memory();

// Whether a process may read its sibling's memory with process_vm_readv, as ranks that one launcher
// started would.
ProbeResult probe_single_copy();

// Whether a TCP connection over loopback can be made.
ProbeResult probe_tcp();

struct CongestionControls {
  std::string system_default;
  std::vector<std::string> usable;   // a socket of this process accepts it
  std::vector<std::string> refused;  // the kernel has it, but not for this user
};

CongestionControls probe_congestion_controls();

}  // namespace dmlcomm::bindings
