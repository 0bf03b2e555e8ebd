// The protocol between workers and servers, beside the elements themselves.
//
// All messages pass through a communicator of two ranks, the worker (rank 0) and the server (rank
// 1). A worker sends commands, each on a track, and the server carries out those of a track in
// order (but see ps/session.h):
//
//   tag kCommand  worker -> server   one Command
//   tag kUp       worker -> server   elements of a push, piece by piece; row numbers
//   tag kAnswer   server -> worker   one Answer to every command that is not answered by elements
//   tag kDown     server -> worker   elements of a pull, piece by piece
//
// Each track has the last three for itself, see tag_of(). Commands have one tag, so what a worker
// has said before is known when a command is read.
//
// A proxy speaks for several workers over one connection: it attaches and drops each of them, and
// sends their pushes, added up, with one command per piece (`merged`).
//
// Both sides know the model, so they know the number and sizes of pieces. Integers are
// little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/status.h"
#include "base/ticket.h"
#include "ps/lives.h"
#include "ps/model_spec.h"
#include "ps/pair.h"

namespace dmlcomm::ps {

constexpr uint32_t kCommand = 1;
constexpr uint32_t kUp = 2;
constexpr uint32_t kAnswer = 3;
constexpr uint32_t kDown = 4;

// Tracks: what is on one passes what is on the others. One is for each class of urgent tickets, and
// the first for all other commands. All that a model has under way is on one of them.
constexpr uint8_t kUsualTrack = 0;
constexpr uint8_t kNumTracks = 9;
// Of what has no elements, no answer, and nothing to wait for: carried out when it is read.
constexpr uint8_t kNoTrack = 15;
constexpr uint8_t track_of(uint8_t ticket) {
  return static_cast<uint8_t>(ticket_class(ticket, kNumTracks - 1));
}
constexpr uint32_t kTagsPerTrack = 3;
constexpr uint32_t tag_of(uint32_t tag, uint8_t track) { return tag + kTagsPerTrack * track; }

enum class CommandKind : uint8_t {
  attach = 1,  // the worker takes part in `model`, at `clock`
  set,         // first values of a shard: pieces follow
  push,        // pieces follow
  pull,
  push_pull,   // a push that ends the worker's clock of this model, and a pull
  push_close,  // the same without the pull, for replicas
  clock,       // the worker's clock of `model` is `clock` now
  push_rows,   // row numbers and rows follow
  pull_rows,   // row numbers follow
  // Of proxies: the sum of the pushes of a clock to `piece`, of all workers that are attached over
  // this connection. It ends their clock for this piece; the answer is the piece after that clock.
  merged,
  drop,     // `worker` has left or was lost
  confirm,  // of a proxy's worker: answered when all clocks before `clock` are in a version
  news,     // only tells `lives`; no answer
  leave,    // the last command
};

constexpr int64_t kNoBound = -1;

struct Command {
  CommandKind kind = CommandKind::leave;
  uint32_t model = 0;
  uint32_t shard = 0;
  uint32_t space = 0;     // of rows
  uint64_t clock = 0;     // the worker's, of the model, when it gave the command
  uint64_t sequence = 0;  // of pushes, each once in a worker; attach: its incarnation
  // Of pushes, attach, clock and leave: pushes with smaller sequence numbers are on all servers
  // that they go to, but for those that were lost for all since, and are never repeated.
  uint64_t unfinished = 0;
  int64_t staleness = kNoBound;
  uint64_t num_rows = 0;
  uint32_t worker = 0;      // of a proxy's attach and drop
  uint32_t piece = 0;       // merged: its number in the shard
  uint32_t num_pushes = 0;  // merged: how many are added up
  // The last command of a push_pull to this server: the worker's clock of the model ends. (A server
  // that holds a replica, too, gets one command per shard.)
  bool ends_clock = false;
  bool waits = false;  // for the answer: a thread of the worker, which is most often its only one
  uint8_t ticket = kDefaultTicket;  // of all messages of the command, and of its answer
  uint8_t track = kUsualTrack;
  double learning_rate = std::numeric_limits<double>::quiet_NaN();  // NaN: the rule's
  Lives lives{};  // of the servers that the sender uses, and of those that it knows to be lost

  // The worker's clock after the command.
  uint64_t next_clock() const {
    return clock + (kind == CommandKind::push_pull || kind == CommandKind::merged);
  }
  // Pulls: the weights must contain all windows before this one.
  uint64_t needed() const {
    if (staleness == kNoBound) return 0;
    const auto bound = static_cast<uint64_t>(staleness);
    return next_clock() > bound ? next_clock() - bound : 0;
  }
  bool sends_pieces() const {
    return kind == CommandKind::set || kind == CommandKind::push || closes();
  }
  bool closes() const { return kind == CommandKind::push_pull || kind == CommandKind::push_close; }
  bool pulls() const { return kind == CommandKind::pull || kind == CommandKind::push_pull; }
  // The answer must not contain later pushes of the same worker.
  bool is_exact() const { return staleness == 0 && (pulls() || kind == CommandKind::pull_rows); }
};

constexpr size_t kCommandBytes = 152;
using CommandBytes = std::array<std::byte, kCommandBytes>;
CommandBytes encode(const Command& command);
// Trusts nothing: protocol_error names the fault.
Result<Command> decode_command(const CommandBytes& bytes);

struct Answer {
  uint64_t sequence = 0;  // of the push; attach: the worker's clock
  Lives lives{};
  uint64_t version = 0;  // of a proxy: the server's pieces contain all clocks before this one
};

constexpr size_t kAnswerBytes = 88;
using AnswerBytes = std::array<std::byte, kAnswerBytes>;
AnswerBytes encode(const Answer& answer);
Result<Answer> decode_answer(const AnswerBytes& bytes);

// The pieces of a shard that travel with a command: all for first values, those of dense spaces for
// pushes and pulls. Rows of tables are pushed and pulled singly.
std::vector<size_t> chosen_pieces(CommandKind kind, const ModelSpec& spec,
                                  const std::vector<Piece>& pieces);

// Bound on the bytes of the rows of one command, which a server receives in one go.
constexpr uint64_t kMaxRowBytes = 4u << 20;
uint64_t max_rows(uint64_t row_bytes);

}  // namespace dmlcomm::ps
