// Config: every environment variable of dmlcomm, read once, checked, and never changed afterwards.
// No other file calls getenv. `docs/configuration.md` is written from this list. A variable that is
// set to the empty string counts as not set.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace dmlcomm {

// Of a job; 0 goes first.
constexpr uint32_t kMaxJobPriority = 7;
constexpr uint32_t kDefaultJobPriority = 4;

enum class TransportChoice { automatic, tcp, shm, ucx };
enum class UcxRemoteMemory { automatic, on, off };
enum class TicketMarking { dscp, ip_option, none };
enum class Checksum { none, crc32c };
enum class CudaNccl { automatic, always, never };
enum class LogLevel { error, warning, info, debug };

// The words of the environment: "auto", "tcp"; "dscp", "ip-option"; "warning", "info".
std::string_view to_string(TransportChoice choice);
std::string_view to_string(TicketMarking marking);
std::string_view to_string(UcxRemoteMemory choice);
std::string_view to_string(CudaNccl choice);
std::string_view to_string(Checksum checksum);
std::string_view to_string(LogLevel level);

struct Config {
  // --- behaviour ---

  // DMLCOMM_SOCKET_IFNAME: interfaces to use between hosts. NCCL's and gloo's syntax: a comma list
  // of prefixes; "=" before an item asks for the exact name; "^" before the list excludes.
  // Default: every interface that is up and is not loopback, docker, veth or bridge.
  std::string socket_ifname;

  // DMLCOMM_TOPOLOGY: auto, flat, bcube:n,k, grid:AxB..., perhaps with rates (flat@10gbit), or
  // file:PATH (YAML): how the NICs of the hosts are cabled. Default auto: found from their subnets.
  // Only the text is kept here; dmlcomm/network checks it, before a group is made.
  std::string topology = "auto";

  // DMLCOMM_TRANSPORT: auto, tcp, shm or ucx. auto: shared memory inside a host, TCP between hosts.
  // tcp, ucx: TCP or UCX everywhere. shm: fail if a rank is on another host. Default auto.
  TransportChoice transport = TransportChoice::automatic;
  // Whether ranks of one host talk through our shared memory.
  bool shares_memory() const {
    return transport == TransportChoice::automatic || transport == TransportChoice::shm;
  }

  // DMLCOMM_UCX_REMOTE_MEMORY: auto, on or off: whether receivers fetch large payloads straight
  // from the memory of their senders, where UCX can do that: over RDMA devices, and inside a host
  // by CMA, for which UCX's own shared memory is used. auto: where UCX has them, of the transports
  // that UCX_TLS names. on: receivers prepare for it on every network. off: never; ranks of a host
  // talk over UCX's TCP then, unless UCX's variables say otherwise. Default auto.
  UcxRemoteMemory ucx_remote_memory = UcxRemoteMemory::automatic;

  // DMLCOMM_TICKET_MARK: dscp, ip-option or none: how packets between hosts show switches the
  // ticket of what they carry. ip-option is of IPv4 alone, and needs root or CAP_NET_RAW. Default
  // dscp.
  TicketMarking ticket_mark = TicketMarking::dscp;

  // DMLCOMM_CHECKSUM: none or crc32c: whether payloads of TCP connections have a checksum, which
  // the receiver compares. A wrong one fails the group, by an error that names rank, rail and
  // frame. One rank of a connection that asks for it is enough. Default none.
  Checksum checksum = Checksum::none;

  // DMLCOMM_ALGORITHM: "op=name[,op=name]" or "name", as `dmlcomm doctor` lists them. Default: the
  // cost model's choice. A name that an operation does not have is an error, not ignored,
  // and so is one that does not apply to the cluster. all_reduce=ps takes the parameter servers of
  // DMLCOMM_PS_SERVERS, for the default group.
  std::string algorithm;

  // DMLCOMM_PLAN: path of a plan file, which `dmlcomm plan --output` writes: the algorithm of each
  // operation by size, for the group of all ranks, which then changes no choice by what it
  // measures. DMLCOMM_ALGORITHM goes before it. Only the path is kept here; dmlcomm/planning reads
  // the file, before a group is made. Default: none.
  std::string plan;

  // DMLCOMM_AUTOTUNE: 1 or 0; 1 lets the ranks measure the rates of their rails, and choose
  // algorithms by them instead of by the drivers' rates. 0 on one rank counts for all. Default 1.
  bool autotune = true;

  // DMLCOMM_PROBE: 1 or 0; 1 lets a group whose first collective is below 4 MiB send 256 KiB over
  // each rail with it, so that rates are known behind it. 0 on one rank counts for all. Default 1.
  bool probe = true;

  // DMLCOMM_PORT_RANGE: "first-last" (1 to 65535), inclusive; listeners take a free port of it.
  // Default: any port, and both fields are 0.
  uint16_t port_first = 0;
  uint16_t port_last = 0;

  // DMLCOMM_SECRET: what ranks of a job prove to each other that they know, beside the secret in
  // the store; the same on all. DMLCOMM_SECRET_FILE: path of a file that holds it instead. Default:
  // none, and who reads the store gets in.
  std::string secret;

  // DMLCOMM_PS_SERVERS: "host:port,host:port", where the job's parameter servers listen, server 0
  // first. dmlcomm/ps checks it. Default: none.
  std::string ps_servers;

