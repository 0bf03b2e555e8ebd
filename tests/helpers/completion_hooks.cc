// Notes which operations of a process group have ended, by a hook that only C++ can register.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdint>
#include <mutex>
#include <vector>

namespace {

std::mutex mutex;
std::vector<uint64_t> ended;  // keys of Works; guarded by mutex

void watch(c10d::ProcessGroup& group, int64_t id) {
  TORCH_CHECK(group.supportsCompletionHooks());
  group.registerCompletionHook(id, [](const c10d::CompletionHookArgs& args) {
    std::lock_guard lock(mutex);
    ended.push_back(args.completionKey);
  });
}

}  // namespace

PYBIND11_MODULE(completion_hooks, module) {
  module.def("watch", &watch);
  module.def("unwatch",
             [](c10d::ProcessGroup& group, int64_t id) { group.unregisterCompletionHook(id); });
  module.def("key_of", [](c10d::Work& work) { return work.getCompletionKey(); });
  module.def("ended", [] {
    std::lock_guard lock(mutex);
    return ended;
  });
}
