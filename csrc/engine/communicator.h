// Communicator: one group of ranks and every operation between them. The torch adaptor wraps it.
//
// Threads: any thread may call any method; calls that start collectives must come in the same order
// on every rank. A call returns an Operation at once. Work is driven by the communicator's progress
// thread, or by the thread that waits, whichever holds the progress lock. With
// `OpOptions::inline_wait` the caller promises to wait at once, and no other thread is woken.
//
// Memory: tensors are named by pointers; the caller keeps them alive until the operation is done.
// No operation writes to its input. A done operation no longer touches any pointer.
//
// Failure: the first failure of a communicator is kept; every later operation ends with it, and
// every pending one that waits for another rank. abort() makes that happen from any thread. The
// destructor aborts pending operations.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/ticket.h"
#include "memory/span.h"
#include "transport/address.h"
#include "transport/job_seat.h"
#include "transport/rail_counters.h"
#include "transport/relaying.h"
#include "transport/rendezvous.h"

namespace dmlcomm::engine {

struct CommunicatorOptions {
  int rank = 0;
  int num_ranks = 1;
  std::string name;               // for messages and logs: "default_pg"
  std::vector<int> global_ranks;  // rank in this group -> rank in the job; empty: the same
  // The members' names in messages ("worker 3"); empty: "rank 3". Named members are no ranks of a
  // job: the log keeps the identity that it has.
  std::vector<std::string> names;
  std::vector<transport::RailAddress> rails;  // may be empty when every rank is on one host
  // How the hosts are wired (topology/grid.h): the sizes of the levels, level l on rail l, and the
  // number of each rank's host on that grid. Both empty: a flat network.
  std::vector<uint32_t> grid;
  std::vector<uint32_t> host_of_rank;
  // Whether this group is the whole job, whose ranks relay for each other on a grid, or a part of
  // such a job.
  transport::Relaying relaying = transport::Relaying::none;
  // Bits per second of each rail, of the host that is slowest there; the same on all ranks. Empty:
  // not known.
  std::vector<uint64_t> rail_rates_bps;
  // On a flat network: the only rail to use while it works; -1 stripes over all.
  int first_rail = -1;
  // No peer ever writes to this rank's memory: the caller goes on without a peer that is stopped,
  // and uses the memory again. Costs large messages between processes of a host the second core.
  bool reads_alone = false;
  // Messages ask for others: kernels between hosts queue little, since a grant waits behind all
  // that they hold of its direction.
  bool queues_little = false;
  // One of several groups whose threads poll on the same cores: where cores are few, they give way
  // at once.
  bool shares_cores = false;
  // The choices of a plan file for this group, "op:first_bytes=name,..." (schedule/planner.h); the
  // same on all ranks. Empty: the cost model chooses.
  std::string plan;
  // At the arbiter of this host, which shares NICs among jobs; null: there is none.
  std::shared_ptr<transport::JobSeat> seat;
  uint64_t first_sequence = 1;  // number of the first collective; the same on all ranks
  std::chrono::milliseconds timeout{30 * 60 * 1000};
  std::optional<Config> config;  // empty: the process's

  // This rank's choices may follow what ranks measure. `config` is there.
  bool tunes() const { return config->autotune && plan.empty(); }
};

struct OpOptions {
  std::chrono::milliseconds timeout{0};  // 0: the communicator's
  bool inline_wait = false;              // the caller waits for this operation at once
  // The type of the bytes of a data movement; ranks notice a difference. Empty: just bytes.
  std::optional<DType> element;
  // How soon it is needed: the smallest goes first. Ranks may differ.
  uint8_t ticket = kDefaultTicket;
};

// A running operation. Shared between the caller and the engine; all methods from any thread.
class Operation {
 public:
  virtual ~Operation() = default;

  virtual bool done() const = 0;

  // The result; only once done().
  virtual const Status& status() const = 0;

  // Drives progress until done or until `timeout` has passed (then: `timeout`, and the operation
  // goes on). 0 waits for as long as the operation's own deadline allows.
  virtual Status wait(std::chrono::milliseconds timeout) = 0;

  // Calls `callback` once when done, on the thread that finished it; at once if it is done already.
  virtual void on_done(std::function<void(const Status&)> callback) = 0;

  // Rank the message came from; receive operations only, once done.
  virtual int source_rank() const = 0;

