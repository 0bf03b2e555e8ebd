#include "transport/job_seat.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "memory/seal.h"

namespace dmlcomm::transport {
namespace {

Result<SeatPage*> map_page(int fd) {
  void* memory = mmap(nullptr, sizeof(SeatPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return errno_status(StatusCode::io_error, "mmap of a seat", errno);
  return static_cast<SeatPage*>(memory);
}

std::string text_of(const char* text, size_t most) { return {text, strnlen(text, most)}; }

}  // namespace

Result<std::shared_ptr<JobSeat>> JobSeat::create() {
  UniqueFd fd(memfd_create("dmlcomm seat", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), sizeof(SeatPage)) != 0) {
    return errno_status(StatusCode::io_error, "memory of a seat", errno);
  }
  DMLCOMM_RETURN_IF_ERROR(seal_size(fd.get()));
  return open(fd.get());
}

Result<std::shared_ptr<JobSeat>> JobSeat::open(int fd) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return errno_status(StatusCode::io_error, "a seat", errno);
  if (!has_sealed_size(fd) || static_cast<size_t>(file.st_size) != sizeof(SeatPage)) {
    return Status(StatusCode::invalid_argument, "a seat is a sealed file of ", sizeof(SeatPage),
                  " bytes; this one has ", file.st_size,
                  ": take one version of dmlcomm for the proxy and the job");
  }
  UniqueFd own(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own.valid()) return errno_status(StatusCode::io_error, "a seat", errno);
  Result<SeatPage*> page = map_page(own.get());
  if (!page.ok()) return page.status();
  return std::shared_ptr<JobSeat>(new JobSeat(std::move(own), *page));
}

JobSeat::~JobSeat() { munmap(page_, sizeof(SeatPage)); }

SeatNic* JobSeat::nic(std::string_view interface) {
  for (SeatNic& nic : page_->nics) {
    if (interface.size() >= nic.name.size()) return nullptr;
    uint32_t use = SeatNic::free;
    if (nic.use.compare_exchange_strong(use, SeatNic::named_soon)) {
      std::copy(interface.begin(), interface.end(), nic.name.begin());
      nic.use.store(SeatNic::used);
      return &nic;
    }
    // What two threads name at one moment may have two places: the arbiter adds them up.
    if (use == SeatNic::used && text_of(nic.name.data(), nic.name.size()) == interface) return &nic;
  }
  return nullptr;
}

std::string JobSeat::reason() const {
  if (!page_->is_dropped.load()) return "";
  return text_of(page_->reason.data(), page_->reason.size());
}

}  // namespace dmlcomm::transport
