// An operation in flight: a plan, what its symbolic buffers are bound to, the numbers that do not
// change the plan (scale, operator), and how far it has come. Operations live in a ring of their
// engine: submitting one allocates nothing.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/clock.h"
#include "base/futex.h"
#include "engine/arena_table.h"
#include "fsccl/transport.h"
#include "kernels/kernels.h"
#include "plan/fingerprint.h"
#include "plan/plan.h"

namespace fsccl {

// A number that only grows, and on which threads can sleep until it reaches a position. One thread
// at a time lets it grow. In a pool's control pages there is one for each rank: how far the rank
// has come in the history of collective memory events, up to which it uses no more what it gave
// back. An engine counts the operations that are complete in one, and gates wait for that.
struct alignas(64) ReleaseLine {
  uint64_t position = 0;
  uint32_t sleepers = 0;
  // Sees what its rank did before it got there.
  uint64_t reached() const {
    // This load pairs with the store in reach().
    return std::atomic_ref(const_cast<uint64_t&>(position)).load(std::memory_order_acquire);
  }
  // By one thread at a time.
  void reach(uint64_t to) {
    // This store pairs with the load in reached().
    std::atomic_ref(position).store(to, std::memory_order_release);
    futex_wake_sleepers(word(), &sleepers);
  }
  // The word to sleep on: the low half of the position, which comes first, because FSCCL runs on
  // little endian machines only. It is read by the kernel and by futex_load() alone.
  uint32_t* word() { return reinterpret_cast<uint32_t*>(&position); }
  void fill_word(fsccl_transport_word_t* to) const {
    auto* const line = const_cast<ReleaseLine*>(this);
    to->word = line->word();
    to->value = static_cast<uint32_t>(reached());
    to->sleepers = &line->sleepers;
    to->processor = -1;
  }
};
static_assert(std::endian::native == std::endian::little);

// A peer's buffer as seen from here.
struct Remote {
  std::byte* mapped = nullptr;  // its address in this process; else
  uint64_t address = 0;         // its address in the peer's process, to be read by the transport

  Remote plus(uint64_t offset) const {
    return {mapped ? mapped + offset : nullptr, address + offset};
  }
};

// The payload of the enter signal of a call that publishes buffers.
struct Published {
  uint64_t address[2];
  uint32_t arena[2];

  void set(uint32_t i, const Location& location) {
    address[i] = location.address;
    arena[i] = location.arena;
  }
  Location at(uint32_t i) const { return {address[i], arena[i]}; }
};
static_assert(sizeof(Published) == kInlineBytes);

// The memory that a symbolic buffer of the plan is bound to.
struct Binding {
  std::byte* base = nullptr;  // this rank's
  // symmetric and tabled buffers: each rank's; plus `table_offset`. Published ones: null, the
  // signals say.
  const Remote* table = nullptr;
  uint64_t table_offset = 0;
  Location location;  // published buffers: where peers find it
};

// memcpy of 1 .. kInlineBytes bytes; the sizes of one to three words without a call.
inline void copy_inline(void* to, const void* from, uint64_t bytes) {
  switch (bytes) {
    case 8:
      std::memcpy(to, from, 8);
      return;
    case 16:
      std::memcpy(to, from, 16);
      return;
    case 24:
      std::memcpy(to, from, 24);
      return;
    default:
      std::memcpy(to, from, std::min(bytes, kInlineBytes));
  }
}

// Hooks run in the driving thread. `complete` runs after the last step and says whether the
// operation is over; it may instead give it another plan. It may not fail but through
// Engine::fail_all.
struct Operation;
enum class Completion : uint8_t { over, again };

// The settings of an operation beside its plan and its buffers: they are reset as one for each
// operation.
struct OperationSettings {
  // Buffers of the plan whose locations travel with the enter signal, and the plan that runs
  // instead if some cannot be touched.
  uint32_t publishes = 0;
  std::array<uint32_t, 2> published{};
  const Plan* fallback = nullptr;
  // private memory that is only read counts as touchable: the system reads it
  bool reads = false;
  // foresight.h: every rank waits in either plan for the enter signals of all
  bool foresees = false;

