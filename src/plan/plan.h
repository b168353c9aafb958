// A collective as data. A Plan is the work of one rank, as a list of steps over symbolic buffers.
// Builders (one algorithm a file) make it by pure arithmetic from shape, rank and number of ranks.
// The engine executes it, the verifier executes the plans of all ranks symbolically, and neither
// knows where a plan came from.
//
// Signals and ticks. Every rank has signal lines that all its peers can read. A plan has `ticks`
// synchronization points, which are called ticks. Ticks are numbered from 0, and all ranks have the
// same number of them. The step signal(t) says that this rank has reached tick t. It makes
// everything that the rank wrote before visible to each rank that waits for the signal. The step
// wait(peer, t) waits for the signal of `peer`. The verifier checks these rules:
//   1. Every rank signals tick 0 exactly once, and then the later ticks in order. The signal of
//      tick 0 is the enter signal: it carries the operation's fingerprint and says where this
//      rank's buffers are. If slots are mirrored, a rank may leave later ticks out. A rank waits
//      for tick 0 of every peer before the plan ends. If the plan completes early
//      (`completes_early`), the engine waits for the missing enter signals before kTickWindow more
//      ticks have passed. Lines and slots can therefore be reused (engine/tick_window.h).
//   2. A peer's buffer is touched only after a wait on that peer. A buffer that peers touch is
//      given back (the plan ends) only after a wait that covers their last touch. There are two
//      exceptions: the reuse of a `guarded` buffer waits until every rank has released it
//      (pool/host/release_ledger.h), and the reuse of a slot waits for the window of ticks.
//   3. ticks <= kMaxTicks.
//
// Elided enter signals. A rank that only receives, as in a broadcast, signals only that it has
// entered. Only the window of ticks needs this signal (rule 1), and the window needs it in one
// round of four. In a plan that is `quiet` (one tick a round) the signal is therefore `optional`:
// it is the first step of its rank, it carries no payload, and no plan waits for it. The engine
// elides the signal in up to three consecutive rounds, which are the same on all ranks (LastHeard),
// and sends it in the next round. The root always signals, so ranks that disagree about such a call
// find out.
//
// Mirrored slots. If ranks share no memory, each rank has a copy, a mirror, of every other rank's
// slots. In a plan that is `mirrored` a rank sees of a peer's slot only what that peer has `put`
// there for it, and its own slots are memory that nobody else sees. The verifier checks these rules
// too:
//   4. A put into the slot of tick t comes before its rank's signal(t). The bytes are there for
//      `peer` once `peer` itself has waited for this rank's tick t. It is not enough that `peer`
//      heard of the tick from a third rank.
//   5. The source of a put stays unchanged until the plan ends, or until this rank has waited for a
//      signal that `peer` gave when it had the bytes (rule 4).
//   6. A rank touches no memory of peers except slots. Mirrored or not, a rank writes to no slot
//      but its own.
//
// Relayed signals. Between hosts each peer that sees a signal costs a message. In a plan that is
// `relayed` (mirrored, one round) every signal is for one peer and every wait for one peer, and a
// rank may signal a tick to several peers. Rule 1 then holds transitively: when its plan ends, a
// rank knows that every other rank has entered, because that rank has told it or because a third
// rank that knew has told it. Fingerprints are compared at every wait.
//
// Pieces. The bytes that one step brings into a slot are taken out of it by steps that read just
// these bytes, because the checksums are of whole pieces (engine/checksums.h).
//
// Coded data. A `code` step compresses words, or decompresses them. The compressed size is known
// only at run time, when the step has run. The verifier therefore treats the step as a copy of one
// byte for each word, and a put behind it as a put of the whole slot. Compressed bytes carry
// checksums of their own. A plan with code steps has one round.
//
// Rounds. A plan with `rounds` > 1 is run that many times, each time with ticks of its own. Its
// copies, reduces and puts then move `chunk` bytes a round: round k moves the elements [k, k + 1) *
// chunk / element size of each step's count, and the offsets in buffers advance by as much. Offsets
// in slots do not advance, because every tick has a slot of its own.
//
// Native steps. NCCL, an exchange by UCX, or the host's collectives carry out the whole of a
// collective by themselves. Such a collective is one `native` step of a plan, and the plan says
// what the step promises. All ranks come to their native steps in the same order. The k-th native
// steps of all ranks match: they have the same algorithm, kind and type, and a rank sends as many
// elements to a peer as the peer receives from it. The step reads its rank's `sends` and writes its
// rank's `receives`; both accesses are over when the step ends. A rank's step may end as soon as
// the ranks that it receives from have come to theirs, so its end says nothing about other ranks. A
// native step that reduces says whether it sums in rank order. A plan with native steps has no
// ticks, because these steps alone synchronize the ranks.
//
// Operands. An `Operand` names the bytes at `offset` of a `buffer` of `rank`. Buffers marked
// `shared` are one piece of memory that all ranks map (a host-shared slot), so the operands of all
// ranks name the same bytes.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace fsccl {

