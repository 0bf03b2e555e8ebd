#include "ps/wire.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace dmlcomm::ps {
namespace {

constexpr uint32_t kMagic = 0x53504d44;  // "DMPS"
constexpr uint8_t kVersion = 6;

// Flags of a command, its ticket and its track.
constexpr uint32_t kEndsClock = 1;
constexpr uint32_t kWaits = 2;
constexpr uint32_t kTicketShift = 8;
constexpr uint32_t kTicketMask = 0xffu << kTicketShift;
constexpr uint32_t kTrackShift = 16;
constexpr uint32_t kTrackMask = 0xfu << kTrackShift;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// Writes or reads numbers one after the other.
template <size_t N>
class Writer {
 public:
  template <typename T>
  void put(T value) {
    std::memcpy(bytes_.data() + position_, &value, sizeof(T));
    position_ += sizeof(T);
  }
  const std::array<std::byte, N>& bytes() const { return bytes_; }

 private:
  std::array<std::byte, N> bytes_{};
  size_t position_ = 0;
};

class Reader {
 public:
  explicit Reader(const std::byte* bytes) : next_(bytes) {}
  template <typename T>
  T take() {
    T value;
    std::memcpy(&value, next_, sizeof(T));
    next_ += sizeof(T);
    return value;
  }

 private:
  const std::byte* next_;
};

template <size_t N>
void put_head(Writer<N>* out, uint8_t kind) {
  out->put(kMagic);
  out->put(kVersion);
  out->put(kind);
  out->put(uint16_t{0});
}

Status check_head(Reader* in, uint8_t* kind) {
  const auto magic = in->take<uint32_t>();
  const auto version = in->take<uint8_t>();
  *kind = in->take<uint8_t>();
  const auto reserved = in->take<uint16_t>();
  if (magic != kMagic || reserved != 0) {
    return Status(StatusCode::protocol_error, "what came is no message of the parameter server");
  }
  if (version != kVersion) {
    return Status(StatusCode::protocol_error, "the peer speaks version ", version,
                  " of the parameter server's format, "
                  "this process version ",
                  kVersion, "; install the same dmlcomm on both");
  }
  return Status();
}

// The fields behind the head, in their order.
template <typename SomeCommand, typename Flags, typename Visit>
void visit_fields(SomeCommand& command, Flags& flags, Visit visit) {
  visit(command.model);
  visit(command.shard);
  visit(command.space);
  visit(flags);
  visit(command.clock);
  visit(command.sequence);
  visit(command.unfinished);
  visit(command.staleness);
  visit(command.num_rows);
  visit(command.worker);
  visit(command.piece);
  visit(command.num_pushes);
  visit(command.learning_rate);
  visit(command.lives);
}

}  // namespace

CommandBytes encode(const Command& command) {
  Writer<kCommandBytes> out;
  put_head(&out, static_cast<uint8_t>(command.kind));
  const uint32_t flags = (command.ends_clock ? kEndsClock : 0) | (command.waits ? kWaits : 0) |
                         uint32_t{command.ticket} << kTicketShift |
                         uint32_t{command.track} << kTrackShift;
  visit_fields(command, flags, [&](const auto& field) { out.put(field); });
  return out.bytes();
}

Result<Command> decode_command(const CommandBytes& bytes) {
  Reader in(bytes.data());
  uint8_t kind = 0;
  DMLCOMM_RETURN_IF_ERROR(check_head(&in, &kind));
  if (kind < static_cast<uint8_t>(CommandKind::attach) ||
      kind > static_cast<uint8_t>(CommandKind::leave)) {
    return Status(StatusCode::protocol_error, "there is no command ", kind);
  }
  Command command;
  command.kind = static_cast<CommandKind>(kind);
  uint32_t flags = 0;
  visit_fields(command, flags,
               [&](auto& field) { field = in.take<std::decay_t<decltype(field)>>(); });
  command.ends_clock = (flags & kEndsClock) != 0;
  command.waits = (flags & kWaits) != 0;
  command.ticket = static_cast<uint8_t>((flags & kTicketMask) >> kTicketShift);
  command.track = static_cast<uint8_t>((flags & kTrackMask) >> kTrackShift);
  const bool may_lack_track =
      command.kind == CommandKind::clock || command.kind == CommandKind::news;
  const bool has_track =
      command.track < kNumTracks || (command.track == kNoTrack && may_lack_track);
  // The last clock stands for workers that have left.
  if ((flags & ~(kEndsClock | kWaits | kTicketMask | kTrackMask)) != 0 || !has_track ||
      command.staleness < kNoBound || command.clock >= UINT64_MAX / 2) {
    return Status(StatusCode::protocol_error, "flags ", flags, ", staleness ", command.staleness,
                  " or clock ", command.clock, " of a command are out of range");
  }
  const double rate = command.learning_rate;
  if (!std::isnan(rate) && !(rate >= 0 && std::isfinite(rate))) {
    return Status(StatusCode::protocol_error, "a learning rate of ", rate,
                  "; expected one that is finite and >= 0");
  }
  return command;
}

AnswerBytes encode(const Answer& answer) {
  Writer<kAnswerBytes> out;
  put_head(&out, 0);
  out.put(answer.sequence);
  out.put(answer.lives);
  out.put(answer.version);
  return out.bytes();
}

Result<Answer> decode_answer(const AnswerBytes& bytes) {
  Reader in(bytes.data());
  uint8_t kind = 0;
  DMLCOMM_RETURN_IF_ERROR(check_head(&in, &kind));
  Answer answer;
  answer.sequence = in.take<uint64_t>();
  answer.lives = in.take<Lives>();
  answer.version = in.take<uint64_t>();
  return answer;
}

std::vector<size_t> chosen_pieces(CommandKind kind, const ModelSpec& spec,
                                  const std::vector<Piece>& pieces) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (kind == CommandKind::set || !spec.spaces[pieces[i].space].sparse()) chosen.push_back(i);
  }
  return chosen;
}

uint64_t max_rows(uint64_t row_bytes) {
  return std::max<uint64_t>(1, kMaxRowBytes / (row_bytes + sizeof(int64_t)));
}

}  // namespace dmlcomm::ps
