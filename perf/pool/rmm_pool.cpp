#include "perf/pool/rmm_pool.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>

#include "numbers.h"
#include "perf/pool/system_calls.h"
#include "perf/pool/timing.h"

namespace fsccl::perf {
namespace {

// A new pool, and the blocks of it that a trace holds.
class RmmBlocks {
 public:
  RmmBlocks(const rmm_peer& peer, const Trace& trace) : peer_(peer), blocks_(trace.keys) {
    peer_.open();
  }
  ~RmmBlocks() {
    for (Block& block : blocks_)
      if (block.at) peer_.give_back(block.at, block.bytes, block.stream);
  }
  RmmBlocks(const RmmBlocks&) = delete;
  RmmBlocks& operator=(const RmmBlocks&) = delete;

  bool apply(const StepEvent& event) {
    // RMM leaves it to the program to give a block back only when no other stream uses it.
    if (!event.moves_slot()) return true;
    Block& block = blocks_[event.key];
    if (event.takes()) {
      block = {peer_.take(event.bytes, event.stream), event.bytes, event.stream};
      return block.at != nullptr;
    }
    peer_.give_back(block.at, block.bytes, block.stream);
    block.at = nullptr;
    return true;
  }
  bool steps(const Trace& trace, size_t count) {
    for (size_t nth = 0; nth < count; ++nth)
      for (const StepEvent& event : trace.steps[nth % trace.steps.size()])
        if (!apply(event)) return false;
    return true;
  }

 private:
  struct Block {
    void* at = nullptr;
    uint64_t bytes = 0;
    uint32_t stream = 0;
  };
  const rmm_peer& peer_;
  std::vector<Block> blocks_;
};

}  // namespace

const rmm_peer* load_rmm(const std::string& library, std::string* error) {
  void* loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* peer = loaded ? dlsym(loaded, "fsccl_perf_rmm_peer") : nullptr;
  if (!peer) {
    *error = fmt::format("--rmm: {} (perf/pool/rmm/build.sh makes the library)", dlerror());
    return nullptr;
  }
  return reinterpret_cast<decltype(&fsccl_perf_rmm_peer)>(peer)();
}

ReplayRow replay_rmm(const rmm_peer& peer, const Trace& trace, const ReplayOptions& options) {
  ReplayRow row{.trace = trace.name, .allocator = "rmm", .how = "run", .live = trace.live_bytes};
  const size_t warm_up = whole_rounds(trace.steps.size(), 4),
               measured = static_cast<size_t>(options.steps);
  const auto failed = [&] {
    row.note = "failed";
    return row;
  };
  {
    RmmBlocks blocks(peer, trace);
    if (!blocks.steps(trace, warm_up)) return failed();
    const uint64_t growths = peer.growths(), waits = peer.waits(), bytes = peer.reserved();
    BatchTimes times;
    for (size_t nth = 0; nth < measured; ++nth)
      if (!times.run(trace.steps[nth % trace.steps.size()],
                     [&](const StepEvent& event) { return blocks.apply(event); }))
        return failed();
    row.reserved = peer.reserved();  // this is the most, because the pool gives nothing back
    row.variance = *row.reserved - bytes;
    row.growths = peer.growths() - growths;
    row.added_waits = peer.waits() - waits;
    row.p50_ns = percentile(times.samples_ns(), 0.5);
    row.p99_ns = percentile(times.samples_ns(), 0.99);
  }
  row.system_calls = count_system_calls([&](const CallCounter& counter) {
    RmmBlocks blocks(peer, trace);
    if (!blocks.steps(trace, warm_up)) return false;
    counter.begin();
    const bool good = blocks.steps(trace, measured);
    counter.end();
    return good;
  });
  row.note = "its pool, without a device: events cost nothing";
  return row;
}

}  // namespace fsccl::perf
