// A Builder holds a plan under construction, and has a function for each kind of step. A plan of
// one rank gets no waits, and a move of no bytes gets no step.
#pragma once
#include <algorithm>
#include <string>
#include <utility>

#include "base/round_up.h"
#include "plan/plan.h"

namespace fsccl {

// Rounds up to whole cache lines.
inline uint64_t round_up_line(uint64_t bytes) { return round_up(bytes, 64); }
// Returns the bytes of a piece: `most`, or as many as a slot has room for. They are whole cache
// lines.
inline uint64_t piece_of(uint64_t room, uint64_t most) {
  return std::min(room / 64 * 64, std::max<uint64_t>(64, round_up_line(most)));
}

// Returns the number of pieces of a slot that has a piece for each of its readers. With two ranks a
// slot has one reader.
inline uint64_t pieces_for_readers(int ranks) {
  return ranks <= 2 ? 1 : static_cast<uint64_t>(ranks);
}
// Returns where the piece of this reader begins, in a slot of so many pieces of `chunk` bytes.
inline uint64_t place_of_piece(uint64_t pieces, uint64_t chunk, int reader) {
  return pieces == 1 ? 0 : chunk * static_cast<uint64_t>(reader);
}

// The elements that the slot of one of `ticks` ticks moves. All portions are whole cache lines,
// except that the last one ends with the elements.
struct Portion {
  uint64_t begin, count;
};
inline Portion portion_of(uint64_t count, int tick, int ticks, uint64_t size) {
  const uint64_t line = 64 / size, lines = (count + line - 1) / line;
  const uint64_t each =
      (lines + static_cast<uint64_t>(ticks) - 1) / static_cast<uint64_t>(ticks) * line;
  const uint64_t begin = std::min(count, each * static_cast<uint64_t>(tick));
  return {begin, std::min(each, count - begin)};
}

class Builder {
 public:
  Builder(std::string name, int rank, int ranks, int ticks) {
    plan_.name = std::move(name);
    plan_.rank = rank;
    plan_.ranks = ranks;
    plan_.ticks = ticks;
  }

  // Buffers are numbered in the order of these calls. The returned one may be changed until the
  // next call.
  Buffer& buffer(std::string name, Role role, uint64_t bytes) {
    plan_.buffers.push_back({});
    Buffer& made = plan_.buffers.back();
    made.name = std::move(name);
    made.role = role;
    made.bytes = bytes;
    return made;
  }
  // Adds a buffer that peers touch, if there are peers. Its address travels in the enter signal.
  Buffer& peer_buffer(std::string name, Role role, uint64_t bytes) {
    Buffer& made = buffer(std::move(name), role, bytes);
    made.address_in_signal = plan_.ranks > 1;
    return made;
  }
  // Adds the slot of a tick.
  Buffer& slot(std::string name, uint64_t bytes, int tick) {
    Buffer& made = buffer(std::move(name), Role::scratch, bytes);
    made.slot = true;
    made.slot_tick = static_cast<uint16_t>(tick);
    plan_.slots[static_cast<size_t>(tick)] = round_up_line(bytes);
    return made;
  }

  Buffer& first_buffer() { return plan_.buffers.front(); }
  // The plan is run in rounds of `chunk` bytes until `bytes` have been moved.
  void in_rounds(uint64_t chunk, uint64_t bytes) {
    if (bytes <= chunk) return;
    plan_.chunk = chunk;
    plan_.rounds = static_cast<uint32_t>((bytes + chunk - 1) / chunk);
  }
  void completes_early() { plan_.completes_early = true; }
  void quiet() { plan_.quiet = plan_.ranks > 1; }
  void two_way() { plan_.two_way = plan_.ranks > 1; }
  void mirrored(bool mirrored) { plan_.mirrored = mirrored; }
  void relayed() { plan_.mirrored = plan_.relayed = true; }

  Operand mine(uint32_t buffer, uint64_t offset) const { return {buffer, plan_.rank, offset}; }
  static Operand at(int rank, uint32_t buffer, uint64_t offset) { return {buffer, rank, offset}; }
  // Returns the i-th peer in rotated order, i = 1 .. ranks-1. In this order ranks that run in step
  // read from different peers.
  int peer(int i) const { return (plan_.rank + i) % plan_.ranks; }
  int rank() const { return plan_.rank; }
  int ranks() const { return plan_.ranks; }

