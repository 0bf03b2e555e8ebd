// Span: a run of memory, and where it is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dmlcomm {

enum class Device : uint8_t { cpu };

// A function that takes a span as its input only reads it.
struct Span {
  Span() = default;
  Span(const void* memory, size_t num_bytes, Device where = Device::cpu)
      : data(static_cast<std::byte*>(const_cast<void*>(memory))), bytes(num_bytes), device(where) {}

  std::byte* data = nullptr;
  size_t bytes = 0;
  Device device = Device::cpu;
};

}  // namespace dmlcomm
