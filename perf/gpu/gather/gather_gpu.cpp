// Measures a gather peer to peer between two ranks on one GPU. It takes turns with a copy that one
// process makes of as many bytes as both ranks receive, and with copies that both ranks make at
// once, each of as many bytes as it receives. The program prints a line of JSON with the medians of
// these times and their ratios. Then other processes gather some more, recorded by CUPTI, which
// takes longer. Each of these ranks prints how many kernels and copies it had and when the last
// copies ran, or why CUPTI recorded nothing. Without a GPU the program prints a line that begins
// with SKIP.
//
//   gather_gpu [--megabytes N] [--rounds N]
//
// The unit has 436 MB unless --megabytes says otherwise: about a layer of Llama 3 8B in bf16.
#include <fsccl/fsccl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "gpu/gpu.h"
#include "kernel_trace.h"
#include "multi/processes.h"

namespace {

using fsccl::testing::Gpu;
constexpr int kRanks = 2, kGathers = 8;  // kGathers between two looks at the clock
constexpr int kWarmUp = 2;               // untimed rounds, in which what is needed once is made
constexpr int64_t kColumns = 4096, kLimitMs = 240'000;
constexpr int kPort = 20370;

struct Setting {
  int64_t megabytes = 436, rounds = 15, traced = 0;
};

bool good(const char* what, fsccl_status_t status) {
  if (status >= 0) return true;
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&error);
  std::fprintf(stderr, "gather_gpu: %s: %s\n", what, error.text);
  return false;
}

double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Bench {
  const Gpu& gpu;
  fsccl_comm_t comm;
  fsccl_unit_t unit;
  void* stream;
  uint64_t bytes;  // bytes of the whole unit

  bool together() const { return good("barrier", fsccl_barrier(comm, nullptr, nullptr)); }

  // Measures the microseconds of one gather, until the last rank has ended. Shards and slot are
  // both in bf16, so that a gather only copies.
  bool gather(double* us) const {
    if (!gpu.wait(stream) || !together()) return false;
    const double begin = now_us();
    for (int i = 0; i < kGathers; i++) {
      if (!good("unshard", fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, stream, nullptr)) ||
          !good("reshard", fsccl_unit_reshard(unit, stream)) ||
          !good("mark", fsccl_unit_mark_changed(unit)))
        return false;
    }
    if (!gpu.wait(stream) || !together()) return false;
    *us = (now_us() - begin) / kGathers;
    return true;
  }

  // Copies the bytes that both ranks receive by rank 0 alone, while the other one waits.
  bool copy(int rank, char* to, const char* from, double* us) const {
    if (!together()) return false;
    const double begin = now_us();
    for (int i = 0; rank == 0 && i < kGathers; i++)
      for (int part = 0; part < kRanks; part++)
        if (!gpu.copy(to, from, bytes, stream)) return false;
    if (!gpu.wait(stream)) return false;
    *us = (now_us() - begin) / kGathers;
    return together();
  }

  // Measures how fast the GPU copies for two processes at once. Each rank copies as many bytes as
  // it receives, without signals between the ranks.
  bool copy_beside(char* to, const char* from, double* us) const {
    if (!together()) return false;
    const double begin = now_us();
    for (int i = 0; i < kGathers; i++)
      if (!gpu.copy(to, from, bytes, stream)) return false;
    if (!gpu.wait(stream) || !together()) return false;
    *us = (now_us() - begin) / kGathers;
    return true;
  }
};

int measure(const Bench& bench, int rank, int64_t rounds) {
  char* const to = static_cast<char*>(bench.gpu.allocate(bench.bytes));
  char* const from = static_cast<char*>(bench.gpu.allocate(bench.bytes));
  std::vector<double> gathers, copies, beside;
  for (int64_t round = 0; round < rounds + kWarmUp; round++) {
    double gather = 0, copy = 0, both = 0;
    if (!bench.gather(&gather) || !bench.copy(rank, to, from, &copy) ||
        !bench.copy_beside(to, from, &both))
      return 1;
    if (round < kWarmUp) continue;
    gathers.push_back(gather), copies.push_back(copy), beside.push_back(both);
  }
  const double gather = median(gathers), copy = median(copies), both = median(beside);
  if (rank == 0)
    std::printf(
        "{\"case\": \"gather_2_ranks_one_gpu\", \"bytes\": %llu, \"us\": %.1f, \"copy_us\": %.1f, "
        "\"ratio_to_copy\": %.3f, "
        "\"copies_of_both_us\": %.1f, \"ratio_to_copies_of_both\": %.3f}\n",
        static_cast<unsigned long long>(bench.bytes), gather, copy, copy / gather, both,
        both / gather);
  return 0;
}

