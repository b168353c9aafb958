// A collective as data. A Plan is what one rank does, as a list of steps over symbolic buffers; builders (one algorithm a file)
// make it by pure arithmetic from (shape, rank, ranks). The engine executes it, the verifier executes the plans of all ranks
// symbolically, and neither knows where a plan came from.
//
// Signals and ticks. Every rank has one line of signals that all its peers can read. A plan has `ticks` moments, numbered from 0,
// the same number on every rank. signal(t) says "I have reached moment t" and makes everything this rank wrote before visible to
// whoever waits for it; wait(peer, t) waits for that. Three rules, which the verifier checks:
//   1. Every rank signals tick 0 exactly once, before any later tick ("enter": this signal carries the operation's fingerprint
//      and says where this rank's buffers are), and waits for tick 0 of every peer before it completes. So a rank that has
//      completed an operation knows that every peer has left the one before it, and lines can be reused.
//   2. A peer's buffer is touched only after a wait on that peer, and a buffer that peers touch is given back (the plan ends) only
//      after a wait that covers their last touch, unless the buffer's reuse is guarded by release counters (`guarded`).
//   3. ticks <= kMaxTicks.
//
// Places. `Place` is bytes at `offset` in `buffer` as seen by `rank`. Buffers marked `shared` are one piece of memory that all
// ranks map (a host-shared slot): every rank's is the same bytes. Reading a place of another rank is a get, writing one is a put.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace fsccl {

inline constexpr int kMaxTicks = 8;
inline constexpr int kAllPeers = -1;
inline constexpr uint64_t kInlineBytes = 24;  // what a signal can carry itself

enum class StepKind : uint8_t {
  copy,    // dst = src, `count` elements of dtype `from`; one of the two may be a peer's place
  cast,    // likewise, converted from `from` to `to`; both are this rank's places or shared
  reduce,  // dst = fold over rank q = 0 .. ranks-1 of (src.buffer of rank q at src.offset); src.rank is ignored; operator, scale,
           //   accumulate and norm come with the operation (they do not change the plan)
  reduce_local,   // dst = fold over k = 0 .. ranks-1 of the block of `count` elements at src.offset + k * stride, all in one buffer
                  // of this rank
  signal,         // reach `tick`; with `count` > 0 carries count (<= kInlineBytes) bytes from src, which lies on this rank
  wait,           // until `peer` (or every peer) has reached `tick`; with count > 0 stores the carried bytes at dst, on this rank
  wait_released,  // until every rank of the operation has released what was in buffer dst.buffer before (release counters)
};

struct Place {
  uint32_t buffer = 0;
  int32_t rank = 0;
  uint64_t offset = 0;  // bytes
};

struct Step {
  StepKind kind{};
  fsccl_dtype_t from = FSCCL_UINT8;
  fsccl_dtype_t to = FSCCL_UINT8;
  uint16_t tick = 0;
  int32_t peer = kAllPeers;
  Place dst, src;
  uint64_t count = 0;   // elements (signal, wait: bytes)
  uint64_t stride = 0;  // reduce_local: bytes from one block to the next
};

enum class Role : uint8_t {
  input,    // read, never written, by anybody
  output,   // the result: written
  inout,    // both (broadcast, in-place forms)
  scratch,  // neither input nor result
};

struct Buffer {
  std::string name;  // for messages and `explain`
  Role role{};
  uint64_t bytes = 0;      // on this rank; 0: not present on this rank
  bool shared = false;     // one piece of memory for all ranks
  bool guarded = false;    // reuse after the plan is guarded by release counters
  bool published = false;  // peers touch it: its location travels with the enter signal (at most 2 such buffers that are not
                           // shared, symmetric or tabled)
  bool symmetric = false;  // a slot at the same arena offset on every rank: peers know where it is
  bool writable = false;   // the caller may write to it when the plan ends: peers are through with it by then, guarded or not
  bool tabled = false;     // peers touch it and know where it is: its location was exchanged when the unit was made
};

struct Plan {
  std::string name;  // the algorithm: "all_gather_direct"
  int rank = 0;
  int ranks = 0;
  int ticks = 0;
  std::vector<Buffer> buffers;
  std::vector<Step> steps;
};

// --- builders, one algorithm a file; `count` in elements, as in the public header. All but the in_place forms are also right when
// any of the ranks passes input and output that are the same memory as the public header allows (a copy from a place to itself is
// then skipped) ---

struct Shape {
  int rank = 0;
  int ranks = 1;
  uint64_t count = 0;
  fsccl_dtype_t dtype = FSCCL_UINT8;
  int root = 0;
  bool in_place = false;
};

// Payload rides in the signals: for count * size <= kInlineBytes. Buffers: 0 input (in place: absent), 1 output.
Plan all_gather_inline(const Shape&);
// Each rank pulls every peer's part from its buffer (rotated order). In place: the input is the rank's part of the output, which is
// published.
Plan all_gather_direct(const Shape&);
// Each rank folds its part of all inputs (for parts whose whole input fits the line, see reduce_scatter_inline).
Plan reduce_scatter_direct(const Shape&);
// ranks * count * size <= kInlineBytes: the whole input rides in the signal, through a scratch buffer per peer (buffer 2, ranks
// slots of kInlineBytes).
Plan reduce_scatter_inline(const Shape&);
// Reduce-scatter then all-gather, by parts cut at multiples of 64 bytes; the tail goes to the last rank that has one.
Plan all_reduce_direct(const Shape&);
Plan all_reduce_inline(const Shape&);  // count * size <= kInlineBytes
// The root publishes, every other rank pulls.
Plan broadcast_direct(const Shape&);
Plan broadcast_inline(const Shape&);
Plan barrier(int rank, int ranks);

}  // namespace fsccl
