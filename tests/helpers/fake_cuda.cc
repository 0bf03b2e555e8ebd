// A GPU that is none: memory of the host, and threads as streams. It stands in for CUDA's driver,
// as far as dmlcomm calls it, and for torch's interface to CUDA's streams and events. So calls with
// CUDA tensors run where no GPU is; tensors come from here, since torch's own functions on them
// would launch kernels.
//
// The module is linked as libcuda.so.1: who asks for that library finds this one.
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

namespace {

const c10::Device kDevice(c10::DeviceType::CUDA, 0);
constexpr size_t kPooledStreams = 3;

// Work that a thread does in order. Streams live to the end of the process.
class Stream {
 public:
  Stream() {
    std::thread([this] { run(); }).detach();
  }

  void call(std::function<void()> piece) {
    std::lock_guard lock(mutex_);
    pieces_.push_back(std::move(piece));
    changed_.notify_all();
  }

  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return pieces_.empty() && !is_busy_; });
  }

  std::atomic<bool> is_held_up{false};  // by an event that has not come

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !pieces_.empty(); });
      std::function<void()> piece = std::move(pieces_.front());
      pieces_.pop_front();
      is_busy_ = true;
      lock.unlock();
      piece();
      piece = nullptr;
      lock.lock();
      is_busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> pieces_;  // guarded by mutex_
  bool is_busy_ = false;                      // guarded by mutex_
};

// Streams are threads, and more of them than cores wait for ranks that need these.
void wait_until(const std::function<bool()>& holds) {
  constexpr int kPolls = 100;
  constexpr std::chrono::microseconds kPause{50};
  for (int polls = 0; !holds(); ++polls) {
    polls < kPolls ? std::this_thread::yield() : std::this_thread::sleep_for(kPause);
  }
}

// Torch's: the current one of a thread is first the default one.
Stream& default_stream() {
  static auto* const stream = new Stream;
  return *stream;
}

c10::Stream named(Stream& stream) {
  return c10::Stream(c10::Stream::UNSAFE, kDevice, reinterpret_cast<intptr_t>(&stream));
}

Stream& of(const c10::Stream& stream) { return *reinterpret_cast<Stream*>(stream.id()); }

thread_local Stream* current_stream = nullptr;

std::atomic<int> num_recorded_uses{0};

Stream& current() { return current_stream == nullptr ? default_stream() : *current_stream; }

// Memory of tensors, by its first byte. As with torch's allocator it goes when the stream that was
// current when it came, and those that were recorded, have done what they had got when its tensor
// went. Then it is overwritten: a stream that was not recorded would read that.
class Memory {
 public:
  static Memory& all() {
    static auto* const memory = new Memory;
    return *memory;
  }

  void* add(at::Tensor tensor) {
    void* const data = tensor.mutable_data_ptr();
    const auto overwrite = [](at::Tensor* gone) {
      std::memset(gone->mutable_data_ptr(), 0xff, gone->nbytes());
      delete gone;
    };
    std::shared_ptr<at::Tensor> kept(new at::Tensor(std::move(tensor)), overwrite);
    std::lock_guard lock(mutex_);
    blocks_.emplace(data, Block{std::move(kept), {&current()}});
    return data;
  }

  void record(const void* data, Stream& stream) {
    std::lock_guard lock(mutex_);
    const auto block = blocks_.find(data);
    if (block != blocks_.end()) block->second.streams.insert(&stream);
  }

  void give_back(const void* data) {
    std::lock_guard lock(mutex_);
    const auto block = blocks_.extract(data);
    if (!block) return;
    for (Stream* stream : block.mapped().streams) stream->call([kept = block.mapped().tensor] {});
  }

 private:
  struct Block {
    std::shared_ptr<at::Tensor> tensor;
    std::set<Stream*> streams;
  };

  std::mutex mutex_;
  std::map<const void*, Block> blocks_;  // guarded by mutex_
};

using Event = std::shared_ptr<std::atomic<bool>>;  // whether it has come

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice.type(); }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return named(current()); }
  c10::Stream getDefaultStream(c10::Device) const override { return named(default_stream()); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    static auto* const pool = new Stream[kPooledStreams];
    static std::atomic<size_t> next{0};
    return named(pool[next++ % kPooledStreams]);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(kDevice);
    current_stream = &of(stream);
    return before;
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    auto& recorded = *static_cast<Event*>(*event);
    recorded = std::make_shared<std::atomic<bool>>(false);
    of(stream).call([recorded] { recorded->store(true); });
  }
  void block(void* event, const c10::Stream& stream) const override {
    of(stream).call([recorded = *static_cast<Event*>(event), &stream = of(stream)] {
      stream.is_held_up = !recorded->load();
      wait_until([&] { return recorded->load(); });
      stream.is_held_up = false;
    });
  }
  void synchronizeEvent(void* event) const override {
    wait_until([recorded = *static_cast<Event*>(event)] { return recorded->load(); });
  }
  bool queryEvent(void* event) const override { return (*static_cast<Event*>(event))->load(); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    Memory::all().record(data.get(), of(stream));
    ++num_recorded_uses;
  }
};

uint32_t load(uint64_t address) {
  return std::atomic_ref(*reinterpret_cast<uint32_t*>(address)).load(std::memory_order_acquire);
}