int count(const Bench& bench, int rank, int64_t rounds) {
  fsccl::perf::Traced before, after;
  double us = 0;
  for (int64_t round = 0; round < rounds + kWarmUp; round++) {
    if (round == kWarmUp) before = fsccl::perf::traced();
    if (!bench.gather(&us)) return 1;
  }
  after = fsccl::perf::traced();
  const size_t copies = after.copies.size() - before.copies.size();
  std::printf(
      "{\"case\": \"gather_2_ranks_one_gpu, recorded\", \"rank\": %d, \"kernels\": %llu, "
      "\"copies\": %zu, \"last_copies_us\": [",
      rank, static_cast<unsigned long long>(after.kernels - before.kernels), copies);
  // Each of the last copies is printed with its begin, its end and its bytes: they show which
  // copies wait for others.
  const size_t shown = std::min<size_t>(copies, 4 * kRanks);
  for (size_t i = after.copies.size() - shown; i < after.copies.size(); i++) {
    const fsccl::perf::TracedCopy& copy = after.copies[i];
    std::printf("%s[%.1f, %.1f, %llu]", i + shown > after.copies.size() ? ", " : "",
                static_cast<double>(copy.begin_ns % 1'000'000'000) / 1e3,
                static_cast<double>(copy.end_ns % 1'000'000'000) / 1e3,
                static_cast<unsigned long long>(copy.bytes));
  }
  std::printf("]}\n");
  return 0;
}

int run(int rank, const Setting& setting) {
  std::string why;
  if (setting.traced && !fsccl::perf::trace_kernels(&why)) {
    if (rank == 0)
      std::printf("{\"kernels\": null, \"missing\": \"CUPTI\", \"why\": \"%s\"}\n", why.c_str());
    return 0;
  }
  const Gpu* gpu = Gpu::open(&why);
  if (!gpu) return rank == 0 ? std::printf("SKIP: %s\n", why.c_str()), 0 : 0;
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
  memory.memory = FSCCL_MEMORY_CUDA;
  fsccl_param_t param = FSCCL_PARAM_INIT;
  param.dims = 2,
  param.shape[0] = std::max<int64_t>(setting.megabytes * (1 << 20) / (2 * kColumns), kRanks);
  param.shape[1] = kColumns, param.dtype = FSCCL_BFLOAT16, param.flags = FSCCL_PARAM_FROZEN;
  config.marks_changes = 1;
  fsccl_unit_t unit = nullptr;
  if (!good("comm", fsccl_comm_create(nullptr, &config.shard_comm)) ||
      !good("pool", fsccl_pool_create(config.shard_comm, &memory, &config.pool)))
    return 1;
  const fsccl_status_t made = fsccl_unit_create(&config, &param, 1, &unit);
  if (made == FSCCL_ERR_NOT_AVAILABLE)
    return rank == 0 ? std::printf("SKIP: no units on this GPU\n"), 0 : 0;
  void* stream = gpu->make_stream();
  if (!good("unit", made)) return 1;
  const Bench bench{*gpu, config.shard_comm, unit, stream,
                    static_cast<uint64_t>(param.shape[0] * param.shape[1] * 2)};
  if (const int code = setting.traced ? count(bench, rank, setting.rounds)
                                      : measure(bench, rank, setting.rounds))
    return code;
  return good("unit", fsccl_unit_destroy(unit)) && good("pool", fsccl_pool_destroy(config.pool)) &&
                 good("comm", fsccl_comm_destroy(config.shard_comm))
             ? 0
             : 1;
}

// Runs both ranks as copies of this program with the setting in their environment.
bool run_both(const Setting& setting) {
  using namespace fsccl::testing;
  Processes processes;
  for (int i = 0; i < kRanks; i++) {
    Variables variables = job(i, kRanks, kPort);
    variables.insert(variables.end(), {{"GATHER_MEGABYTES", std::to_string(setting.megabytes)},
                                       {"GATHER_ROUNDS", std::to_string(setting.rounds)},
                                       {"GATHER_TRACED", std::to_string(setting.traced)}});
    processes.start("rank", i, kRanks, variables);
  }
  const bool ended = processes.finish(kLimitMs);
  if (ended)
    for (int i = 0; i < kRanks; i++) std::fputs(processes.output(i).c_str(), stdout);
  else
    std::fputs(processes.report().c_str(), stderr);
  std::fflush(stdout);
  return ended;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace fsccl::testing;
  const auto from_environment = [](const char* name, int64_t otherwise) {
    const char* text = std::getenv(name);
    return text ? std::atoll(text) : otherwise;
  };
  const auto rank = [&](const Child& child) {
    return run(child.rank,
               {from_environment("GATHER_MEGABYTES", 1), from_environment("GATHER_ROUNDS", 1),
                from_environment("GATHER_TRACED", 0)});
  };
  if (const auto code = run_role(argc, argv, {{"rank", rank}})) return *code;
  Setting setting;
  for (int i = 1; i < argc; i += 2) {
    int64_t* value = std::strcmp(argv[i], "--megabytes") == 0 ? &setting.megabytes
                     : std::strcmp(argv[i], "--rounds") == 0  ? &setting.rounds
                                                              : nullptr;
    if (!value || i + 1 == argc || (*value = std::atoll(argv[i + 1])) < 1) {
      std::fprintf(stderr, "usage: gather_gpu [--megabytes N] [--rounds N]\n");
      return 2;
    }
  }
  const Setting counted{setting.megabytes, std::min<int64_t>(setting.rounds, 3), 1};
  return run_both(setting) && run_both(counted) ? 0 : 1;
}
