#include "collectives.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "numbers.h"
#include "report.h"
#include "verify.h"

namespace fsccl::perf {
namespace {

constexpr double kShortCallUs = 20;  // below: several calls a sample, so that the clock's own time does not count
constexpr double kShortSampleUs = 40;
constexpr uint64_t kMostCopiesBytes = uint64_t{32} << 20;  // of inputs that a sample consumes

class Buffer {
 public:
  Buffer(const Session& session, Memory memory, uint64_t bytes)
      : pool_(session.pool()), memory_(memory), bytes_(std::max<uint64_t>(bytes, 1)) {
    if (memory == Memory::kPool) {
      must(fsccl_pool_alloc(pool_, bytes_, nullptr, &data_), "fsccl_pool_alloc");
    } else {
      data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (data_ == MAP_FAILED) {
        fmt::print(stderr, "fsccl-perf: rank {}: no memory for a buffer of {} bytes: {}\n", session.rank(), bytes_,
                   strerror(errno));
        std::_Exit(1);
      }
    }
    memset(data_, 0xEE, bytes_);
  }
  ~Buffer() {
    if (memory_ == Memory::kPool)
      must(fsccl_pool_free(pool_, data_, nullptr), "fsccl_pool_free");
    else
      munmap(data_, bytes_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  char* at(uint64_t offset) const { return static_cast<char*>(data_) + offset; }

 private:
  fsccl_pool_t pool_;
  Memory memory_;
  uint64_t bytes_;
  void* data_ = nullptr;
};

// One row: a collective at one size in one kind of memory.
class Case {
 public:
  Case(const Session& session, const CollectivesOptions& options, Collective collective, Memory memory, bool in_place,
       uint64_t bytes)
      : session_(session), options_(options), collective_(collective), memory_(memory), in_place_(in_place) {
    const uint64_t element = fsccl_dtype_size(options.dtype), ranks = static_cast<uint64_t>(session.ranks());
    const bool sharded = collective == Collective::kAllGather || collective == Collective::kReduceScatter;
    count_ = collective == Collective::kBarrier ? 0 : bytes / element / (sharded ? ranks : 1);
    bytes_ = count_ * element * (sharded ? ranks : 1);
    part_ = count_ * element;
    input_bytes_ = collective == Collective::kAllGather ? part_ : bytes_;
    output_bytes_ = collective == Collective::kReduceScatter ? part_ : bytes_;
  }
  bool empty() const { return count_ == 0 && collective_ != Collective::kBarrier; }

  CollectiveRow run() {
    const int calls = choose_calls();
    allocate(consumes_input() ? calls : 1);
    std::vector<double> times;
    uint64_t wrong = 0;
    for (int i = -options_.warmup; i < options_.iterations; i++) {
      const uint32_t generation = static_cast<uint32_t>(++generation_);
      const double time = sample(calls, generation);
      if (i >= 0) times.push_back(time);
      if (i < 0 || i % options_.check_every == 0 || i + 1 == options_.iterations) wrong += check(generation);
    }
    times = session_.max_over_ranks(times);
    return row(times, calls, session_.sum_over_ranks(wrong));
  }

 private:
  bool reduces() const { return collective_ == Collective::kReduceScatter || collective_ == Collective::kAllReduce; }
  // In place, a reduction overwrites its input: each call of a sample then has a copy of its own.
  bool consumes_input() const { return in_place_ && reduces(); }
  uint64_t rank() const { return static_cast<uint64_t>(session_.rank()); }

  void allocate(int copies) {
    copies_ = static_cast<uint64_t>(copies);
    input_.reset();
    output_.reset();
    const bool only_output = in_place_ && collective_ == Collective::kAllGather;
    stride_ = (std::max(input_bytes_, output_bytes_) + 63) / 64 * 64;
    if (!only_output) input_.emplace(session_, memory_, copies_ > 1 ? stride_ * copies_ : input_bytes_);
    if (only_output || !in_place_) output_.emplace(session_, memory_, output_bytes_);
  }
  char* input(uint64_t copy) const {
    if (!input_) return output_->at(rank() * part_);  // all-gather in place
    return input_->at(copy * stride_);
  }
  char* output(uint64_t copy) const {
    if (output_) return output_->at(0);
    return input_->at(copy * stride_ + (collective_ == Collective::kReduceScatter ? rank() * part_ : 0));
  }

  void call(uint64_t copy) const {
    const fsccl_comm_t comm = session_.comm();
    const fsccl_dtype_t dtype = options_.dtype;
    switch (collective_) {
      case Collective::kAllGather:
        must(fsccl_all_gather(input(copy), output(copy), count_, dtype, comm, nullptr, nullptr), "fsccl_all_gather");
        break;
      case Collective::kReduceScatter:
        must(fsccl_reduce_scatter(input(copy), output(copy), count_, dtype, options_.op, comm, nullptr, nullptr),
             "fsccl_reduce_scatter");
        break;
      case Collective::kAllReduce:
        must(fsccl_all_reduce(input(copy), output(copy), count_, dtype, options_.op, comm, nullptr, nullptr), "fsccl_all_reduce");
        break;
      case Collective::kBroadcast:
        must(fsccl_broadcast(input(copy), count_, dtype, options_.root, comm, nullptr, nullptr), "fsccl_broadcast");
        break;
      case Collective::kBarrier:
        session_.barrier();
        break;
    }
  }

  // A stream for each copy; the generation changes with every sample.
  void prepare(uint32_t generation) const {
    if (collective_ == Collective::kBarrier) return;
    if (collective_ == Collective::kBroadcast && session_.rank() != options_.root) return;
    const uint64_t count = collective_ == Collective::kReduceScatter ? count_ * static_cast<uint64_t>(session_.ranks()) : count_;
    for (uint64_t copy = 0; copy < copies_; copy++)
      fill(input(copy), options_.dtype, count, 0,
           seeds_of(static_cast<uint32_t>(copy), generation, static_cast<uint32_t>(session_.rank())),
           reduces() ? options_.op.kind : static_cast<int32_t>(FSCCL_OP_SUM));
  }

  uint64_t check(uint32_t generation) const {
    const fsccl_dtype_t dtype = options_.dtype;
    const uint32_t ranks = static_cast<uint32_t>(session_.ranks());
    uint64_t wrong = 0;
    for (uint64_t copy = 0; copy < copies_; copy++) {
      const uint32_t stream = static_cast<uint32_t>(copy);
      if (reduces()) {
        const uint64_t first = collective_ == Collective::kReduceScatter ? rank() * count_ : 0;
        wrong += count_wrong_reduced(output(copy), dtype, dtype, count_, first, stream, generation, ranks, options_.op);
      } else if (collective_ == Collective::kBroadcast) {
        wrong +=
            count_wrong_copy(input(copy), dtype, count_, 0, seeds_of(stream, generation, static_cast<uint32_t>(options_.root)));
      } else if (collective_ == Collective::kAllGather) {
        for (uint32_t r = 0; r < ranks; r++)
          wrong += count_wrong_copy(output(copy) + r * part_, dtype, count_, 0, seeds_of(stream, generation, r));
      }
    }
    return wrong;
  }

  double sample(int calls, uint32_t generation) const {
    prepare(generation);
    session_.barrier();
    const double start = now_us();
    for (int i = 0; i < calls; i++) call(static_cast<uint64_t>(i) % copies_);
    return (now_us() - start) / calls;
  }

  // How many calls make a sample: the same on all ranks, because the slowest rank's time decides.
  int choose_calls() {
    if (options_.calls > 0 && !consumes_input()) return options_.calls;
    int calls = options_.calls;
    if (calls == 0) {
      allocate(1);
      double time = 0;
      for (int i = 0; i < 3; i++) time = sample(1, static_cast<uint32_t>(++generation_));
      time = session_.max_over_ranks(std::vector<double>{time})[0];
      calls = time > kShortCallUs ? 1 : std::min(100, static_cast<int>(std::ceil(kShortSampleUs / std::max(time, 0.2))));
    }
    if (consumes_input())
      calls = std::min(calls, static_cast<int>(std::max<uint64_t>(1, kMostCopiesBytes / std::max<uint64_t>(1, bytes_))));
    return calls;
  }

  CollectiveRow row(const std::vector<double>& times, int calls, uint64_t wrong) const {
    CollectiveRow row;
    row.collective = collective_name(collective_);
    row.dtype = collective_ == Collective::kBarrier ? "none" : dtype_name(options_.dtype);
    row.op = reduces() ? op_name(options_.op.kind) : "none";
    row.memory = memory_ == Memory::kPool ? "pool" : "caller";
    row.root = collective_ == Collective::kBroadcast ? options_.root : -1;
    row.bytes = bytes_;
    row.count = count_;
    row.ranks = session_.ranks();
    row.in_place = in_place_;
    row.iterations = options_.iterations;
    row.calls = calls;
    row.p10_us = percentile(times, 0.10);
    row.p50_us = percentile(times, 0.50);
    row.p99_us = percentile(times, 0.99);
    row.algbw = row.p50_us > 0 ? static_cast<double>(bytes_) / row.p50_us * 1e-3 : 0;  // bytes / us = MB/s
    row.busbw = row.algbw * bus_factor(collective_, session_.ranks());
    row.wrong = wrong;
    return row;
  }

  const Session& session_;
  const CollectivesOptions& options_;
  Collective collective_;
  Memory memory_;
  bool in_place_;
  uint64_t count_ = 0, bytes_ = 0, part_ = 0, input_bytes_ = 0, output_bytes_ = 0, stride_ = 0, copies_ = 1;
  std::optional<Buffer> input_, output_;
  int generation_ = 0;
};

}  // namespace

const char* collective_name(Collective collective) {
  switch (collective) {
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kBarrier:
      return "barrier";
  }
  return "unknown";
}

double bus_factor(Collective collective, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      return others;
    case Collective::kAllReduce:
      return 2 * others;
    case Collective::kBroadcast:
      return 1;
    case Collective::kBarrier:
      return 0;
  }
  return 0;
}

uint64_t run_collectives(const Session& session, const CollectivesOptions& options) {
  uint64_t wrong = 0;
  if (session.rank() == 0 && !options.json) print_collectives_head(session.ranks());
  for (Collective collective : options.collectives)
    for (Memory memory : options.memories)
      for (bool in_place : options.places) {
        if (collective == Collective::kBroadcast && in_place != options.places.front())
          continue;  // it has one form, which is in place
        if (collective == Collective::kBarrier && (in_place != options.places.front() || memory != options.memories.front()))
          continue;
        const std::vector<uint64_t> sizes = collective == Collective::kBarrier ? std::vector<uint64_t>{0} : options.sizes;
        for (uint64_t bytes : sizes) {
          Case measured(session, options, collective, memory, in_place || collective == Collective::kBroadcast, bytes);
          if (measured.empty()) {
            if (session.rank() == 0)
              fmt::print(stderr, "fsccl-perf: {} of {} bytes left out: less than one element for each rank\n",
                         collective_name(collective), bytes);
            continue;
          }
          const CollectiveRow row = measured.run();
          wrong += row.wrong;
          if (session.rank() == 0) options.json ? print_json(row) : print_row(row);
        }
      }
  if (session.rank() == 0 && !options.json) print_collectives_end(wrong);
  return wrong;
}

}  // namespace fsccl::perf
