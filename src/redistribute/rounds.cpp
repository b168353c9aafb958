#include "redistribute/rounds.h"

#include <algorithm>
#include <memory>
#include <new>

#include "comm/consensus.h"
#include "fsccl/redistribute.h"
#include "kernels/kernels.h"
#include "redistribute/claims.h"

namespace fsccl {
namespace {

constexpr uint64_t kUsualLimit = uint64_t{64} << 20;

// The bytes that go from one rank to another, in the order of their runs, and how far they are.
class Flow {
 public:
  explicit Flow(std::vector<Redistribution::Run> runs) : runs_(std::move(runs)) {
    for (const Redistribution::Run& run : runs_) left_ += run.bytes;
  }
  uint64_t left() const { return left_; }
  // Passes the next `bytes` of the flow: calls copy(run, offset in the run, bytes) for each part.
  template <class Copy>
  void pass(uint64_t bytes, Copy&& copy) {
    left_ -= bytes;
    while (bytes > 0) {
      const Redistribution::Run& run = runs_[next_];
      const uint64_t part = std::min(bytes, run.bytes - at_);
      copy(run, at_, part);
      bytes -= part;
      at_ += part;
      if (at_ == run.bytes) next_++, at_ = 0;
    }
  }

 private:
  std::vector<Redistribution::Run> runs_;
  uint64_t left_ = 0, at_ = 0;
  size_t next_ = 0;
};

// The sending or the receiving side of a round. Its memory holds the parts for all ranks, end to
// end.
struct Side {
  std::vector<Flow> flows;
  std::unique_ptr<std::byte[]> memory;
  std::vector<size_t> counts, displacements;

  uint64_t peers() const {
    return static_cast<uint64_t>(std::count_if(flows.begin(), flows.end(),
                                               [](const Flow& flow) { return flow.left() > 0; }));
  }
  bool allocate(uint64_t part) {
    uint64_t bytes = 0;
    for (const Flow& flow : flows) bytes += std::min(part, flow.left());
    if (bytes) memory.reset(new (std::nothrow) std::byte[bytes]);
    return bytes == 0 || memory;
  }
  void next(uint64_t part) {
    counts.clear();
    displacements.clear();
    size_t end = 0;
    for (const Flow& flow : flows) {
      displacements.push_back(end);
      counts.push_back(std::min(part, flow.left()));
      end += counts.back();
    }
  }
};

class Rounds {
 public:
  Rounds(Communicator& comm, const Redistribution& plan,
         const std::vector<fsccl_redistributed_t>& buffers, uint64_t limit_bytes)
      : comm_(comm),
        plan_(plan),
        buffers_(buffers),
        limit_bytes_(limit_bytes ? limit_bytes : kUsualLimit) {
    for (int rank = 0; rank < comm.size(); rank++) {
      const bool self = rank == comm.rank();
      out_.flows.emplace_back(self ? std::vector<Redistribution::Run>{}
                                   : plan.runs(comm.rank(), rank));
      in_.flows.emplace_back(self ? std::vector<Redistribution::Run>{}
                                  : plan.runs(rank, comm.rank()));
    }
    own_ = plan.runs(comm.rank(), comm.rank());
  }

  Status run() {
    FSCCL_TRY(agree());
    for (const Redistribution::Run& run : own_)
      copy_bytes(to(run), from(run), run.bytes, Stores::cached);
    for (uint64_t done = 0; done < rounds_.longest; done += rounds_.part) FSCCL_TRY(round());
    return success();
  }

 private:
  const std::byte* from(const Redistribution::Run& run) const {
    return static_cast<const std::byte*>(buffers_[run.buffer].from) + run.from;
  }
  std::byte* to(const Redistribution::Run& run) const {
    return static_cast<std::byte*>(buffers_[run.buffer].to) + run.to;
  }

  // Agrees with all ranks on the bytes that go to one rank in a round and on the number of rounds,
  // and makes sure that every rank has memory for a round.
  Status agree() {
    const uint64_t peers = std::max({out_.peers(), in_.peers(), uint64_t{1}});
    RedistributionTerms mine{
        std::max(limit_bytes_ / 2 / peers / kLeastPart * kLeastPart, kLeastPart)};
    for (const Flow& flow : out_.flows) mine.longest = std::max(mine.longest, flow.left());
    Status room = success();
    if (!out_.allocate(mine.part) || !in_.allocate(mine.part))
      room =
          fail(FSCCL_ERR_OUT_OF_MEMORY,
               "there is no memory for the exchange, of up to {} bytes: give a lower limit_bytes",
               limit_bytes_);
    FSCCL_TRY(all_ok(comm_, std::move(room), "take part in the exchange"));
    FSCCL_ASSIGN(const std::vector<RedistributionTerms> all, all_gather(comm_, mine));
    FSCCL_ASSIGN(rounds_, agreed_rounds(all, plan_));
    return success();
  }

  Status round() {
    out_.next(rounds_.part);
    in_.next(rounds_.part);
    for (size_t rank = 0; rank < out_.flows.size(); rank++) {
      std::byte* place = out_.memory.get() + out_.displacements[rank];
      out_.flows[rank].pass(out_.counts[rank],
                            [&](const Redistribution::Run& run, uint64_t at, uint64_t bytes) {
                              copy_bytes(place, from(run) + at, bytes, Stores::cached);
                              place += bytes;
                            });
    }
    CollectiveCall call;
    call.op = OpCode::all_to_all_v;
    call.input = out_.memory.get();
    call.output = in_.memory.get();
    call.counts = out_.counts.data();
    call.displacements = out_.displacements.data();
    call.recv_counts = in_.counts.data();
    call.recv_displacements = in_.displacements.data();
    fsccl_status_t state;
    FSCCL_TRY(comm_.run(call, true, &state));
    for (size_t rank = 0; rank < in_.flows.size(); rank++) {
      const std::byte* place = in_.memory.get() + in_.displacements[rank];
      in_.flows[rank].pass(in_.counts[rank],
                           [&](const Redistribution::Run& run, uint64_t at, uint64_t bytes) {
                             copy_bytes(to(run) + at, place, bytes, Stores::cached);
                             place += bytes;
                           });
    }
    return success();
  }

  Communicator& comm_;
  const Redistribution& plan_;
  const std::vector<fsccl_redistributed_t>& buffers_;
  const uint64_t limit_bytes_;
  Side out_, in_;
  std::vector<Redistribution::Run> own_;
  RedistributionRounds rounds_;
};

}  // namespace

Status move_in_rounds(Communicator& comm, const Redistribution& plan,
                      const std::vector<fsccl_redistributed_t>& buffers, uint64_t limit_bytes) {
  return Rounds(comm, plan, buffers, limit_bytes).run();
}

}  // namespace fsccl