inline constexpr int kMaxTicks = 4;
// The slots of this many ticks may be in use at once: the slot of tick t is free again at tick t +
// kTickWindow.
inline constexpr int kTickWindow = 8;
inline constexpr int kAllPeers = -1;
inline constexpr uint64_t kInlineBytes = 24;  // payload that a signal line can carry

enum class StepKind : uint8_t {
  copy,  // dst = src, `count` elements of dtype `from`; one of the two may be a peer's
  cast,  // copy that converts from `from` to `to`; both are of this rank, or shared
  // dst = reduction over rank q = 0 .. ranks-1 of (src.buffer of rank q at src.offset); src.rank is
  // ignored; operator, scale, accumulate and norm come with the operation (they do not change the
  // plan)
  reduce,
  // dst = reduction over k = 0 .. ranks-1 of the block of `count` elements at src.offset + k *
  // stride, all in one buffer of this rank
  reduce_local,
  // dst = src, `count` elements of dtype `from`: src is any operand of this rank, dst one in a slot
  // of this rank, as `peer` sees that slot (mirrored)
  put,
  // dst = src, `count` words, which the operation's hook compresses or decompresses. To compress,
  // dst is a slot of this rank, from its begin on; to decompress, src is a slot of a peer. The
  // compressed size, which is at most the slot's, is known when the hook has run
  code,
  // reach `tick`; with `count` > 0 carries count (<= kInlineBytes) bytes from src, which lies on
  // this rank
  signal,
  // wait until `peer` (or every peer) has reached `tick`; with count > 0 store the carried bytes at
  // dst, on this rank
  wait,
  // wait until every rank of the operation has released the former contents of buffer dst.buffer
  // (pool/host/release_ledger.h)
  wait_released,
  // all ranks have entered: go on if every buffer whose address the enter signals carry can be
  // touched; else all ranks go on with the operation's fallback plan, which needs no peer's buffers
  choose,
  // a whole collective by other means: natives[tick] of the plan says what it moves and promises
  native,
  // dst = dst / number of ranks, `count` elements of dtype `to` that a native step has summed
  divide,
};

// The algorithm of a native step.
enum class NativeAlgorithm : uint8_t {
  nccl,       // NCCL carries it out
  exchanged,  // UCX exchanges the parts, and the call waits
  summed,     // the parts are exchanged, then one kernel of this library sums them in rank order
  staged,     // through pinned host memory and the host's collectives; the call waits
};
// Their names in rules (select/rules.h).
inline constexpr std::array<std::string_view, 4> kNativeNames{"nccl", "ucx", "summed", "staged"};

// The elements that a native step moves, and what the step promises.
struct Native {
  // Elements that begin at byte `offset` of the input (sends) or the output (receives), and that go
  // to `peer` or come from it.
  struct Part {
    int32_t peer = 0;
    uint64_t offset = 0, count = 0;
  };
  NativeAlgorithm by{};
  // The parts that come from all ranks are reduced to one part: all receives have the same offset.
  // Else each part is received as it was sent.
  bool reduces = false;
  bool in_rank_order = false;  // reduces: the sum is taken in the order of the ranks
  bool averages = true;     // reduces: an average is one when the step ends; else `divide` makes it
  bool is_barrier = false;  // it ends when all ranks have come to it, also those that send nothing
  std::vector<Part> sends, receives;  // no part is empty; each peer once at most
};