  // Position in the communicator's sequence of collectives; 0 for point-to-point.
  virtual uint64_t sequence() const = 0;
};
using OperationPtr = std::shared_ptr<Operation>;

constexpr int kAnySource = -1;

class Communicator {
 public:
  // Publishes this rank's addresses and reads those of the others. Collective.
  static Result<std::shared_ptr<Communicator>> create(
      const CommunicatorOptions& options, std::shared_ptr<transport::Rendezvous> rendezvous);
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int num_ranks() const = 0;

  // data: `count` elements, combined over all ranks in place.
  virtual OperationPtr all_reduce(void* data, size_t count, DType dtype, ReduceOp op,
                                  const OpOptions& options) = 0;

  // output is used on the root only and may be equal to input.
  virtual OperationPtr reduce(const void* input, void* output, size_t count, DType dtype,
                              ReduceOp op, int root, const OpOptions& options) = 0;

  virtual OperationPtr broadcast(Span data, int root, const OpOptions& options) = 0;

  // outputs[p] receives rank p's input; outputs[rank()].data may be equal to input.data.
  // Sizes may differ between ranks; every rank passes the same sizes.
  virtual OperationPtr all_gather(Span input, std::vector<Span> outputs,
                                  const OpOptions& options) = 0;

  // outputs: one per rank on the root, empty elsewhere.
  virtual OperationPtr gather(Span input, std::vector<Span> outputs, int root,
                              const OpOptions& options) = 0;

  // inputs: one per rank on the root, empty elsewhere.
  virtual OperationPtr scatter(std::vector<Span> inputs, Span output, int root,
                               const OpOptions& options) = 0;

  // inputs[p] is this rank's contribution to rank p; output is the sum of all contributions to this
  // rank. Bytes must be multiples of the element; sizes may differ between ranks.
  virtual OperationPtr reduce_scatter(std::vector<Span> inputs, Span output, DType dtype,
                                      ReduceOp op, const OpOptions& options) = 0;

  // inputs[p] goes to rank p, outputs[p] comes from rank p.
  virtual OperationPtr all_to_all(std::vector<Span> inputs, std::vector<Span> outputs,
                                  const OpOptions& options) = 0;

  virtual OperationPtr barrier(const OpOptions& options) = 0;

  // Point-to-point, also to oneself. Messages of one (source, destination, tag) arrive in the order
  // they were sent.
  // A receive whose size differs from its message's fails, on both sides.
  virtual OperationPtr send(Span data, int destination, uint32_t tag, const OpOptions& options) = 0;
  virtual OperationPtr recv(Span data, int source_or_any, uint32_t tag,
                            const OpOptions& options) = 0;

  // From here to end_estimate(), operations that this thread calls do nothing and end at once;
  // those of other threads go on as ever. `invalid_argument` if a thread has started already.
  virtual Status start_estimate() = 0;
  // The seconds that they would have taken, one after the other, by the cost model at the rates in
  // use. `invalid_argument` if this thread has not started.
  virtual Result<double> end_estimate() = 0;

  // Whether this thread has.
  virtual bool is_estimating() const = 0;

  // Collectives started so far.
  virtual uint64_t sequence() const = 0;

  // The same on all ranks, and another one for each communicator.
  virtual uint64_t number() const = 0;

  // Replaces the default deadline of later operations.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;

  // Ends every pending and later operation with `aborted` and `reason`, here and on the peers.
  virtual void abort(const std::string& reason) = 0;

  // Says goodbye to the peers and releases threads, sockets and memory. Pending operations end
  // with `aborted`. Later operations fail. Idempotent.
  virtual void close() = 0;

  // The first failure, or ok.
  virtual Status error() const = 0;

  // How long ago another rank, of which something was needed, has shown life last.
  virtual double silent_s(int rank) const = 0;

  // Whether any other rank is reached through shared memory.
  virtual bool shares_memory() const = 0;

  // After close(): a rank that was stopped while it wrote to memory of a receive that has failed
  // will write the rest (512 KiB at most) when it is continued: that must not be used again.
  virtual bool has_writer() const = 0;

  // One line: rank, host, transports and rails in use.
  virtual std::string description() const = 0;

  // Counters of each rail, and ("local") of the links between ranks of this host.
  virtual std::vector<transport::RailCounters> rails() = 0;
};

}  // namespace dmlcomm::engine
