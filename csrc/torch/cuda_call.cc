#include "torch/cuda_call.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "torch/errors.h"

namespace dmlcomm::adaptor {
namespace {

using Impl = c10::impl::VirtualGuardImpl;

Impl impl_of(c10::Device device) { return Impl(device.type()); }

// Torch before 2.15 cannot be asked.
template <typename AnyImpl>
bool is_capturing(const AnyImpl& impl, const c10::Stream& stream) {
  if constexpr (requires { impl.isStreamCapturing(stream); }) {
    return impl.isStreamCapturing(stream);
  } else {
    return false;
  }
}

}  // namespace

void record_stream(const at::Tensor& tensor, const c10::Stream& stream) {
  if (!tensor.defined() || tensor.device() != stream.device()) return;
  impl_of(stream.device()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

TorchDevice& TorchDevice::at(c10::Device device) {
  static std::mutex mutex;
  static auto* const devices = new std::map<c10::DeviceIndex, TorchDevice*>;  // outlive the exit
  throw_if_error(check_driver());
  std::lock_guard lock(mutex);
  TorchDevice*& found = (*devices)[device.index()];
  if (found == nullptr) found = new TorchDevice(device);
  return *found;
}

Status TorchDevice::follow_caller(device::Queue& queue) {
  c10::Event now(device_.type());
  now.record(impl_of(device_).getStream(device_));
  now.block(stream_of(queue));
  return Status();
}

// For streams that torch has not made, their number is CUDA's pointer.
c10::Stream TorchDevice::stream_of(const device::Queue& queue) const {
  void* const stream = static_cast<const device::CudaQueue&>(queue).stream();
  const auto number = static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(stream));
  return c10::Stream(c10::Stream::UNSAFE, device_, number);
}

void DeviceEnd::add(const c10::Stream& stream) {
  events_.emplace_back(device_.type());
  events_.back().record(stream);
}

void DeviceEnd::add_current_stream() { add(impl_of(device_).getStream(device_)); }

bool DeviceEnd::has_come() const {
  return std::all_of(events_.begin(), events_.end(),
                     [](const c10::Event& event) { return event.query(); });
}

void DeviceEnd::block(const c10::Stream& stream) const {
  for (const c10::Event& event : events_) event.block(stream);
}

void DeviceEnd::block_current_stream() const {
  const c10::DeviceGuard guard(device_);
  block(impl_of(device_).getStream(device_));
}

void DeviceEnd::on_stream_after(const std::function<void()>& task) const {
  const c10::StreamGuard guard(impl_of(device_).getStreamFromGlobalPool(device_));
  block(guard.current_stream());
  task();
}

CudaCall::CudaCall(c10::Device device, std::shared_ptr<device::StagedCommunicator> communicator)
    : device_(device), guard_(device), communicator_(std::move(communicator)) {
  TORCH_CHECK(!is_capturing(impl_of(device), impl_of(device).getStream(device)),
              "dmlcomm: the current stream of ", device,
              " records a CUDA graph, which cannot hold operations of dmlcomm: call them outside "
              "of the graph");
}

std::unique_ptr<DeviceEnd> CudaCall::end(
    const c10::SmallVectorImpl<engine::OperationPtr>& operations, CallTensors& tensors) const {
  TorchDevice& device = TorchDevice::at(device_);
  auto ends = std::make_unique<DeviceEnd>(device_);
  for (const engine::OperationPtr& operation : operations) {
    const device::Queue* queue = static_cast<device::StagedOperation&>(*operation).end();
    if (queue == nullptr) continue;  // it has failed at once
    const c10::Stream stream = device.stream_of(*queue);
    tensors.for_each([&](const at::Tensor& tensor) { record_stream(tensor, stream); });
    ends->add(stream);
  }
  return end(std::move(ends), tensors);
}

std::unique_ptr<DeviceEnd> CudaCall::end(std::unique_ptr<DeviceEnd> end,
                                         CallTensors& tensors) const {
  if (!tensors.needs_finish()) return end;
  auto copied = std::make_unique<DeviceEnd>(device_);
  end->on_stream_after([&] {
    const c10::Stream stream = impl_of(device_).getStream(device_);
    tensors.for_each([&](const at::Tensor& tensor) { record_stream(tensor, stream); });
    tensors.finish();
    copied->add(stream);
  });
  return copied;
}

// Float8 has no arithmetic on GPUs.
at::Tensor scaled_on_device(const at::Tensor& tensor, double factor) {
  at::NoGradGuard no_grad;
  const bool is_wide = tensor.is_complex() || tensor.element_size() > 1;
  const at::Tensor wide = is_wide ? tensor : tensor.to(at::kFloat);
  return wide.mul(factor).to(tensor.scalar_type()).contiguous();
}

}  // namespace dmlcomm::adaptor
