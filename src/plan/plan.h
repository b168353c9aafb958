// A collective as data. A Plan is the work of one rank, as a list of steps over symbolic buffers.
// Builders (one algorithm a file) make it by pure arithmetic from shape, rank and number of ranks.
// The engine executes it, the verifier executes the plans of all ranks symbolically, and neither
// knows where a plan came from.
//
// Signals and ticks. Every rank has signal lines that all its peers can read. A plan has `ticks`
// moments, numbered from 0, the same number on every rank. signal(t) says "I have reached moment t"
// and makes everything that this rank wrote before visible to a rank that waits for it; wait(peer,
// t) waits for the signal. The verifier checks these rules:
//   1. Every rank signals tick 0 exactly once ("enter": this signal carries the operation's
//      fingerprint and says where this rank's buffers are), and then the later ticks in order. If
//      slots are mirrored, a rank may leave later ticks out. A rank waits for tick 0 of every peer
//      before the plan ends. If the plan is `completes_early`, the engine waits for it before
//      kTickWindow more ticks have passed. Lines and slots can therefore be reused
//      (engine/tick_window.h).
//   2. A peer's buffer is touched only after a wait on that peer. A buffer that peers touch is
//      given back (the plan ends) only after a wait that covers their last touch, unless the
//      buffer's reuse is guarded by release counters (`guarded`) or by the window of ticks (slots).
//   3. ticks <= kMaxTicks.
//
// Quiet. A rank that only receives, as in a broadcast, has nothing to tell but that it has entered,
// which only the window of ticks needs (rule 1), and for that one round in four is enough. So in a
// plan that is `quiet` (one tick a round) this signal is `optional`: it is its rank's first step,
// carries nothing, and no plan waits for it. The engine leaves it out of up to three rounds in a
// row, which are the same on all ranks (LastHeard), and sends it in the next. One rank, the root,
// always signals, so ranks that disagree about such a call find out.
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
// Relayed. Between hosts each peer that sees a signal costs a message. In a plan that is `relayed`
// (mirrored, one round) every signal is for one peer and every wait for one peer, and a tick may be
// signalled to several. Rule 1 then holds by hearsay: when its plan ends, a rank knows that every
// other rank has entered, from that rank itself or from a rank that knew. Fingerprints are compared
// at every wait.
//
// Pieces. The bytes that one step brings into a slot are taken out of it by steps that read just
// these bytes: pieces have checksums (engine/checksums.h).
//
// Coded. The bytes that a `code` step makes of words are known when it has made them. The verifier
// takes the step for a copy of a byte for each word, and a put behind it for one of all that the
// slot can hold. Such bytes carry sums of their own. A plan with code steps has one round.
//
// Rounds. A plan with `rounds` > 1 is run that many times, each time with ticks of its own. Its
// copies, reduces and puts then move `chunk` bytes a round: round k moves the elements [k, k + 1) *
// chunk / element size of each step's count, at places that advance by as much. Places in slots do
// not advance: every tick has a slot of its own.
//
// Native steps. NCCL, an exchange by UCX, or the host's collectives carry out the whole of a
// collective by themselves. That is one step here, `native`, and the plan says what it promises.
// All ranks come to their native steps in the same order, and the k-th of each is the same: the
// same way, kind and type, and what a rank sends to a peer is as long as what the peer receives
// from it. The step reads its rank's `sends` and writes its rank's `receives`; both are over when
// the step is. A rank's step may end as soon as the ranks that it receives from have come to
// theirs: it says nothing of any other rank. A native step that reduces says whether it takes the
// sum in the order of the ranks. A plan with native steps has no ticks: peers hear of it by these
// steps alone.
//
// Operands. An `Operand` is bytes at `offset` in `buffer` as seen by `rank`. Buffers marked
// `shared` are one piece of memory that all ranks map (a host-shared slot): every rank's bytes are
// the same bytes.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace fsccl {

inline constexpr int kMaxTicks = 4;
// The slots of so many ticks may be in use: that of tick t is free again at tick t + kTickWindow.
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
  // dst = src, `count` words, in a form that the operation's hook gives them, or takes them out of:
  // dst is a slot of this rank, from its begin on, or src is one of a peer. How many bytes of the
  // slot the form takes, at most the slot's, is known when the hook has run
  code,
  // reach `tick`; with `count` > 0 carries count (<= kInlineBytes) bytes from src, which lies on
  // this rank
  signal,
  // wait until `peer` (or every peer) has reached `tick`; with count > 0 store the carried bytes at
  // dst, on this rank
  wait,
  // wait until every rank of the operation has released what was in buffer dst.buffer before
  // (release counters)
  wait_released,
  // all have entered: go on if every published buffer can be touched; else all ranks go on with the
  // operation's other plan, which needs no peer's buffers
  choose,
  // the whole of a collective by other means: what it moves and promises is natives[tick] of the
  // plan
  native,
  // dst = dst / number of ranks, `count` elements of dtype `to` that a native step has summed
  divide,
};