struct Operand {
  uint32_t buffer = 0;
  int32_t rank = 0;
  uint64_t offset = 0;  // bytes
};

struct Step {
  StepKind kind{};
  fsccl_dtype_t from = FSCCL_UINT8;
  fsccl_dtype_t to = FSCCL_UINT8;
  uint16_t tick = 0;         // signal, wait; native: its index in Plan::natives
  int32_t peer = kAllPeers;  // wait and put: the peer; signal: the receiver
  Operand dst, src;
  uint64_t count = 0;     // elements (signal, wait: bytes)
  uint64_t stride = 0;    // reduce_local: bytes from one block to the next
  Operand own;            // reduce: where this rank's own contribution is
  bool to_all = false;    // reduce: the result goes to dst on every rank
  bool optional = false;  // signal: a quiet plan may elide it
  // put: moves as many bytes as the last code step has made, at most `count`
  bool coded = false;
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
  uint64_t bytes = 0;   // on this rank; 0: not present on this rank
  bool shared = false;  // one piece of memory for all ranks
  // Peers may still use the buffer after the plan has ended, because it is reused only after every
  // rank has released it. A plan that writes to it first waits for that (wait_released). An inout
  // buffer needs no wait: whoever wrote its present contents has waited.
  bool guarded = false;
  // Peers touch the buffer, and learn its address from the enter signal, which has room for two.
  // Buffers that are shared, symmetric or address_exchanged do not need it.
  bool address_in_signal = false;
  bool symmetric = false;  // a slot at the same arena offset on every rank: peers know where it is
  // The caller may write to the buffer when the plan ends: no peer uses it any more by then, even
  // if the buffer is guarded.
  bool writable = false;
  // Peers touch the buffer, and know its address from an exchange before the call.
  bool address_exchanged = false;
  // the slot, on each rank, of tick `slot_tick` of the round; peers know where it is
  bool slot = false;
  uint16_t slot_tick = 0;
  // address_in_signal: its size on each rank where that differs; empty: `bytes` everywhere
  std::vector<uint64_t> peer_bytes;
};

struct Plan {
  std::string name;  // names the algorithm: "all_gather_direct"
  int rank = 0;
  int ranks = 0;
  int ticks = 0;  // ticks of a round
  uint32_t rounds = 1;
  // bytes of the slot of each tick, a multiple of 64; alike on all ranks
  std::array<uint64_t, kMaxTicks> slots{};
  // bytes that a step moves in a round, a multiple of 64; 0: all of them
  uint64_t chunk = 0;
  bool completes_early = false;  // this rank's plan may end before every peer has entered
  bool mirrored = false;         // slots are seen by the ranks that they were put for
  bool relayed = false;          // each signal is for one peer
  bool quiet = false;            // some ranks' enter signals may be elided; alike on all ranks
  bool two_way = false;          // any rank may fill its slots for any other; alike on all ranks
  std::vector<Buffer> buffers;
  std::vector<Step> steps;
  std::vector<Native> natives;  // a native step has the index in its `tick`

  // Returns about how many bytes the plan takes beside its own object.
  uint64_t memory() const {
    return buffers.capacity() * sizeof(Buffer) + steps.capacity() * sizeof(Step);
  }
  // Returns the bytes of the slot in which the operand lies; 0: it is in no slot.
  uint64_t slot_bytes(const Operand& operand) const {
    const Buffer& buffer = buffers[operand.buffer];
    return buffer.slot ? slots[buffer.slot_tick] : 0;
  }
};

// The tick of the last round in which no signal was elided, or of the first round. A round of
// kMaxTicks ticks begins only after all peers were seen to enter one of the rounds of the last
// kTickWindow - kMaxTicks ticks. So the signals may be elided in no more than these rounds.
struct LastHeard {
  uint32_t tick = 0;
  bool quiet(const Plan& plan, uint32_t at) const {
    return plan.quiet &&
           at + static_cast<uint32_t>(plan.ticks) - tick <= uint32_t{kTickWindow - kMaxTicks};
  }
};

}  // namespace fsccl
