// Memory of other processes of this host, as the kernel lets us read it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace dmlcomm::transport {

// Whether this process may read `bytes` at `address` of process `pid` right now.
bool can_read_process(pid_t pid, uint64_t address, void* destination, size_t bytes);

// Whether it may read that process, which has shown `nonce` at `address`: a number may be
// another's.
bool can_read_nonce(pid_t pid, uint64_t address, uint64_t nonce);

// Lets other processes of this user read our memory where Yama (kernel.yama.ptrace_scope = 1, the
// default of Ubuntu) would not. Once per process.
void permit_reading();

}  // namespace dmlcomm::transport
