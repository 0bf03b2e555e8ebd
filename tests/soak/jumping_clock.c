// A wall clock that jumps, for one process: LD_PRELOAD this, and name a file of eight bytes in
// SOAK_CLOCK_FILE, the nanoseconds by which its time of day is wrong. Who writes there moves it.
//
// The clock since the start of the machine stays right, as it does where somebody sets the time.
// Waits until a time of day are told to the kernel in its own time.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t kSecond = 1000000000;
// No machine runs for so long, and no time of day is before it: tells which clock a time is of.
static const int64_t kLeastTimeOfDay = 1000000000;

static volatile int64_t* wrong_by;

__attribute__((constructor)) static void open_file(void) {
  const char* path = getenv("SOAK_CLOCK_FILE");
  const int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* page = mmap(NULL, sizeof(*wrong_by), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (page != MAP_FAILED) wrong_by = page;
}

static struct timespec moved(struct timespec time, int64_t by) {
  int64_t ns = time.tv_nsec + by % kSecond;
  int64_t seconds = time.tv_sec + by / kSecond;
  if (ns < 0) {
    ns += kSecond;
    --seconds;
  }
  time.tv_sec = (time_t)(seconds + ns / kSecond);
  time.tv_nsec = (long)(ns % kSecond);
  return time;
}

static int64_t error_now(void) { return wrong_by == NULL ? 0 : *wrong_by; }

static struct timespec of_kernel(const struct timespec* time) {
  return time->tv_sec < kLeastTimeOfDay ? *time : moved(*time, -error_now());
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int clock_gettime(clockid_t clock, struct timespec* time) {
  const int failed = (int)syscall(SYS_clock_gettime, clock, time);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    *time = moved(*time, error_now());
  }
  return failed;
}

int gettimeofday(struct timeval* restrict time, void* restrict zone) {
  (void)zone;
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* result) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  if (result != NULL) *result = now.tv_sec;
  return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t* restrict cond, pthread_mutex_t* restrict mutex,
                           const struct timespec* restrict until) {
  const struct timespec time = of_kernel(until);
  return REAL(pthread_cond_timedwait)(cond, mutex, &time);
}

int sem_timedwait(sem_t* restrict sem, const struct timespec* restrict until) {
  const struct timespec time = of_kernel(until);
  return REAL(sem_timedwait)(sem, &time);
}

// Libraries that wait by the system call itself.
long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  struct timespec time;
  if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) != 0 && a[3] != 0) {
    time = of_kernel((const struct timespec*)a[3]);
    a[3] = (long)&time;
  }
  static __typeof__(&syscall) real;
  if (real == NULL) real = REAL(syscall);
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