  // DMLCOMM_PS_TOKEN: the secret that a worker shows to servers. DMLCOMM_PS_TOKEN_FILE: path of a
  // file that holds it instead. Default: none.
  std::string ps_token;

  // DMLCOMM_PS_WORKER: number of this worker (0 to 4095). Default: RANK, as torchrun sets it; -1,
  // the servers choose, where there is neither.
  int32_t ps_worker = -1;

  // DMLCOMM_JOB_PRIORITY: of this job among those of a host, 0 (first) to 7, where a proxy
  // arbitrates NICs (docs/proxy.md). Default: not set, which counts as 4.
  std::optional<uint32_t> job_priority;

  // DMLCOMM_PEER_TIMEOUT_S: seconds (0.2 to 3600, default 10) without a sign of life after which a
  // peer is lost. Shorter notices frozen ranks sooner, and takes a long pause for a death.
  double peer_timeout_s = 10.0;

  // DMLCOMM_METRICS_PORT: where a rank serves its metrics to Prometheus, over HTTP under /metrics:
  // this port (1 to 65535) plus LOCAL_RANK, as torchrun sets it, or else the rank's place among
  // those of its host. Default: it serves none, and the field is 0.
  uint16_t metrics_port = 0;
  std::optional<uint16_t> local_rank;

  // DMLCOMM_METRICS_HOST: numeric address at which metrics are served; 0.0.0.0 or :: for everybody
  // who reaches the host. Default 127.0.0.1.
  std::string metrics_host = "127.0.0.1";

  // DMLCOMM_LOG_LEVEL: error, warning, info or debug; default warning.
  LogLevel log_level = LogLevel::warning;

  // --- performance ---

  // DMLCOMM_SPIN_US: microseconds (0 to 1000000) a waiting thread polls before it sleeps. More:
  // lower latency, and a core is busy while waiting. Default 50; where ranks leave no core free
  // it yields while it polls, and does so 20 times as long.
  uint32_t spin_us = 50;

  // DMLCOMM_SHM_BOARD_BYTES: size of the slots of the host's shared board (0 to 67108864). Small
  // operations go through them; large ones go from tensor to tensor, and show each other addresses
  // there. 0 turns both off. Default 1 MiB.
  uint64_t shm_board_bytes = 1u << 20;

  // DMLCOMM_SHM_SINGLE_COPY: 1 or 0; 0 forbids process_vm_readv, beside UCX's own. Default 1, where
  // the kernel permits.
  bool shm_single_copy = true;

  // DMLCOMM_HUGE_PAGES: 1 or 0; 1 lets the kernel move large tensors that are used repeatedly onto
  // huge pages. Default 1.
  bool huge_pages = true;

  // DMLCOMM_SHARE_TENSORS: 1 or 0; 1 lets large tensors that are used repeatedly move to memory
  // that the other ranks of the host map, too. 0 where something else than the program itself keeps
  // the pages of CPU tensors (cudaHostRegister, RDMA). Default 1.
  bool share_tensors = true;

  // DMLCOMM_CUDA_CHUNK_BYTES: bytes of CUDA tensors (262144 to 1073741824) that go through pinned
  // memory at a time; four times as much is pinned in each group that has CUDA collectives. Equal
  // on all ranks. Fewer: copies and network overlap more, and each part costs some calls. At least
  // 256 KiB for each rank of the group count. Default 4 MiB.
  uint64_t cuda_chunk_bytes = 4u << 20;

  // DMLCOMM_CUDA_NCCL: whether GPUs of a host combine CUDA tensors of all_reduce by torch's NCCL
  // before and after hosts do; on all ranks. auto: where hosts have equally many ranks, and each
  // has a GPU of its own. always: an error elsewhere. never: each rank sends all of its tensor.
  // Default never, until it has run on several GPUs.
  CudaNccl cuda_nccl = CudaNccl::never;

  // DMLCOMM_CREDIT_BYTES: bytes of large messages (16384 to 1073741824) that a connection to
  // another host takes at a time, and that its kernel may queue beyond those on their way. Fewer:
  // an urgent operation waits less for what has been handed down. More: the rail stays busy while
  // the process does not run. Default: once an operation has another ticket than 128, as many as
  // the connection carries in some milliseconds; before, without a limit on its own.
  std::optional<uint64_t> credit_bytes;

  // DMLCOMM_TICKET_CONNECTIONS: connections that are made beside the usual one, per rail and peer,
  // once messages with tickets below 128 go there: one per class of tickets (base/ticket.h). Ranks
  // on several hosts fail to meet unless all have the same. 0: none.
  uint32_t ticket_connections = 3;

  // DMLCOMM_TCP_CONGESTION: congestion control of our sockets ("cubic"). Default: the system's; but
  // cubic, or else reno, where that is bbr, whose pace does not suit bursts between hosts; cubic on
  // loopback, which a pace throttles.
  std::string tcp_congestion;

  // DMLCOMM_TCP_BUFFER_BYTES: socket buffers (0 to 1073741824; 0: the kernel's autotuning).
  // Default: 4 MiB, and 512 KiB on loopback, where bytes on their way should stay in the cache.
  std::optional<uint64_t> tcp_buffer_bytes;
};

// Reads and checks the environment. An illegal value is `invalid_argument` that names the variable,
// the value and the legal ones.
Result<Config> read_config();

// The process's configuration, read at first use; a wrong environment is reported by every
// create().
const Result<Config>& process_config();

}  // namespace dmlcomm
