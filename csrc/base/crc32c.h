// CRC-32C (Castagnoli, polynomial 0x1edc6f41): the checksum of iSCSI and ext4, for which CPUs have
// an instruction. Where this one has none, tables do the same at a tenth of the speed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dmlcomm {

// Of the bytes whose checksum is `before`, and these behind them; 0 is that of no bytes.
uint32_t crc32c(uint32_t before, const void* data, size_t bytes);

// The same without the instruction, for tests.
uint32_t crc32c_by_tables(uint32_t before, const void* data, size_t bytes);

// Whether this CPU has the instruction.
bool has_crc32c_instruction();

}  // namespace dmlcomm