  void signal(int tick) { add(StepKind::signal).tick = static_cast<uint16_t>(tick); }
  void signal(int tick, Operand src, uint64_t bytes) {
    Step& step = add(StepKind::signal);
    step.tick = static_cast<uint16_t>(tick);
    step.src = src;
    step.count = bytes;
  }
  // The enter signal of a rank that only receives. A quiet plan may elide it.
  void enter_to_receive() {
    signal(0);
    plan_.steps.back().optional = plan_.quiet;
  }
  void signal_to(int peer, int tick) {
    signal(tick);
    plan_.steps.back().peer = peer;
  }
  void wait(int peer, int tick) { wait(peer, tick, {}, 0); }
  void wait(int peer, int tick, Operand dst, uint64_t bytes) {
    if (plan_.ranks == 1) return;
    Step& step = add(StepKind::wait);
    step.peer = peer;
    step.tick = static_cast<uint16_t>(tick);
    step.dst = dst;
    step.count = bytes;
  }
  void wait_all(int tick) { wait(kAllPeers, tick); }
  // This step comes after a wait for all ranks to enter.
  void choose() {
    if (plan_.ranks > 1) add(StepKind::choose);
  }
  void wait_released(uint32_t buffer) { add(StepKind::wait_released).dst = mine(buffer, 0); }
  void copy(Operand dst, Operand src, uint64_t count, fsccl_dtype_t dtype) {
    move(StepKind::copy, dst, dtype, src, dtype, count);
  }
  void put(int peer, Operand slot, Operand src, uint64_t count, fsccl_dtype_t dtype) {
    if (count == 0) return;
    move(StepKind::put, slot, dtype, src, dtype, count);
    plan_.steps.back().peer = peer;
  }
  // The operation's hook compresses words into the slot, or decompresses them from it.
  void code(Operand dst, Operand src, uint64_t words) {
    move(StepKind::code, dst, FSCCL_UINT8, src, FSCCL_UINT8, words);
  }
  // Puts the bytes that the last code step made in the slot, at most `most`.
  void put_coded(int peer, Operand slot, uint64_t most) {
    if (most == 0) return;
    put(peer, slot, slot, most, FSCCL_UINT8);
    plan_.steps.back().coded = true;
  }
  // Brings elements to the operand `slot` of this rank's slot, where `peer` reads them. If slots
  // are not mirrored, every other peer can read them there as well.
  void fill(int peer, Operand slot, Operand src, uint64_t count, fsccl_dtype_t dtype) {
    if (plan_.mirrored)
      put(peer, slot, src, count, dtype);
    else
      copy(slot, src, count, dtype);
  }
  void cast(Operand dst, fsccl_dtype_t to, Operand src, fsccl_dtype_t from, uint64_t count) {
    move(from == to ? StepKind::copy : StepKind::cast, dst, to, src, from, count);
  }
  // Source q is src.buffer of rank q at src.offset. The second form has this rank's own source at
  // `own` instead.
  void reduce(Operand dst, fsccl_dtype_t to, Operand src, fsccl_dtype_t from, uint64_t count) {
    reduce(dst, to, src, from, count, mine(src.buffer, src.offset));
  }
  void reduce(Operand dst, fsccl_dtype_t to, Operand src, fsccl_dtype_t from, uint64_t count,
              Operand own) {
    if (count == 0) return;
    move(StepKind::reduce, dst, to, src, from, count);
    plan_.steps.back().own = own;
  }
  void reduce_local(Operand dst, Operand src, uint64_t count, fsccl_dtype_t dtype,
                    uint64_t stride) {
    if (count == 0) return;
    move(StepKind::reduce_local, dst, dtype, src, dtype, count);
    plan_.steps.back().stride = stride;
  }
  // Adds a whole collective that something else carries out, from the input buffer to the output.
  void native(Native what, uint32_t input, uint32_t output, fsccl_dtype_t dtype) {
    Step& step = add(StepKind::native);
    step.tick = static_cast<uint16_t>(plan_.natives.size());
    step.from = step.to = dtype;
    step.src = mine(input, 0);
    step.dst = mine(output, 0);
    plan_.natives.push_back(std::move(what));
  }
  void divide(Operand dst, uint64_t count, fsccl_dtype_t dtype) {
    move(StepKind::divide, dst, dtype, dst, dtype, count);
  }

  // Returns the plan of an operation that moves nothing: it is only a barrier.
  Plan barrier_only() {
    plan_.ticks = 1;
    signal(0);
    wait_all(0);
    return take();
  }
  Plan take() { return std::move(plan_); }
  Step* last() { return plan_.steps.empty() ? nullptr : &plan_.steps.back(); }

 private:
  Step& add(StepKind kind) {
    plan_.steps.push_back({});
    plan_.steps.back().kind = kind;
    return plan_.steps.back();
  }
  void move(StepKind kind, Operand dst, fsccl_dtype_t to, Operand src, fsccl_dtype_t from,
            uint64_t count) {
    if (count == 0) return;
    Step& step = add(kind);
    step.from = from;
    step.to = to;
    step.dst = dst;
    step.src = src;
    step.count = count;
  }

  Plan plan_;
};

}  // namespace fsccl
