// CooperativeCopy: both ends of a link copy an offered message together, each with its own core.
//
// One core moves 40 MB between two processes in 7.3 ms, two cores in 3.7. The receiver invites the
// sender (frame `share`), and both take chunks of the message, some at a time, until none is left:
// the receiver reads its chunks, the sender writes its own. A busy side takes none, and the other
// does not wait for it. A sender that has written says how many chunks (frame `shared`); then the
// receiver knows whether all are in place.
//
// The claims are one word in shared memory: number of the message, and its next free chunk. A
// message is opened when all chunks of the one before are taken. A receiver that gives up closes
// the claims, and waits for a sender that is writing at that moment: a sender first announces that
// it writes, then claims.
//
// All calls require the progress lock.
#pragma once

#include <deque>
#include <vector>

#include "base/status.h"
#include "transport/remote_memory.h"
#include "transport/request.h"

namespace dmlcomm::transport {

// Whether it pays: the receiver reads short messages alone, because the frames cost as much.
bool can_copy_together(RemoteMemory& memory, size_t bytes);

class CooperativeCopy {
 public:
  // --- the receiver ---
  // Opens the message for both. False while chunks of another one are left: try again.
  bool open(CooperativeMemory& shared, const RecvRequest& request);
  // Reads some chunks, if any are left.
  Status read_chunks(RemoteMemory& memory, const RecvRequest& request, bool* moved);
  // Whether all chunks are in place; then it is forgotten.
  bool complete(const RecvRequest& request);
  // The sender has written so many chunks.
  Status on_shared(uint64_t id, uint64_t num_chunks);
  // True: nobody writes to the memory of incomplete messages any more. False: a sender was stopped
  // while it wrote, and will go on when it is continued.
  bool give_up(CooperativeMemory& shared);

  // --- the sender ---
  // The receiver wants the message at `address` of its memory.
  void on_share(const SendRequest& request, uint64_t address);
  bool has_work() const { return !shares_.empty(); }
  // Writes some chunks of the oldest message, if any are left; only if has_work().
  struct Written {
    const SendRequest* finished = nullptr;  // no chunk was left of this one
    uint64_t num_chunks = 0;                // of it that we have written
  };
  Result<Written> write_chunks(RemoteMemory& memory);
  // The receiver has the whole message.
  void forget(const SendRequest& request);

 private:
  struct Reading {
    const RecvRequest* request;
    uint64_t num_chunks;
    uint64_t in_place = 0;
  };
  struct Share {
    const SendRequest* request;
    uint64_t address;
    uint64_t num_written = 0;
  };
  std::vector<Reading> reading_;    // until complete
  uint64_t num_chunks_opened_ = 0;  // of the message that was opened last
  std::deque<Share> shares_;
};

}  // namespace dmlcomm::transport
