// Runs the plans of all ranks together over symbolic memory, in one possible timing. Afterwards the
// log of accesses, and the order that signals and waits impose, decide whether another timing could
// give another result.
#pragma once
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "plan/happens_before.h"
#include "plan/plan.h"
#include "plan/symbolic_memory.h"
#include "plan/verify.h"

namespace fsccl {

class SymbolicRun {
 public:
  // The plans must fit each other, which verify() checks: there is one for each rank, in order, and
  // all have the same number of ticks and of buffers.
  SymbolicRun(const std::vector<Plan>& plans, const std::vector<Alias>& aliases);
  Status run();

  // The memory and the offset of an operand. A shared buffer is one memory, that of rank 0. An
  // aliased buffer is part of the memory of another one.
  struct Location {
    size_t memory = 0;
    uint64_t offset = 0;
  };
  Location locate(const Operand& operand) const;
  const SymbolicMemory& memory(size_t index) const { return memories_[index]; }
  std::vector<MemoryAccess>& accesses(size_t index) { return accesses_[index]; }
  size_t memories() const { return memories_.size(); }
  const HappensBefore& order() const { return order_; }
  bool waited(int rank, int peer) const { return waited_[pair(rank, peer)]; }
  bool waited_enter(int rank, int peer) const { return waited_enter_[pair(rank, peer)]; }

 private:
  struct Payload {
    uint64_t bytes = 0;
    std::vector<SymbolicRange> ranges;  // relative to the first byte
  };

  // An access of a put. It is over when the peer has waited for the tick.
  struct PutInFlight {
    size_t memory, access;
    uint16_t tick;
  };

  size_t pair(int rank, int peer) const {
    return static_cast<size_t>(rank) * plans_.size() + static_cast<size_t>(peer);
  }
  Result<bool> advance(int rank);  // runs `rank` to its next unmet wait; returns if it made a step
  bool met(int rank, const Step& step) const;
  Status execute(int rank, uint32_t index, const Step& step);
  Status do_put(int rank, uint32_t index, const Step& step);
  Status do_move(int rank, uint32_t index, const Step& step);
  Status do_reduce(int rank, uint32_t index, const Step& step);
  Status do_signal(int rank, uint32_t index, const Step& step);
  Status do_wait(int rank, uint32_t index, const Step& step);
  // Native steps (symbolic_native.cpp).
  Result<bool> do_native(int rank, uint32_t index, const Step& step);
  Status begin_native(int rank, uint32_t index, const Step& step, const Native& native);
  Status check_received(int rank, const Step& step, const Native& native,
                        const Native::Part& part) const;
  Status receive_parts(int rank, uint32_t index, const Step& step, const Native& native);
  Status receive_sum(int rank, uint32_t index, const Step& step, const Native& native);
  Status do_divide(int rank, uint32_t index, const Step& step);
  void note(size_t memory, uint64_t begin, uint64_t bytes, bool write, const Moment& now) {
    accesses_[memory].push_back({begin, begin + bytes, write, now, now});
  }
  Status check_operand(int rank, const Operand& operand, uint64_t bytes, bool write);
  Status check_alias(const Operand& dst, uint64_t dst_bytes, const Operand& src, uint64_t src_bytes,
                     bool same_allowed) const;
  // Returns the ranges of the operand, relative to its first byte.
  Result<std::vector<SymbolicRange>> read(int rank, uint32_t index, const Operand& operand,
                                          uint64_t bytes);
  Status write(int rank, uint32_t index, const Operand& operand, uint64_t bytes,
               const SymbolicValue& value);
  Status blocked() const;

  const std::vector<Plan>& plans_;
  HappensBefore order_;
  std::vector<Location> locations_;       // locations of buffers, by (buffer, rank)
  std::vector<SymbolicMemory> memories_;  // their memory
  std::vector<std::vector<MemoryAccess>> accesses_;
  std::vector<uint32_t> next_;  // step, by rank
  // By (rank, peer): the rank has itself waited for some tick of the peer, or for tick 0.
  std::vector<bool> waited_, waited_enter_;
  std::vector<bool> released_;                  // by (rank, buffer)
  std::vector<Payload> payloads_;               // by (rank, tick)
  std::vector<std::vector<PutInFlight>> puts_;  // by (rank that put, peer)
  // The values that native steps have read, by (rank, receiving peer, number of the step). Their
  // places count from the first byte.
  std::map<std::tuple<int, int, uint16_t>, std::vector<SymbolicRange>> sent_;
};

// Checks that the native steps of all ranks fit each other.
Status check_natives(const std::vector<Plan>& plans);

// Returns a text like "all_gather_direct, rank 3, step 5 (wait for tick 0 of all): " and `why`.
std::string at_step(const Plan& plan, uint32_t step, const std::string& why);

}  // namespace fsccl