  // reductions
  // per destination buffer (less one): where this rank's own contribution is, instead of in the
  // source buffer
  const void* const* own_sources = nullptr;
  fsccl_op_kind_t kind = FSCCL_OP_SUM;
  double premul = 1, scale = 1;
  int64_t divisor = 1;
  bool accumulate = false;
  bool want_norm = false;
  // The operations of this engine go on between two pieces of a reduction (sums_apart.h).
  class Engine* lets_pass = nullptr;
  bool dry_run = false;  // signals are real, nothing is moved or reduced
  Stores stores = Stores::cached;
  bool in_cache = false;                         // input and output together fit a core's own cache
  const ReleaseLine* const* releases = nullptr;  // wait_released: the line of each rank
  uint64_t released = 0;                         // wait_released: each line reaches this position
  // this rank's own release comes with an operation of another engine: it may lie ahead
  bool releases_elsewhere = false;

  Completion (*complete)(Operation&) = nullptr;
  void (*step_done)(Operation&, const Step&) = nullptr;  // after each reduce step; may be null
  // Carries out a code step: encodes to `slot`, or decodes from there. Returns the bytes that it
  // has encoded.
  uint64_t (*code)(Operation&, const Step&, std::byte* slot) = nullptr;
  void* owner = nullptr;

  // An operation that begins only when another one, of another engine, has got so far: when `gate`
  // has reached `gate_position`. Whoever waits for this operation drives `gate_engine` up to its
  // operation `gate_sequence` meanwhile.
  const ReleaseLine* gate = nullptr;
  uint64_t gate_position = 0;
  Engine* gate_engine = nullptr;
  uint64_t gate_sequence = 0;

  // The reduction of `count` elements of `ranks` sources that the step `of` makes.
  Reduce reduction(const Step& of, const void* const* sources, int ranks, void* dst,
                   uint64_t count) const {
    Reduce args{};
    args.sources = sources;
    args.n = ranks;
    args.from = of.from;
    args.dst = dst;
    args.to = of.to;
    args.count = count;
    args.op = kind;
    args.premul = premul;
    args.scale = scale;
    args.divisor = divisor;
    args.accumulate = accumulate;
    return args;
  }
};

// How far a plan has been carried out, and for which call. An operation has one, and so does a
// small call (small_call.h), which hands its cursor to an operation where it cannot go on by
// itself.
struct Cursor {
  const Plan* plan = nullptr;  // must outlive the call
  // The plan whose published buffers the enter signals of this call name; null where none do. It is
  // another plan than `plan` where the call was foreseen (foresight.h).
  const Plan* asks = nullptr;
  Fingerprint fingerprint;
  uint32_t tick = 0;             // the tick that is tick 0 of the plan's present round
  uint32_t step = 0, round = 0;  // that come next
  int32_t peer = 0;              // the next peer of a wait for all
  bool unreachable = false;      // a published buffer, of whatever rank, cannot be touched by all
};

struct Operation : OperationSettings, Cursor {
  static constexpr size_t kInlineBindings = 4;

  // one per buffer of the plan: inline_bindings, or owned by a unit
  const Binding* bindings = nullptr;
  bool begun = false;       // the driver has come to it
  int64_t deadline_ns = 0;  // 0: nobody has slept on it yet
  std::array<Binding, kInlineBindings> inline_bindings;
  Norm norm;
  uint64_t coded_bytes = 0;  // bytes that the last code step has encoded
  // things that live as long as the operation, such as its plan and data of the hooks
  std::shared_ptr<const void> state;
  std::array<uint64_t, 8> context{};  // the hooks' own

  // The same names as of a small call, for the runner.
  static constexpr bool has_slots = true;  // or may have
  const OperationSettings& how() const { return *this; }
  std::byte* own(uint32_t buffer) const { return bindings[buffer].base; }
  const Location& location(uint32_t i) const { return bindings[published[i]].location; }
};

}  // namespace fsccl
