#include "ps/model_spec.h"

#include <algorithm>

#include "base/str_cat.h"
#include "kernels/convert.h"
#include "ps/rules/rule.h"
#include "topology/partition.h"

namespace dmlcomm::ps {
namespace {

bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

template <typename... Text>
Status wrong(const ModelSpec& spec, const Text&... text) {
  return Status(StatusCode::invalid_argument, "model '", spec.name, "': ", text...);
}

Status check_space(const ModelSpec& spec, const Space& space) {
  if (space.sparse() && space.count % space.row_elements != 0) {
    return wrong(spec, "a table of ", space.count, " elements has no whole number of rows of ",
                 space.row_elements);
  }
  const DType stored = space.stored();
  if (!kernels::supports_convert(stored, space.wire) ||
      !kernels::supports_convert(space.wire, stored)) {
    return wrong(spec, to_string(space.dtype), " cannot travel as ", to_string(space.wire),
                 "; f32 can as f16 or bf16, all others as they are");
  }
  if (spec.rule == "python") return Status();
  auto rule = make_rule(spec.rule, spec.options);
  if (!rule.ok()) return wrong(spec, rule.status().message());
  if (!(*rule)->supports(stored)) {
    return wrong(spec, "rule ", spec.rule, " is not defined for ", to_string(stored));
  }
  return Status();
}

// `held` elements are the shard's.
uint64_t elements_per_piece(const Space& space, uint64_t held) {
  const size_t element_bytes = size_of(space.stored());
  const size_t bytes =
      std::clamp(held * element_bytes / kPiecesToPipeline, kMinPieceBytes, kMaxPieceBytes);
  const uint64_t elements = bytes / kPieceGrain * kPieceGrain / element_bytes;
  if (!space.sparse()) return elements;
  return std::max<uint64_t>(1, elements / space.row_elements) * space.row_elements;
}

topology::Partition partition_of(const Space& space, uint32_t num_servers) {
  return {space.count, num_servers, static_cast<uint32_t>(size_of(space.stored()))};
}

}  // namespace

DType Space::stored() const { return is_half(dtype) ? DType::f32 : dtype; }

std::string describe(const ModelSpec& spec) {
  std::string text = str_cat(spec.spaces.size(), " spaces (");
  for (const Space& space : spec.spaces) {
    if (&space != &spec.spaces.front()) text += ", ";
    text += str_cat(to_string(space.dtype), " x ", space.count);
    if (space.sparse()) text += str_cat(" in rows of ", space.row_elements);
    if (space.wire != space.dtype) text += str_cat(" sent as ", to_string(space.wire));
  }
  text += str_cat("), rule ", spec.rule, " (");
  for (const auto& [name, value] : spec.options) {
    text += str_cat(name == spec.options.begin()->first ? "" : ", ", name, " ", value);
  }
  return text + str_cat("), ", spec.combine == Combine::mean ? "mean" : "sum", " at every ",
                        spec.apply == Apply::at_clock ? "clock" : "push", ", ", spec.num_servers,
                        " servers, ", spec.replicas, " replicas");
}

Status check(const ModelSpec& spec) {
  if (spec.num_servers == 0 || spec.num_servers > 64) {
    return wrong(spec, spec.num_servers, " servers; expected 1 to 64");
  }
  if (spec.replicas > 1 || spec.replicas >= spec.num_servers) {
    return wrong(spec, spec.replicas, " replicas on ", spec.num_servers,
                 " servers; expected 0, or 1 where there are two servers or more");
  }
  if (spec.spaces.empty()) return wrong(spec, "it has no tensors");
  for (const Space& space : spec.spaces) DMLCOMM_RETURN_IF_ERROR(check_space(spec, space));
  return Status();
}

uint64_t shard_count(const Space& space, uint32_t shard, uint32_t num_servers) {
  if (!space.sparse()) return partition_of(space, num_servers).length(shard);
  const uint64_t rows = space.num_rows();
  return (rows / num_servers + (shard < rows % num_servers ? 1 : 0)) * space.row_elements;
}

uint64_t shard_bytes(const ModelSpec& spec, uint32_t shard) {
  uint64_t bytes = 0;
  for (const Space& space : spec.spaces) {
    bytes += shard_count(space, shard, spec.num_servers) * size_of(space.stored());
  }
  return bytes;
}

size_t Piece::wire_bytes(const ModelSpec& spec) const {
  return count * size_of(spec.spaces[space].wire);
}

size_t Piece::stored_bytes(const ModelSpec& spec) const {
  return count * size_of(spec.spaces[space].stored());
}

std::vector<Piece> pieces_of(const ModelSpec& spec, uint32_t shard) {
  std::vector<Piece> pieces;
  for (uint32_t index = 0; index < spec.spaces.size(); ++index) {
    const Space& space = spec.spaces[index];
    const uint64_t held = shard_count(space, shard, spec.num_servers);
    const uint64_t offset = space.sparse() ? 0 : partition_of(space, spec.num_servers).begin(shard);
    const uint64_t most = elements_per_piece(space, held);
    for (uint64_t begin = 0; begin < held; begin += most) {
      pieces.push_back({index, begin, std::min(most, held - begin), offset + begin});
    }
  }
  return pieces;
}

}  // namespace dmlcomm::ps
