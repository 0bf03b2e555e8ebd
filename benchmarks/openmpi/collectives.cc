// The OpenMPI peer: one collective of one size, timed and verified as benchmarks/ranks.py does it.
//
//   mpirun -n N collectives OPERATION COUNT DTYPE SECONDS MIN_ITERATIONS MAX_ITERATIONS
//
// COUNT is the number of elements of the larger of a rank's input and output, a multiple of N.
// Rank 0 prints one JSON line per variant (in place or not): the seconds of each iteration of the
// slowest rank, a barrier before each, and the number of wrong elements over all ranks.
#define OMPI_SKIP_MPICXX 1  // the C interface is enough, and its C++ headers warn
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace {

constexpr int kRoot = 0;
constexpr int64_t kTableLength = 4093;  // as in benchmarks/operations.py

int g_rank = 0;
int g_num_ranks = 1;

// Element `index` of what `rank` puts in.
int64_t value(int64_t index, int rank, int seed) {
  const int64_t i = index % kTableLength;
  return (i * i + 3 * rank + seed) % 5;
}

int64_t sum_of_values(int64_t index, int seed) {
  int64_t sum = 0;
  for (int rank = 0; rank < g_num_ranks; ++rank) sum += value(index, rank, seed);
  return sum;
}

template <typename T>
struct Buffers {
  std::vector<T> input;
  std::vector<T> output;
};

// A way to call an operation: what it does, where its input is, and element i of its result.
template <typename T>
struct Variant {
  std::string name;
  bool in_place = false;
  size_t input_count = 0;
  size_t output_count = 0;
  std::function<void(Buffers<T>&)> run;
  std::function<int64_t(int64_t, int)> expected;
};

template <typename T>
std::vector<Variant<T>> variants_of(const std::string& operation, int count, MPI_Datatype type) {
  const int piece = count / g_num_ranks;
  const size_t whole = count;
  const size_t part = piece;
  const auto sum = [](int64_t i, int seed) { return sum_of_values(i, seed); };
  const auto gathered = [piece](int64_t i, int seed) {
    return value(i % piece, static_cast<int>(i / piece), seed);
  };
  if (operation == "all_reduce") {
    return {{"in place", true, whole, whole,
             [=](Buffers<T>& b) {
               MPI_Allreduce(MPI_IN_PLACE, b.output.data(), count, type, MPI_SUM, MPI_COMM_WORLD);
             },
             sum},
            {"separate", false, whole, whole,
             [=](Buffers<T>& b) {
               MPI_Allreduce(b.input.data(), b.output.data(), count, type, MPI_SUM, MPI_COMM_WORLD);
             },
             sum}};
  }
  if (operation == "broadcast") {
    return {{"in place", true, whole, whole,
             [=](Buffers<T>& b) { MPI_Bcast(b.output.data(), count, type, kRoot, MPI_COMM_WORLD); },
             [](int64_t i, int seed) { return value(i, kRoot, seed); }}};
  }
  if (operation == "all_gather") {
    return {{"separate", false, part, whole,
             [=](Buffers<T>& b) {
               MPI_Allgather(b.input.data(), piece, type, b.output.data(), piece, type,
                             MPI_COMM_WORLD);
             },
             gathered}};
  }
  if (operation == "reduce_scatter") {
    return {
        {"separate", false, whole, part,
         [=](Buffers<T>& b) {
           MPI_Reduce_scatter_block(b.input.data(), b.output.data(), piece, type, MPI_SUM,
                                    MPI_COMM_WORLD);
         },
         [=](int64_t i, int seed) { return sum_of_values(int64_t{piece} * g_rank + i, seed); }}};
  }
  if (operation == "all_to_all") {
    return {{"separate", false, whole, whole,
             [=](Buffers<T>& b) {
               MPI_Alltoall(b.input.data(), piece, type, b.output.data(), piece, type,
                            MPI_COMM_WORLD);
             },
             [=](int64_t i, int seed) {
               return value(int64_t{piece} * g_rank + i % piece, static_cast<int>(i / piece), seed);
             }}};
  }
  return {};
}

template <typename T>
void fill(const Variant<T>& variant, Buffers<T>* buffers, int seed) {
  std::fill(buffers->output.begin(), buffers->output.end(), T(99));
  auto& input = variant.in_place ? buffers->output : buffers->input;
  for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<T>(value(i, g_rank, seed));
}

// Seconds of one call on this rank, which starts with all others.
template <typename T>
double time_once(const Variant<T>& variant, Buffers<T>* buffers) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  variant.run(*buffers);
  return MPI_Wtime() - begin;
}

double slowest(double seconds) {
  double result = 0;
  MPI_Allreduce(&seconds, &result, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return result;
}

struct Limits {
  double seconds;
  int min_iterations;
  int max_iterations;
};

template <typename T>
void measure(const Variant<T>& variant, const Limits& limits) {
  Buffers<T> buffers{std::vector<T>(variant.in_place ? 0 : variant.input_count),
                     std::vector<T>(variant.output_count)};
  fill(variant, &buffers, 0);
  time_once(variant, &buffers);
  const double estimate = slowest(time_once(variant, &buffers));
  const int iterations = static_cast<int>(std::clamp<double>(
      limits.seconds / std::max(estimate, 1e-9), limits.min_iterations, limits.max_iterations));

  // The slowest rank is found after the loop, so that nothing but the barrier stands between calls.
  std::vector<double> seconds(iterations);
  for (double& iteration : seconds) iteration = time_once(variant, &buffers);
  std::vector<double> maxima(iterations);
  MPI_Reduce(seconds.data(), maxima.data(), iterations, MPI_DOUBLE, MPI_MAX, kRoot, MPI_COMM_WORLD);

  const int seed = 1;
  fill(variant, &buffers, seed);
  variant.run(buffers);
  int64_t wrong = 0;
  for (size_t i = 0; i < buffers.output.size(); ++i) {
    wrong += buffers.output[i] != static_cast<T>(variant.expected(static_cast<int64_t>(i), seed));
  }
  int64_t all_wrong = 0;
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_INT64_T, MPI_SUM, kRoot, MPI_COMM_WORLD);

  if (g_rank != kRoot) return;
  std::printf("{\"variant\": \"%s\", \"wrong\": %lld, \"seconds\": [", variant.name.c_str(),
              static_cast<long long>(all_wrong));
  for (int i = 0; i < iterations; ++i) std::printf("%s%.9f", i ? ", " : "", maxima[i]);
  std::printf("]}\n");
}

template <typename T>
int run(const std::string& operation, int count, MPI_Datatype type, const Limits& limits) {
  const auto variants = variants_of<T>(operation, count, type);
  for (const auto& variant : variants) measure(variant, limits);
  return variants.empty() ? 2 : 0;
}

int run_dtype(const std::string& dtype, const std::string& operation, int count,
              const Limits& limits) {
  if (dtype == "float32") return run<float>(operation, count, MPI_FLOAT, limits);
  if (dtype == "float64") return run<double>(operation, count, MPI_DOUBLE, limits);
  if (dtype == "int32") return run<int32_t>(operation, count, MPI_INT32_T, limits);
  if (dtype == "int64") return run<int64_t>(operation, count, MPI_INT64_T, limits);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &g_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &g_num_ranks);
  int status = 2;
  if (argc == 7) {
    const Limits limits{std::atof(argv[4]), std::atoi(argv[5]), std::atoi(argv[6])};
    status = run_dtype(argv[3], argv[1], std::atoi(argv[2]), limits);
  }
  MPI_Finalize();
  return status;
}
