#include "schedule/algorithms/blocks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace dmlcomm::schedule {
namespace {

// A part with its header fills two packets of the loopback device, which hold 65,483 bytes each,
// and half a part with its header fits into one. An excess costs a packet of its own: parts
// of 128 KiB take a tenth longer.
constexpr uint64_t kPartBytes = 130'688;
// Shorter vectors gain nothing: they are in the cache as they are.
constexpr uint64_t kMinBlocks = 4;
// Schedules grow with the blocks, and this many take some MB: blocks of longer vectors are longer.
constexpr uint64_t kMaxBlocks = 1024;

std::vector<uint32_t> steps_nobody_waits_for(const Schedule& schedule) {
  std::vector<bool> is_awaited(schedule.steps.size());
  for (const Step& step : schedule.steps) {
    for (uint32_t dep : step.deps) is_awaited[dep] = true;
  }
  const std::vector<Step>& steps = schedule.steps;
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < steps.size(); ++id) {
    // The next step may combine more onto the same range, and so stand for this one, too.
    const bool is_inside_run = id + 1 < steps.size() && are_in_a_run(steps[id], steps[id + 1]);
    if (!is_awaited[id] && !is_inside_run) ids.push_back(id);
  }
  return ids;
}

// Puts `block` behind the steps of `whole`, for the elements from `offset` on; `before` must be
// complete first. Returns its last steps, by their new ids.
std::vector<uint32_t> append(Schedule block, uint64_t offset, const std::vector<uint32_t>& before,
                             Schedule* whole) {
  const auto first = static_cast<uint32_t>(whole->steps.size());
  std::vector<uint32_t> last = steps_nobody_waits_for(block);
  for (uint32_t& id : last) id += first;
  for (Step& step : block.steps) {
    for (uint32_t& dep : step.deps) dep += first;
    if (step.deps.empty()) step.deps = before;
    step.range.offset += offset;
    step.source.offset += offset;
    whole->steps.push_back(std::move(step));
  }
  whole->stream_of.insert(whole->stream_of.end(), block.stream_of.begin(), block.stream_of.end());
  return last;
}

}  // namespace

uint64_t block_elements(const OpShape& shape, const topology::Topology& topology,
                        uint32_t num_parts) {
  const bool is_loopback = topology.is_one_host() && !topology.single_copy;
  if (!is_loopback || shape.num_ranks == 1) return 0;
  const uint64_t part = std::max<uint64_t>(1, kPartBytes / shape.element_bytes);
  const uint64_t block = part * num_parts;
  if (shape.counts[0] / kMinBlocks < block) return 0;
  return block * (1 + shape.counts[0] / block / kMaxBlocks);
}

Schedule in_blocks(const OpShape& shape, const topology::Topology& topology, uint32_t num_parts,
                   const std::function<Schedule(const OpShape&)>& generate) {
  DMLCOMM_CHECK(shape.kind == OpKind::all_reduce);
  const uint64_t elements = block_elements(shape, topology, num_parts);
  if (elements == 0) return generate(shape);
  Schedule whole;
  std::vector<std::vector<uint32_t>> ends;  // last steps of each block
  for (uint64_t begin = 0; begin < shape.counts[0]; begin += elements) {
    OpShape of_block = shape;
    of_block.counts = {std::min(elements, shape.counts[0] - begin)};
    Schedule block = generate(of_block);
    DMLCOMM_CHECK(block.num_streams == 1 && block.scratch_elements == 0);
    const bool waits = ends.size() >= kBlocksAtATime;
    const auto before = waits ? ends[ends.size() - kBlocksAtATime] : std::vector<uint32_t>();
    ends.push_back(append(std::move(block), begin, before, &whole));
  }
  return whole;
}

}  // namespace dmlcomm::schedule
