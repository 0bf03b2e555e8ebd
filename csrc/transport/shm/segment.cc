#include "transport/shm/segment.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "base/check.h"
#include "base/clock.h"
#include "base/str_cat.h"
#include "memory/seal.h"

namespace dmlcomm::transport::shm {
namespace {

constexpr uint64_t kMagic = 0x344d4853434c4d44;  // "DMLCSHM4"
constexpr size_t kPageBytes = 4096;
constexpr int64_t kWriterNs = 500 * kNsPerMs;

size_t controls_offset() { return round_up(sizeof(Header), kCacheLineBytes); }

size_t area_offset(uint32_t num_local) {
  return round_up(controls_offset() + num_local * sizeof(RingControl), kPageBytes);
}

size_t rings_offset(uint32_t num_local, size_t area_bytes) {
  return area_offset(num_local) + round_up(area_bytes, kPageBytes);
}

size_t total_bytes(uint32_t num_local, size_t area_bytes) {
  return rings_offset(num_local, area_bytes) + num_local * kRingBytes;
}

Result<std::byte*> map_shared(int fd, size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return errno_status(StatusCode::io_error, "mmap of shared memory", errno);
  return static_cast<std::byte*>(base);
}

Status wrong_size(uint32_t rank, size_t bytes, size_t expected) {
  return Status(StatusCode::protocol_error,
                str_cat("shared memory of rank ", rank, " has ", bytes, " bytes, expected ",
                        expected, "; DMLCOMM_SHM_BOARD_BYTES must be the same on all ranks"));
}

}  // namespace

bool wait_for_writer(const Header& writer, uint32_t rank) {
  const int64_t give_up = now_ns() + kWriterNs;
  while (writer.writing_to.load() == rank + 1) {
    if (now_ns() > give_up) return false;
    sched_yield();
  }
  return true;
}

Result<std::unique_ptr<Segment>> Segment::create(uint32_t rank, uint32_t num_local,
                                                 size_t area_bytes) {
  UniqueFd fd(memfd_create("dmlcomm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return errno_status(StatusCode::io_error, "memfd_create", errno);
  const size_t bytes = total_bytes(num_local, area_bytes);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return errno_status(StatusCode::io_error, str_cat("ftruncate of a memfd to ", bytes, " bytes"),
                        errno);
  }
  DMLCOMM_RETURN_IF_ERROR(seal_size(fd.get()));
  Result<std::byte*> base = map_shared(fd.get(), bytes);
  if (!base.ok()) return base.status();
  Header* header = new (*base) Header{};
  header->magic = kMagic;
  header->num_local = num_local;
  header->rank = rank;
  header->area_bytes = area_bytes;
  std::unique_ptr<Segment> segment(new Segment(std::move(fd), *base, bytes, num_local, area_bytes));
  for (uint32_t i = 0; i < num_local; ++i) new (&segment->ring_control(i)) RingControl{};
  return segment;
}

Result<std::unique_ptr<Segment>> Segment::map(UniqueFd fd, uint32_t rank, uint32_t num_local,
                                              size_t area_bytes) {
  const size_t bytes = total_bytes(num_local, area_bytes);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return errno_status(StatusCode::io_error, "fstat", errno);
  const auto size = static_cast<size_t>(info.st_size);
  if (size != bytes) return wrong_size(rank, size, bytes);
  if (!has_sealed_size(fd.get())) {
    return Status(StatusCode::protocol_error,
                  str_cat("shared memory of rank ", rank, " could be cut while it is in use"));
  }
  Result<std::byte*> base = map_shared(fd.get(), bytes);
  if (!base.ok()) return base.status();
  std::unique_ptr<Segment> segment(new Segment(UniqueFd(), *base, bytes, num_local, area_bytes));
  const Header& header = segment->header();
  if (header.magic != kMagic || header.rank != rank || header.num_local != num_local) {
    return Status(StatusCode::protocol_error,
                  str_cat("shared memory handed over by rank ", rank, " is not a dmlcomm segment"));
  }
  if (header.area_bytes != area_bytes) return wrong_size(rank, header.area_bytes, area_bytes);
  return segment;
}

Segment::Segment(UniqueFd fd, std::byte* base, size_t bytes, uint32_t num_local, size_t area_bytes)
    : fd_(std::move(fd)),
      base_(base),
      bytes_(bytes),
      num_local_(num_local),
      area_bytes_(area_bytes) {}

Segment::~Segment() { munmap(base_, bytes_); }

RingControl& Segment::ring_control(uint32_t local_index) {
  DMLCOMM_CHECK(local_index < num_local_);
  return reinterpret_cast<RingControl*>(base_ + controls_offset())[local_index];
}

std::byte* Segment::ring(uint32_t local_index) {
  DMLCOMM_CHECK(local_index < num_local_);
  return base_ + rings_offset(num_local_, area_bytes_) + local_index * kRingBytes;
}

std::byte* Segment::area() { return base_ + area_offset(num_local_); }

}  // namespace dmlcomm::transport::shm
