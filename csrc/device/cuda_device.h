// CudaDevice: NVIDIA's GPUs as devices, by the driver's library, which is loaded when the first
// group needs it. Nothing here is linked to CUDA, and no toolkit is needed to build it.
//
// Queues are streams that wait for no other stream, of the highest priority. They live to the end
// of the process: allocators remember the streams that have used their memory.
//
// Threads: as Device; the device is the current one of the calling thread, by CUDA's runtime.
#pragma once

#include <memory>

#include "device/device.h"

namespace dmlcomm::device {

// Functions of libcuda.so.1.
struct CudaDriver;

class CudaQueue final : public Queue {
 public:
  CudaQueue(const CudaDriver& driver, void* stream) : driver_(driver), stream_(stream) {}
  Status wait(Word word, uint32_t value) override;
  Status write(Word word, uint32_t value) override;
  Status copy(void* to, const void* from, size_t bytes) override;

  // CUDA's: a cudaStream_t.
  void* stream() const { return stream_; }

 private:
  const CudaDriver& driver_;
  void* const stream_;
};

// Its caller is something of the adaptor to torch, which knows the caller's stream.
class CudaDevice : public Device {
 public:
  // Whether the driver is there, and new enough.
  static Status check_driver();

  // Only after check_driver() was ok.
  CudaDevice();

 protected:
  Result<std::unique_ptr<Queue>> make_queue() override;
  Result<Span> make_memory(size_t bytes) override;

 private:
  const CudaDriver& driver_;
};

}  // namespace dmlcomm::device