// This names what carries out a native step.
enum class NativeAlgorithm : uint8_t {
  nccl,       // by NCCL
  exchanged,  // by UCX: parts are exchanged, and the call waits
  summed,     // the parts are exchanged, then one kernel of this library sums them in rank order
  staged,     // through pinned host memory and the host's collectives; the call waits
};
// Their names in rules (select/rules.h).
inline constexpr std::array<std::string_view, 4> kNativeNames{"nccl", "ucx", "summed", "staged"};

// This is what a native step moves and promises.
struct Native {
  // Elements at `offset` bytes in the input (sends) or the output (receives), for or from `peer`.
  struct Part {
    int32_t peer = 0;
    uint64_t offset = 0, count = 0;
  };
  NativeAlgorithm by{};
  // The parts that come from all ranks are reduced to one: the receives have the same place. Else
  // each part is received as it was sent.
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
  uint16_t tick = 0;         // signal, wait; native: the number of what it moves
  int32_t peer = kAllPeers;  // wait and put: the peer; signal: the receiver
  Operand dst, src;
  uint64_t count = 0;     // elements (signal, wait: bytes)
  uint64_t stride = 0;    // reduce_local: bytes from one block to the next
  Operand own;            // reduce: where this rank's own contribution is
  bool to_all = false;    // reduce: dst on every rank
  bool optional = false;  // signal: of a quiet plan
  // put: of as many bytes as the last code step took, `count` at most
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
  // reuse after the plan is guarded by release counters, and waited for before it is written,
  // unless it is inout: then it was, by who wrote what is there
  bool guarded = false;
  // peers touch it: its location travels with the enter signal (at most 2 such buffers that are not
  // shared, symmetric or address_exchanged)
  bool address_in_signal = false;
  bool symmetric = false;  // a slot at the same arena offset on every rank: peers know where it is
  // the caller may write to it when the plan ends: peers are through with it by then, guarded or
  // not
  bool writable = false;
  // peers touch it and know where it is: its location was exchanged when the unit was made
  bool address_exchanged = false;
  // the slot, on each rank, of tick `slot_tick` of the round; peers know where it is
  bool slot = false;
  uint16_t slot_tick = 0;
  // published: its size on each rank where that differs; empty: `bytes` everywhere
  std::vector<uint64_t> peer_bytes;
};

struct Plan {
  std::string name;  // the algorithm: "all_gather_direct"
  int rank = 0;
  int ranks = 0;
  int ticks = 0;  // ticks of a round
  uint32_t rounds = 1;
  // bytes of the slot of each tick, a multiple of 64; alike on all ranks
  std::array<uint64_t, kMaxTicks> slots{};
  // bytes that a step moves in a round, a multiple of 64; 0: all of them
  uint64_t chunk = 0;
  bool completes_early = false;  // this rank does not wait for every peer to enter
  bool mirrored = false;         // slots are seen by the ranks that they were put for
  bool relayed = false;          // signals are for one peer each
  // some ranks' signals may be optional; alike on all ranks
  bool quiet = false;
  std::vector<Buffer> buffers;
  std::vector<Step> steps;
  std::vector<Native> natives;  // by the number in a native step

  // Returns the bytes of the slot in which the operand lies; 0: it is in no slot.
  uint64_t slot_bytes(const Operand& operand) const {
    const Buffer& buffer = buffers[operand.buffer];
    return buffer.slot ? slots[buffer.slot_tick] : 0;
  }
};

// The tick of the last round that was not quiet, or of the first round. A round of kMaxTicks ticks
// waits until peers have entered some round of the last kTickWindow - kMaxTicks; their signals
// exist as long as no more than these rounds are quiet.
struct LastHeard {
  uint32_t tick = 0;
  bool quiet(const Plan& plan, uint32_t at) const {
    return plan.quiet &&
           at + static_cast<uint32_t>(plan.ticks) - tick <= uint32_t{kTickWindow - kMaxTicks};
  }
};

}  // namespace fsccl
