// CRC-32C (Castagnoli, polynomial 0x1edc6f41): the checksum of iSCSI and ext4, for which CPUs have
// an instruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace dmlcomm {

// Of the bytes whose checksum is `before`, and these behind them; 0 is that of no bytes. By the
// fastest way that this CPU has.
uint32_t crc32c(uint32_t before, const void* data, size_t bytes);

// The ways to compute it that this CPU has, the fastest first; for tests and benchmarks.
struct Crc32cWay {
  std::string_view name;
  uint32_t (*add)(uint32_t state, const std::byte* data, size_t bytes);

  uint32_t operator()(uint32_t before, const void* data, size_t bytes) const {
    return ~add(~before, static_cast<const std::byte*>(data), bytes);
  }
};
std::vector<Crc32cWay> crc32c_ways();

}  // namespace dmlcomm
