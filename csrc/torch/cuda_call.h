// Calls with CUDA tensors: between torch's streams and the queues of csrc/device.
//
// All of it goes through c10's interface to devices, streams and events of any kind, which torch's
// CUDA part implements where it is loaded. Nothing here is linked to CUDA.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <memory>
#include <vector>

#include "device/cuda_device.h"
#include "device/staged_communicator.h"
#include "engine/communicator.h"
#include "torch/tensors.h"

namespace dmlcomm::adaptor {

using Communicator = std::shared_ptr<engine::Communicator>;

// One GPU. Its queues follow torch's current stream there.
class TorchDevice final : public device::CudaDevice {
 public:
  // That of torch's index, which lives to the end of the process. Throws CommException where CUDA's
  // driver cannot do what staging needs.
  static TorchDevice& at(c10::Device device);

  Status follow_caller(device::Queue& queue) override;

  // As torch names it.
  c10::Stream stream_of(const device::Queue& queue) const;

 private:
  explicit TorchDevice(c10::Device device) : device_(device) {}

  const c10::Device device_;
};

// Where the work of a call ends on its device.
class DeviceEnd {
 public:
  explicit DeviceEnd(c10::Device device) : device_(device) {}

  c10::Device device() const { return device_; }
  void add(const c10::Stream& stream);
  void add_current_stream();

  bool has_come() const;

  // What the calling thread gives to its current stream of the device from now on comes after.
  void block_current_stream() const;

  // Calls `task` with a current stream for which the end has come.
  void on_stream_after(const std::function<void()>& task) const;

 private:
  void block(const c10::Stream& stream) const;

  const c10::Device device_;
  std::vector<c10::Event> events_;
};

// Until `stream` is done with it the allocator gives the tensor's memory to no other stream.
void record_stream(const at::Tensor& tensor, const c10::Stream& stream);

// A call whose tensors are on one GPU. While it lives, that is the current device of the thread.
class CudaCall {
 public:
  // Throws where the current stream records a graph: what waits for the host cannot be replayed.
  CudaCall(c10::Device device, std::shared_ptr<device::StagedCommunicator> communicator);

  const Communicator& communicator() const { return communicator_; }

  // After all operations of the call have been started: copies staged results to their tensors, and
  // tells torch's allocator which streams use the memory.
  std::unique_ptr<DeviceEnd> end(const c10::SmallVectorImpl<engine::OperationPtr>& operations,
                                 CallTensors& tensors) const;
  // The same where operations have `end`.
  std::unique_ptr<DeviceEnd> end(std::unique_ptr<DeviceEnd> end, CallTensors& tensors) const;

 private:
  const c10::Device device_;
  const c10::DeviceGuard guard_;
  const Communicator communicator_;
};

// `tensor` times `factor`, contiguous, as PREMUL_SUM needs it.
at::Tensor scaled_on_device(const at::Tensor& tensor, double factor);

}  // namespace dmlcomm::adaptor
