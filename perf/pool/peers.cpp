#include "perf/pool/peers.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "numbers.h"
#include "own_path.h"
#include "perf/pool/caching_policy.h"
#include "perf/pool/row.h"
#include "perf/pool/system_calls.h"
#include "perf/pool/timing.h"

namespace fsccl::perf {
namespace {

constexpr uint64_t kMostLive = uint64_t{128} << 20;  // bytes that peers may touch
constexpr size_t kPage = 4096;

// The blocks of a trace, allocated by malloc.
class Blocks {
 public:
  Blocks(const Trace& trace, bool touch) : blocks_(trace.keys, nullptr), touch_(touch) {
    divisor_ = std::max<uint64_t>((trace.live_bytes + kMostLive - 1) / kMostLive, 1);
  }
  ~Blocks() {
    for (char* block : blocks_) std::free(block);
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  bool apply(const StepEvent& event) {
    if (!event.moves_slot()) return true;  // a record or a wait concerns no block
    char*& block = blocks_.at(event.key);
    if (event.takes()) {
      const size_t bytes = std::max<size_t>(event.bytes / divisor_, 1);
      block = static_cast<char*>(std::malloc(bytes));
      if (!block) return false;
      if (touch_)
        for (size_t at = 0; at < bytes; at += kPage) const_cast<volatile char*>(block)[at] = 1;
    } else {
      std::free(block);
      block = nullptr;
    }
    return true;
  }
  bool steps(const Trace& trace, int count) {
    for (int nth = 0; nth < count; ++nth)
      for (const StepEvent& event : trace.steps[static_cast<size_t>(nth) % trace.steps.size()])
        if (!apply(event)) return false;
    return true;
  }
  uint64_t divisor() const { return divisor_; }

 private:
  std::vector<char*> blocks_;
  bool touch_;
  uint64_t divisor_ = 1;
};

uint64_t status_bytes(const char* name) {
  std::ifstream status("/proc/self/status");
  std::string word;
  uint64_t kib = 0;
  while (status >> word)
    if (word == name && status >> kib) return kib * 1024;
  return 0;
}

// Measures in a child the most memory of the process over some steps that touch every page, less
// the memory that it had before.
std::optional<uint64_t> most_memory(const Trace& trace) {
  void* page =
      mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return std::nullopt;
  const pid_t child = fork();
  if (child == 0) {
    std::ofstream("/proc/self/clear_refs") << "5";
    const uint64_t before = status_bytes("VmRSS:");
    Blocks blocks(trace, true);
    const bool good =
        blocks.steps(trace, static_cast<int>(std::max<size_t>(trace.steps.size(), 3)));
    const uint64_t most = status_bytes("VmHWM:");
    *static_cast<uint64_t*>(page) = most > before ? most - before : 0;
    _exit(good && before > 0 ? 0 : 1);
  }
  int status = 1;
  if (child > 0) waitpid(child, &status, 0);
  const uint64_t bytes = *static_cast<uint64_t*>(page);
  munmap(page, sizeof(uint64_t));
  return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? std::optional(bytes)
                                                                    : std::nullopt;
}

}  // namespace

const std::vector<Peer>& malloc_peers() {
  static const std::vector<Peer> peers = {{"glibc", nullptr, nullptr},
                                          {"jemalloc", "libjemalloc.so.2", "mallctl"},
                                          {"mimalloc", "libmimalloc.so.2", "mi_version"}};
  return peers;
}

ReplayRow replay_malloc(const Peer& peer, const Trace& trace, const ReplayOptions& options) {
  ReplayRow row{
      .trace = trace.name, .allocator = peer.name, .how = "run", .live = trace.live_bytes};
  if (peer.symbol && !dlsym(RTLD_DEFAULT, peer.symbol)) {
    row.note = fmt::format("not installed ({})", peer.library);
    return row;
  }
  uint64_t divisor = 1;
  {
    Blocks blocks(trace, false);
    divisor = blocks.divisor();
    BatchTimes times;
    for (int nth = 0; nth < options.steps + 2; ++nth) {
      if (nth == 2) times.clear();
      times.run(trace.steps[static_cast<size_t>(nth) % trace.steps.size()],
                [&](const StepEvent& event) { return blocks.apply(event); });
    }
    row.p50_ns = percentile(times.samples_ns(), 0.5);
    row.p99_ns = percentile(times.samples_ns(), 0.99);
  }
  row.system_calls = count_system_calls([&](const CallCounter& counter) {
    Blocks blocks(trace, false);
    if (!blocks.steps(trace, static_cast<int>(whole_rounds(trace.steps.size(), 4)))) return false;
    counter.begin();
    const bool good = blocks.steps(trace, options.steps);
    counter.end();
    return good;
  });
  if (const std::optional<uint64_t> most = most_memory(trace)) row.reserved = *most * divisor;
  if (divisor > 1) row.note = fmt::format("sizes / {}", divisor);
  return row;
}

ReplayRow run_peer(const Peer& peer, const std::string& file, const Trace& trace,
                   const ReplayOptions& options) {
  ReplayRow failed{
      .trace = trace.name, .allocator = peer.name, .how = "run", .live = trace.live_bytes};
  failed.note = "could not be started";
  int ends[2];
  if (pipe(ends) != 0) return failed;
  const std::string steps = std::to_string(options.steps);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    if (peer.library) setenv("LD_PRELOAD", peer.library, 1);
    for (const char* program : {own_path(), "/proc/self/exe"})
      execl(program, "fsccl-perf", "pool", "--peer", peer.name, "--steps", steps.c_str(),
            file.c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  std::string line;
  char buffer[4096];
  for (ssize_t got; child > 0 && (got = read(ends[0], buffer, sizeof buffer)) > 0;)
    line.append(buffer, static_cast<size_t>(got));
  close(ends[0]);
  int status = 1;
  if (child > 0) waitpid(child, &status, 0);
  return status == 0 ? row_of_json(line).value_or(failed) : failed;
}

std::vector<ReplayRow> replay_policies(const Trace& trace, const ReplayOptions& options) {
  std::vector<ReplayRow> rows;
  for (const bool expandable : {false, true}) {
    CachingPolicy policy(expandable);
    uint64_t before = 0;
    const int warm_up = static_cast<int>(std::max<size_t>(trace.steps.size(), 4));
    for (int nth = 0; nth < warm_up + options.steps; ++nth) {
      if (nth == warm_up) before = policy.upstream_calls();
      for (const StepEvent& event : trace.steps[static_cast<size_t>(nth) % trace.steps.size()])
        policy.apply(event);
    }
    rows.push_back({.trace = trace.name,
                    .allocator = expandable ? "torch-expand" : "torch-caching",
                    .how = "simulated",
                    .live = trace.live_bytes});
    rows.back().reserved = policy.reserved_bytes();
    rows.back().growths = policy.upstream_calls() - before;
    rows.back().note = "simulation of the policy";
  }
  return rows;
}

}  // namespace fsccl::perf
