#include "device/cuda_device.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <type_traits>

#include "memory/shared_arena.h"

namespace dmlcomm::device {

// As cuda.h declares them. The names are those of the versions that headers of CUDA 12 and 13
// choose.
struct CudaDriver {
  using Code = int;  // 0: success
  using Stream = void*;
  using Address = unsigned long long;

  Code (*get_error_string)(Code, const char**) = nullptr;
  Code (*get_priorities)(int* least, int* greatest) = nullptr;
  Code (*create_stream)(Stream*, unsigned flags, int priority) = nullptr;
  Code (*wait_value)(Stream, Address, uint32_t value, unsigned flags) = nullptr;
  Code (*write_value)(Stream, Address, uint32_t value, unsigned flags) = nullptr;
  Code (*copy)(Address to, Address from, size_t bytes, Stream) = nullptr;
  Code (*register_memory)(void*, size_t bytes, unsigned flags) = nullptr;
  Code (*get_address)(Address*, void* memory, unsigned flags) = nullptr;

  Status check(Code code, const char* function) const;
  Status pin(void* memory, size_t bytes) const;
  // Where the device has pinned memory; mostly, but not on every platform, where the host has it.
  Status find_on_device(void* memory, Address* address) const;
};

namespace {

constexpr unsigned kNonBlocking = 1;          // CU_STREAM_NON_BLOCKING
constexpr unsigned kWaitUntilReached = 0;     // CU_STREAM_WAIT_VALUE_GEQ, which wraps around
constexpr unsigned kWriteAfterAll = 0;        // CU_STREAM_WRITE_VALUE_DEFAULT
constexpr unsigned kForAllContexts = 1;       // CU_MEMHOSTREGISTER_PORTABLE
constexpr unsigned kWithAddressOnDevice = 2;  // CU_MEMHOSTREGISTER_DEVICEMAP
constexpr char kLibrary[] = "libcuda.so.1";

Result<CudaDriver> load_driver() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return Status(StatusCode::unsupported,
                  "CUDA's driver does not load: ", reason == nullptr ? kLibrary : reason);
  }
  CudaDriver driver;
  std::string missing;
  const auto find = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function == nullptr) missing = name;
  };
  find("cuGetErrorString", &driver.get_error_string);
  find("cuCtxGetStreamPriorityRange", &driver.get_priorities);
  find("cuStreamCreateWithPriority", &driver.create_stream);
  find("cuStreamWaitValue32_v2", &driver.wait_value);
  find("cuStreamWriteValue32_v2", &driver.write_value);
  find("cuMemcpyAsync", &driver.copy);
  find("cuMemHostRegister_v2", &driver.register_memory);
  find("cuMemHostGetDevicePointer_v2", &driver.get_address);
  if (missing.empty()) return driver;
  return Status(StatusCode::unsupported, "CUDA's driver (", kLibrary, ") has no ", missing,
                ": install that of CUDA 11.7 or newer");
}

// Never destroyed: streams outlive static objects.
const Result<CudaDriver>& loaded_driver() {
  static const auto* const driver = new Result<CudaDriver>(load_driver());
  return *driver;
}

CudaDriver::Address address_of(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

// Shared with children, so that a fork leaves the pages where the device expects them.
Result<std::byte*> map_pages(size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) return static_cast<std::byte*>(memory);
  return errno_status(StatusCode::internal_error, "mmap of memory to be pinned", errno);
}

}  // namespace

Status CudaDriver::check(Code code, const char* function) const {
  if (code == 0) return Status();
  const char* text = nullptr;
  if (get_error_string(code, &text) != 0 || text == nullptr) text = "unknown error";
  return Status(StatusCode::io_error, function, " of CUDA's driver failed: ", text, " (", code,
                ")");
}

Status CudaDriver::pin(void* memory, size_t bytes) const {
  return check(register_memory(memory, bytes, kForAllContexts | kWithAddressOnDevice),
               "cuMemHostRegister");
}

Status CudaDriver::find_on_device(void* memory, Address* address) const {
  return check(get_address(address, memory, 0), "cuMemHostGetDevicePointer");
}

Status CudaQueue::wait(Word word, uint32_t value) {
  CudaDriver::Address address = 0;
  DMLCOMM_RETURN_IF_ERROR(driver_.find_on_device(word.address(), &address));
  return driver_.check(driver_.wait_value(stream_, address, value, kWaitUntilReached),
                       "cuStreamWaitValue32");
}

Status CudaQueue::write(Word word, uint32_t value) {
  CudaDriver::Address address = 0;
  DMLCOMM_RETURN_IF_ERROR(driver_.find_on_device(word.address(), &address));
  return driver_.check(driver_.write_value(stream_, address, value, kWriteAfterAll),
                       "cuStreamWriteValue32");
}

Status CudaQueue::copy(void* to, const void* from, size_t bytes) {
  return driver_.check(driver_.copy(address_of(to), address_of(from), bytes, stream_),
                       "cuMemcpyAsync");
}

Status CudaDevice::check_driver() { return loaded_driver().status(); }

CudaDevice::CudaDevice() : driver_(*loaded_driver()) {}

Result<std::unique_ptr<Queue>> CudaDevice::make_queue() {
  int least = 0;
  int greatest = 0;
  DMLCOMM_RETURN_IF_ERROR(
      driver_.check(driver_.get_priorities(&least, &greatest), "cuCtxGetStreamPriorityRange"));
  CudaDriver::Stream stream = nullptr;
  DMLCOMM_RETURN_IF_ERROR(driver_.check(driver_.create_stream(&stream, kNonBlocking, greatest),
                                        "cuStreamCreateWithPriority"));
  return std::unique_ptr<Queue>(std::make_unique<CudaQueue>(driver_, stream));
}

// In the arena, where the other ranks of the host map it, if there is one and CUDA takes its pages.
Result<Span> CudaDevice::make_memory(size_t bytes) {
  if (SharedArena* const arena = SharedArena::existing()) {
    std::byte* const memory = arena->allocate_like(0, bytes, true);
    if (memory != nullptr && driver_.pin(memory, bytes).ok()) return Span(memory, bytes);
    if (memory != nullptr) arena->free(memory, bytes);
  }
  Result<std::byte*> memory = map_pages(bytes);
  if (!memory.ok()) return memory.status();
  const Status status = driver_.pin(*memory, bytes);
  if (status.ok()) return Span(*memory, bytes);
  (void)munmap(*memory, bytes);
  return status;
}

}  // namespace dmlcomm::device
