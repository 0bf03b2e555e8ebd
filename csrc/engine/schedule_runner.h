// ScheduleRunner: carries out one collective as its schedule says, over the links of the mesh.
//
// At the start it posts every receive and tells the sources that they may send. Then a task begins
// when the tasks it depends on are complete; reductions work segment by segment, while data comes
// in.
#pragma once

#include <memory>
#include <vector>

#include "engine/compiled_plan.h"
#include "engine/op_state.h"
#include "engine/runner.h"
#include "memory/memory_pool.h"
#include "transport/mesh.h"

namespace dmlcomm::engine {

class ScheduleRunner final : public Runner {
 public:
  // `report`: of this rank.
  ScheduleRunner(transport::Mesh& mesh, MemoryPool& pool, const OpState& op,
                 std::shared_ptr<const CompiledPlan> plan, const transport::RankReport& report);
  ~ScheduleRunner() override;

  Status start() override;
  Status advance(bool* moved) override;
  bool complete() const override { return num_done_ == plan_->tasks.size(); }
  const CompiledPlan* plan() const override { return plan_.get(); }
  transport::RankReport report() const override { return report_; }
  bool waits_for(int peer) const override;
  void on_sent(transport::SendRequest& request) override;
  void on_arrived(transport::RecvRequest& request) override;
  void provide_window(transport::RecvRequest& request) override;

 private:
  struct OutMessage : transport::SendRequest {
    uint32_t task = 0;
    int peer = 0;
    bool done = false;
  };
  struct InMessage : transport::RecvRequest {
    uint32_t task = 0;
    int peer = 0;
    bool done = false;
    MemoryPool::Block block;  // the window
  };
  struct TaskState {
    uint32_t num_deps_left = 0;
    bool active = false;
    bool done = false;
    size_t position = 0;  // bytes of the range that are finished
  };

  transport::Tag tag_of(uint32_t id) const;  // of a step
  void post_receive(uint32_t id, bool ready);
  std::byte* at(const schedule::Range& range) const;
  void activate(uint32_t task);
  void finish(uint32_t task);
  Status work(uint32_t task, bool* moved);
  Status pull_some(uint32_t task, InMessage& message, bool* moved);
  Status reduce_some(uint32_t task, bool* moved);
  Status reduce_segment(uint32_t task, size_t position, size_t bytes, bool* missing);
  bool must_open(const Source& source) const;
  void release_sources(uint32_t task, size_t position, bool complete);
  size_t segment_bytes() const;

  transport::Mesh& mesh_;
  MemoryPool& pool_;
  const OpState& op_;
  const OpRequest& request_;
  const std::shared_ptr<const CompiledPlan> plan_;
  const size_t element_bytes_;

  std::vector<TaskState> tasks_;
  // By step; a step has one of the two, copies have none.
  std::vector<std::unique_ptr<OutMessage>> out_;
  std::vector<std::unique_ptr<InMessage>> in_;
  std::vector<uint32_t> sent_;     // tasks whose message has left; taken down by on_sent()
  std::vector<uint32_t> working_;  // receiving tasks that are active
  size_t num_done_ = 0;
  int64_t waited_ns_ = -1;  // for the first message; see SendRequest
  transport::RankReport report_;
  std::vector<MemoryPool::Block> blocks_;  // scratch and staging
  BufferView scratch_;
  std::byte* staging_ = nullptr;  // where offered segments are read to
};

}  // namespace dmlcomm::engine
