#include "transport/process_memory.h"

#include <sys/prctl.h>
#include <sys/uio.h>

namespace dmlcomm::transport {

bool can_read_process(pid_t pid, uint64_t address, void* destination, size_t bytes) {
  const iovec local{destination, bytes};
  const iovec remote{reinterpret_cast<void*>(address), bytes};
  return process_vm_readv(pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
}

bool can_read_nonce(pid_t pid, uint64_t address, uint64_t nonce) {
  uint64_t seen = 0;
  return can_read_process(pid, address, &seen, sizeof(seen)) && seen == nonce;
}

void permit_reading() {
  // Fails where there is no Yama, which is as good.
  static const int once = prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  (void)once;
}

}  // namespace dmlcomm::transport