// What the current stream has got before a closed gate is done, and nothing behind it.
std::atomic<bool> gate_is_open{true};

at::Tensor on_device(const at::Tensor& tensor) {
  const at::Tensor copy = tensor.clone();
  return at::from_blob(
      Memory::all().add(copy), copy.sizes(), [](void* data) { Memory::all().give_back(data); },
      copy.options().device(kDevice), kDevice);
}

// After all that the current stream has got.
at::Tensor on_host(const at::Tensor& tensor) {
  of(Guard().getStream(kDevice)).synchronize();
  return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.options().device(at::kCPU))
      .clone();
}

// The same memory.
at::Tensor seen_by_host(const at::Tensor& tensor) {
  return at::from_blob(
      tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), [](void*) {},
      tensor.options().device(at::kCPU));
}

// `factor` x `from`, when the current stream comes to it. Each may also be the host's.
void copy(const at::Tensor& to, const at::Tensor& from, double factor) {
  of(Guard().getStream(kDevice)).call([to, from, factor] {
    const at::Tensor source = seen_by_host(from);
    seen_by_host(to).copy_(factor == 1 ? source : source.mul(factor));
  });
}

// Otherwise all_reduce waits, as NCCL does while it connects.
std::atomic<bool> parts_go_on{true};

// Another group in the place of NCCL: ranks meet when they connect, and nothing returns a Work,
// since the current stream has got the operation.
class WithoutWork final : public c10d::Backend {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Connect = std::function<BackendPtr()>;

  WithoutWork(int rank, int size, Connect connect)
      : Backend(rank, size), connect_(std::move(connect)) {}

  const std::string getBackendName() const override { return "without_work"; }
  void eagerConnectSingleDevice(at::Device) override { group_ = connect_(); }
  c10d::ErrorType getError() override { return group_->getError(); }
  void abort() override {
    is_aborted_ = true;
    if (group_ != nullptr) group_->abort();
  }
  void shutdown() override { group_->shutdown(); }
  void setTimeout(std::chrono::milliseconds timeout) override { group_->setTimeout(timeout); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    wait_until([this] { return parts_go_on || is_aborted_; });
    TORCH_CHECK(!is_aborted_, "aborted");
    return given(group_->allreduce(tensors, options));
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return given(group_->broadcast(tensors, options));
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return given(group_->_reduce_scatter_base(output, input, options));
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return given(group_->_allgather_base(output, input, options));
  }

 private:
  static WorkPtr given(const WorkPtr& work) {
    work->wait();
    return nullptr;
  }

  const Connect connect_;
  BackendPtr group_;
  std::atomic<bool> is_aborted_{false};
};

c10::intrusive_ptr<c10d::Backend> without_work(int rank, int size, WithoutWork::Connect connect) {
  return c10::make_intrusive<WithoutWork>(rank, size, std::move(connect));
}

}  // namespace

// CUDA's driver.
extern "C" {

#define DRIVER __attribute__((visibility("default"))) int

DRIVER cuGetErrorString(int, const char** text) {
  *text = "an error";
  return 0;
}

DRIVER cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return 0;
}

DRIVER cuStreamCreateWithPriority(Stream** stream, unsigned, int) {
  *stream = new Stream;
  return 0;
}

DRIVER cuStreamWaitValue32_v2(Stream* stream, uint64_t address, uint32_t value, unsigned) {
  stream->call([address, value] {
    wait_until([&] { return static_cast<int32_t>(load(address) - value) >= 0; });
  });
  return 0;
}

DRIVER cuStreamWriteValue32_v2(Stream* stream, uint64_t address, uint32_t value, unsigned) {
  stream->call([address, value] {
    std::atomic_ref(*reinterpret_cast<uint32_t*>(address)).store(value, std::memory_order_release);
  });
  return 0;
}

DRIVER cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
  stream->call([to, from, bytes] {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
  });
  return 0;
}

DRIVER cuMemHostRegister_v2(void*, size_t, unsigned) { return 0; }

DRIVER cuMemHostGetDevicePointer_v2(uint64_t* address, void* memory, unsigned) {
  *address = reinterpret_cast<uintptr_t>(memory);
  return 0;
}
}

PYBIND11_MODULE(fake_cuda, module) {
  static const Guard guard;
  static const c10::impl::DeviceGuardImplRegistrar registrar(kDevice.type(), &guard);
  module.def("on_device", &on_device);
  module.def("on_host", &on_host, pybind11::call_guard<pybind11::gil_scoped_release>());
  module.def("copy", &copy, pybind11::arg("to"), pybind11::arg("source"),
             pybind11::arg("factor") = 1.0);
  module.def("current_stream", [] { return guard.getStream(kDevice); });
  module.def("is_held_up", [] { return of(guard.getStream(kDevice)).is_held_up.load(); });
  module.def("without_work", &without_work);
  module.def("let_parts_go_on", [](bool go_on) { parts_go_on = go_on; });
  module.def("num_recorded_uses", [] { return num_recorded_uses.load(); });
  module.def("close_gate", [] {
    gate_is_open = false;
    of(guard.getStream(kDevice)).call([] { wait_until([] { return gate_is_open.load(); }); });
  });
  module.def("open_gate", [] { gate_is_open = true; });
}
