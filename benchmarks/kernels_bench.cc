// dmlcomm_kernels_bench: the reduction kernels beside the native loop, measured alternately.
//
//   dmlcomm_kernels_bench [isa]     isa: baseline, avx2, avx512, neon; default: the best of this
//   CPU
//
// Columns: bytes of one source; GB/s counts every source read and the destination written; Gelem/s
// counts results. `native` is the loop of kernels_native.cc on the same type, for the 16-bit floats
// the one on float with the same number of elements; `ratio` compares elements per second (above 1:
// the kernel is faster). Every time is the median of kRounds rounds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "kernels/dispatch.h"
#include "kernels_native.h"

namespace dmlcomm::bench {
namespace {

using kernels::KernelTable;
using kernels::ReduceFunction;
using kernels::runnable_tables;

// Many short rounds: where other work takes the core for a time slice, few of them are hit.
constexpr int kRounds = 101;
constexpr int64_t kRoundNs = 200 * kNsPerUs;
constexpr size_t kMaxSrcs = 4;
constexpr size_t kCacheLine = 64;

struct Case {
  DType dtype;
  size_t num_srcs;
  size_t bytes;
  size_t count() const { return bytes / size_of(dtype); }
};

// Zeroed buffers (arithmetic takes the same time for any normal input), apart by a cache line more
// than a page, so that the streams do not share cache sets.
class Buffers {
 public:
  explicit Buffers(size_t bytes) : stride_(bytes + 4096 + kCacheLine) {
    memory_.resize(stride_ * (kMaxSrcs + 1) + kCacheLine);
    const auto start = reinterpret_cast<uintptr_t>(memory_.data());
    first_ = memory_.data() + (kCacheLine - start % kCacheLine) % kCacheLine;
  }
  void* dst() { return first_; }
  const void* src(size_t k) const { return first_ + (k + 1) * stride_; }

 private:
  size_t stride_;
  std::vector<char> memory_;
  char* first_;
};

double seconds_per_call(const std::function<void()>& call, int calls) {
  const int64_t start = now_ns();
  for (int i = 0; i < calls; ++i) call();
  return static_cast<double>(now_ns() - start) / 1e9 / calls;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

template <typename T>
void call_native(Buffers& buffers, size_t num_srcs, size_t count) {
  const T* srcs[kMaxSrcs];
  for (size_t k = 0; k < num_srcs; ++k) srcs[k] = static_cast<const T*>(buffers.src(k));
  native_sum(static_cast<T*>(buffers.dst()), srcs, num_srcs, count);
}

void call_native(DType dtype, Buffers& buffers, size_t num_srcs, size_t count) {
  if (dtype == DType::f64) return call_native<double>(buffers, num_srcs, count);
  if (dtype == DType::i32) return call_native<int32_t>(buffers, num_srcs, count);
  call_native<float>(buffers, num_srcs, count);
}

void run_case(const KernelTable& table, const Case& c) {
  const size_t count = c.count();
  Buffers kernel_buffers(c.bytes);
  Buffers native_buffers(count * std::max<size_t>(size_of(c.dtype), sizeof(float)));
  const void* srcs[kMaxSrcs];
  for (size_t k = 0; k < c.num_srcs; ++k) srcs[k] = kernel_buffers.src(k);
  const auto sum = static_cast<size_t>(ReduceOp::sum);
  const ReduceFunction function = table.reduce[static_cast<size_t>(c.dtype)][sum];
  const auto kernel = [&] { function(kernel_buffers.dst(), srcs, c.num_srcs, count, 1); };
  const auto native = [&] { call_native(c.dtype, native_buffers, c.num_srcs, count); };

  native();  // first touch
  seconds_per_call(kernel, 1);
  const double once = seconds_per_call(kernel, 1);
  const int calls = std::max(1, static_cast<int>(static_cast<double>(kRoundNs) / 1e9 / once));
  std::vector<double> kernel_s;
  std::vector<double> native_s;
  for (int round = 0; round < kRounds; ++round) {
    kernel_s.push_back(seconds_per_call(kernel, calls));
    native_s.push_back(seconds_per_call(native, calls));
  }
  const double kernel_time = median(kernel_s);
  const double native_time = median(native_s);
  const double moved = static_cast<double>(c.bytes * (c.num_srcs + 1));
  std::printf("%-6s %4zu %10zu %8.1f %8.2f %10.2f %7.2f\n", to_string(c.dtype), c.num_srcs, c.bytes,
              moved / kernel_time / 1e9, static_cast<double>(count) / kernel_time / 1e9,
              static_cast<double>(count) / native_time / 1e9, native_time / kernel_time);
}

const KernelTable* choose_table(std::string_view isa) {
  const auto tables = runnable_tables();
  if (isa.empty()) return tables.back();
  for (const KernelTable* table : tables) {
    if (isa == table->isa) return table;
  }
  return nullptr;
}

int run(std::string_view isa) {
  const KernelTable* table = choose_table(isa);
  if (table == nullptr) {
    std::fprintf(stderr,
                 "this CPU cannot run the kernels '%.*s'; it has:", static_cast<int>(isa.size()),
                 isa.data());
    for (const KernelTable* have : runnable_tables()) std::fprintf(stderr, " %s", have->isa);
    std::fprintf(stderr, "\n");
    return EXIT_FAILURE;
  }
  std::printf("# sum, kernels: %s\n", table->isa);
  std::printf("%-6s %4s %10s %8s %8s %10s %7s\n", "dtype", "srcs", "bytes", "GB/s", "Gelem/s",
              "native", "ratio");
  for (const size_t bytes : {size_t{128} << 10, size_t{16} << 20}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32}) {
      for (const size_t num_srcs : {2, 3, 4}) run_case(*table, {dtype, num_srcs, bytes});
    }
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace dmlcomm::bench

int main(int argc, char** argv) { return dmlcomm::bench::run(argc > 1 ? argv[1] : ""); }
