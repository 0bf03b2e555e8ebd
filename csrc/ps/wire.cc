#include "ps/wire.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/str_cat.h"

namespace dmlcomm::ps {
namespace {

constexpr uint32_t kMagic = 0x53504d44;  // "DMPS"
constexpr uint8_t kVersion = 1;

// Flags of a command.
constexpr uint32_t kEndsClock = 1;
constexpr uint32_t kWaits = 2;

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
    return Status(StatusCode::protocol_error,
                  str_cat("the peer speaks version ", version,
                          " of the parameter server's format, "
                          "this process version ",
                          kVersion, "; install the same dmlcomm on both"));
  }
  return Status();
}

}  // namespace

CommandBytes encode(const Command& command) {
  Writer<kCommandBytes> out;
  put_head(&out, static_cast<uint8_t>(command.kind));
  out.put(command.model);
  out.put(command.shard);
  out.put(command.space);
  out.put(
      static_cast<uint32_t>((command.ends_clock ? kEndsClock : 0) | (command.waits ? kWaits : 0)));
  out.put(command.clock);
  out.put(command.sequence);
  out.put(command.unfinished);
  out.put(command.staleness);
  out.put(command.num_rows);
  out.put(command.learning_rate);
  out.put(command.lost_servers);
  return out.bytes();
}

Result<Command> decode_command(const CommandBytes& bytes) {
  Reader in(bytes.data());
  uint8_t kind = 0;
  DMLCOMM_RETURN_IF_ERROR(check_head(&in, &kind));
  if (kind < static_cast<uint8_t>(CommandKind::attach) ||
      kind > static_cast<uint8_t>(CommandKind::leave)) {
    return Status(StatusCode::protocol_error, str_cat("there is no command ", kind));
  }
  Command command;
  command.kind = static_cast<CommandKind>(kind);
  command.model = in.take<uint32_t>();
  command.shard = in.take<uint32_t>();
  command.space = in.take<uint32_t>();
  const auto flags = in.take<uint32_t>();
  command.ends_clock = (flags & kEndsClock) != 0;
  command.waits = (flags & kWaits) != 0;
  command.clock = in.take<uint64_t>();
  command.sequence = in.take<uint64_t>();
  command.unfinished = in.take<uint64_t>();
  command.staleness = in.take<int64_t>();
  command.num_rows = in.take<uint64_t>();
  command.learning_rate = in.take<double>();
  command.lost_servers = in.take<uint64_t>();
  // The last clock stands for workers that have left.
  if (flags > (kEndsClock | kWaits) || command.staleness < kNoBound ||
      command.clock >= UINT64_MAX / 2) {
    return Status(StatusCode::protocol_error,
                  str_cat("flags ", flags, ", staleness ", command.staleness, " or clock ",
                          command.clock, " of a command are out of range"));
  }
  const double rate = command.learning_rate;
  if (!std::isnan(rate) && !(rate >= 0 && std::isfinite(rate))) {
    return Status(StatusCode::protocol_error,
                  str_cat("a learning rate of ", rate, "; expected one that is finite and >= 0"));
  }
  return command;
}

AnswerBytes encode(const Answer& answer) {
  Writer<kAnswerBytes> out;
  put_head(&out, 0);
  out.put(answer.sequence);
  out.put(answer.lost_servers);
  return out.bytes();
}

Result<Answer> decode_answer(const AnswerBytes& bytes) {
  Reader in(bytes.data());
  uint8_t kind = 0;
  DMLCOMM_RETURN_IF_ERROR(check_head(&in, &kind));
  Answer answer;
  answer.sequence = in.take<uint64_t>();
  answer.lost_servers = in.take<uint64_t>();
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
