#include "torch/block_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdlib>

#include "memory/shared_arena.h"
#include "memory/shared_blocks.h"

namespace dmlcomm::adaptor {
namespace {

// Torch's own allocator, but for large blocks, which begin and end with pages.
class BlockAllocator final : public c10::Allocator {
 public:
  explicit BlockAllocator(c10::Allocator* others) : others_(others) {
    free_other = others_->raw_deleter();
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes < SharedBlocks::kMinBytes) return others_->allocate(bytes);
    void* const block = SharedBlocks::instance().allocate(bytes);
    if (block == nullptr) return others_->allocate(bytes);  // torch says best what is missing
    c10::profiledCPUMemoryReporter().New(block, bytes);
    return {block, block, &free_block, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void free_block(void* block) {
    switch (SharedBlocks::instance().remove(block)) {
      case SharedBlocks::Removed::unknown: return free_other(block);
      case SharedBlocks::Removed::ordinary:
        c10::profiledCPUMemoryReporter().Delete(block);
        return std::free(block);
      case SharedBlocks::Removed::stuck: break;
    }
  }

  static inline c10::DeleterFnPtr free_other = nullptr;
  c10::Allocator* const others_;
};

}  // namespace

void share_large_tensors(const Config& config) {
  const bool may_share = config.share_tensors && config.shm_single_copy && config.shares_memory();
  if (!may_share) return;
  static const bool once = [&config] {
    SharedArena* const arena = SharedArena::make();
    c10::Allocator* const others = c10::GetCPUAllocator();
    if (arena == nullptr || others->raw_deleter() == nullptr) return false;
    SharedBlocks::instance().enable(arena, config.huge_pages);
    c10::SetCPUAllocator(new BlockAllocator(others));  // stays to the end of the process
    return true;
  }();
  (void)once;
}

}  // namespace dmlcomm::adaptor
