// Starts N ranks on this host, as processes or as threads of this process. Prints three times, all
// counted from before the first rank is created: until all ranks have their communicator, until all
// have the result of a first all-gather, and until all have ended.
//
//   start_many [ranks = 256] [id | environment | threads] [bytes a rank = 64]
#include <fsccl/fsccl.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstring>
#include <thread>

#include "multi/processes.h"

namespace {

using fsccl::testing::Child;
using fsccl::testing::Processes;
using fsccl::testing::Variables;

constexpr int64_t kTimeoutMs = 60'000;

struct Settings {
  int ranks = 256;
  std::string kind = "id";
  size_t bytes = 64;
};

// Moments on a clock that all processes share, in ns.
struct Moments {
  int64_t communicator = 0, gathered = 0;
  bool good = false;
};

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

unsigned char byte_of(size_t rank) { return static_cast<unsigned char>(rank * 7 + rank / 256); }

bool done(fsccl_status_t status) {
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  if (status != FSCCL_OK && fsccl_last_error(&error) == FSCCL_OK) std::printf("%s\n", error.text);
  return status == FSCCL_OK;
}

// Runs one rank; without an id it starts from the environment.
Moments run_rank(const fsccl_unique_id_t* id, int rank, int ranks, size_t bytes) {
  Moments moments;
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  config.unique_id = id;
  config.rank = id ? rank : -1;
  config.ranks = id ? ranks : 0;
  config.timeout_ms = kTimeoutMs;
  fsccl_comm_t comm = nullptr;
  if (!done(fsccl_comm_create(&config, &comm))) return moments;
  moments.communicator = now_ns();
  const std::vector<unsigned char> mine(bytes, byte_of(static_cast<size_t>(rank)));
  std::vector<unsigned char> all(bytes * static_cast<size_t>(ranks));
  if (!done(fsccl_all_gather(mine.data(), all.data(), bytes, FSCCL_UINT8, comm, nullptr, nullptr)))
    return moments;
  moments.gathered = now_ns();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == byte_of(i / bytes)) continue;
    std::printf("rank %d got a wrong byte of rank %zu\n", rank, i / bytes);
    return moments;
  }
  moments.good = done(fsccl_comm_destroy(comm));
  return moments;
}

int run_child(const Child& child) {
  fsccl_unique_id_t id;
  const char* const hex = std::getenv("START_MANY_ID");
  for (size_t i = 0; hex && i < sizeof(id.bytes); ++i) {
    unsigned value = 0;
    if (std::sscanf(hex + 2 * i, "%2x", &value) != 1) return 3;
    id.bytes[i] = static_cast<unsigned char>(value);
  }
  const Moments moments = run_rank(hex ? &id : nullptr, child.rank, child.ranks,
                                   static_cast<size_t>(std::atoi(std::getenv("START_MANY_BYTES"))));
  std::printf("%" PRId64 " %" PRId64 "\n", moments.communicator, moments.gathered);
  return moments.good ? 0 : 1;
}

std::string hexadecimal(const fsccl_unique_id_t& id) {
  std::string text;
  char pair[3];
  for (const unsigned char byte : id.bytes) {
    std::snprintf(pair, sizeof(pair), "%02x", byte);
    text += pair;
  }
  return text;
}

bool run_processes(const Settings& settings, const fsccl_unique_id_t& id,
                   std::vector<Moments>* moments, int64_t* created) {
  Processes processes;
  for (int rank = 0; rank < settings.ranks; ++rank) {
    Variables variables = fsccl::testing::job(rank, settings.ranks, 20000 + getpid() % 20000);
    if (settings.kind == "id") variables = {{"START_MANY_ID", hexadecimal(id)}};
    variables.emplace_back("START_MANY_BYTES", std::to_string(settings.bytes));
    processes.start("rank", rank, settings.ranks, variables);
  }
  *created = now_ns();
  const bool good = processes.finish(kTimeoutMs);
  if (!good) std::printf("%s", processes.report().c_str());
  for (int rank = 0; rank < settings.ranks && good; ++rank) {
    Moments& one = (*moments)[static_cast<size_t>(rank)];
    one.good = std::sscanf(processes.output(rank).c_str(), "%" SCNd64 " %" SCNd64,
                           &one.communicator, &one.gathered) == 2;
  }
  return good;
}

void run_threads(const Settings& settings, const fsccl_unique_id_t& id,
                 std::vector<Moments>* moments, int64_t* created) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < settings.ranks; ++rank)
    threads.emplace_back([&, rank] {
      (*moments)[static_cast<size_t>(rank)] = run_rank(&id, rank, settings.ranks, settings.bytes);
    });
  *created = now_ns();
  for (std::thread& thread : threads) thread.join();
}

// Raises the limit of files: each rank takes some descriptors, and threads share one limit.
void raise_limit_of_files() {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

double cpu_seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = fsccl::testing::run_role(argc, argv, {{"rank", run_child}})) return *code;
  Settings settings;
  if (argc > 1) settings.ranks = std::atoi(argv[1]);
  if (argc > 2) settings.kind = argv[2];
  if (argc > 3) settings.bytes = static_cast<size_t>(std::atoi(argv[3]));
  const bool threads = settings.kind == "threads";
  if (settings.ranks < 1 || settings.bytes < 1 ||
      (!threads && settings.kind != "id" && settings.kind != "environment")) {
    std::fprintf(
        stderr,
        "usage: start_many [ranks = 256] [id | environment | threads] [bytes a rank = 64]\n");
    return 2;
  }
  raise_limit_of_files();
  std::vector<Moments> moments(static_cast<size_t>(settings.ranks));
  fsccl_unique_id_t id = {};
  const int64_t begin = now_ns();
  int64_t created = 0;
  if (settings.kind != "environment" && !done(fsccl_unique_id_create(&id))) return 1;
  if (threads)
    run_threads(settings, id, &moments, &created);
  else
    run_processes(settings, id, &moments, &created);
  const int64_t end = now_ns();
  rusage used = {};
  getrusage(threads ? RUSAGE_SELF : RUSAGE_CHILDREN, &used);
  const auto seconds = [&](int64_t ns) { return static_cast<double>(ns - begin) * 1e-9; };
  const auto last = [&](int64_t Moments::* moment) {
    int64_t ns = begin;
    for (const Moments& one : moments) ns = std::max(ns, one.*moment);
    return seconds(ns);
  };
  const bool good =
      std::all_of(moments.begin(), moments.end(), [](const Moments& one) { return one.good; });
  std::printf(
      "%d %s%s: created %.2f s, communicator %.2f s, gathered %.2f s, ended %.2f s; user %.2f s, "
      "system %.2f s; %ld MiB\n",
      settings.ranks, threads ? "ranks as threads" : "ranks as processes", good ? "" : " FAILED",
      seconds(created), last(&Moments::communicator), last(&Moments::gathered), seconds(end),
      cpu_seconds(used.ru_utime), cpu_seconds(used.ru_stime), used.ru_maxrss / 1024);
  return good ? 0 : 1;
}
