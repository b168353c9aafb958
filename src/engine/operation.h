// An operation in flight: its plan, the bindings of the plan's buffers, the settings that do not
// change the plan (scale, operator), and its progress. Operations live in a ring of their engine:
// submitting one allocates nothing.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/clock.h"
#include "base/milestone.h"
#include "engine/arena_table.h"
#include "fsccl/transport.h"
#include "kernels/kernels.h"
#include "plan/fingerprint.h"
#include "plan/plan.h"

namespace fsccl {

// The address of a peer's buffer for this rank.
struct Remote {
  std::byte* mapped = nullptr;  // its address in this process; else
  uint64_t address = 0;         // its address in the peer's process, to be read by the transport

  Remote plus(uint64_t offset) const {
    return {mapped ? mapped + offset : nullptr, address + offset};
  }
};

// The payload of an enter signal: the locations of this rank's buffers with `address_in_signal`
// (plan.h).
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

// The memory to which a symbolic buffer of the plan is bound.
struct Binding {
  std::byte* base = nullptr;  // the address of this rank's buffer
  // For symmetric and address_exchanged buffers: by rank, the buffer's address less `table_offset`.
  // Null for buffers whose addresses the enter signals have.
  const Remote* table = nullptr;
  uint64_t table_offset = 0;
  Location location;  // for address_in_signal: the location that the enter signal carries
};

// Copies 1 .. kInlineBytes bytes. One to three whole words are copied without a function call.
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

// The result of the hook `complete`. Hooks run in the driving thread. `complete` runs after the
// last step. It says that the operation is over, or that it goes on with another plan that the hook
// has set. A hook that fails calls Engine::fail_all.
struct Operation;
enum class Completion : uint8_t { over, again };

// The settings of an operation, without its plan and its buffers. They are reset together for each
// operation.
struct OperationSettings {
  // The number and the indices of the plan's buffers whose addresses travel in the enter signal,
  // and the plan that runs instead if one of them cannot be touched.
  uint32_t publishes = 0;
  std::array<uint32_t, 2> published{};
  const Plan* fallback = nullptr;
  // Private memory that is only read counts as touchable, because the system reads it.
  bool reads = false;
  // The call may begin with the fallback plan (foresight.h). In both plans every rank waits for the
  // enter signals of all ranks.
  bool foresees = false;
  // The call may begin with the fallback plan and ask for no addresses (RootedForesight).
  bool asks_rarely = false;

  // Settings of reductions. By destination buffer, without the first: the address of this rank's
  // own contribution, which is not in the source buffer then.
  const void* const* own_sources = nullptr;
  fsccl_op_kind_t kind = FSCCL_OP_SUM;
  double premul = 1, scale = 1;
  int64_t divisor = 1;
  bool accumulate = false;
  bool want_norm = false;
  // The operations of this engine go on between two pieces of a reduction (sums_apart.h).
  class Engine* lets_pass = nullptr;
  bool dry_run = false;  // signals are real, but nothing is moved or reduced
  // The stores of each of the two plans. They move different amounts.
  Stores stores = Stores::cached, fallback_stores = Stores::cached;
  bool in_cache = false;                       // input and output together fit a core's own cache
  const Milestone* const* releases = nullptr;  // wait_released: the release line of each rank
  uint64_t released = 0;  // wait_released waits until each line has reached this release position
  // An operation of another engine advances this rank's own release line, so the position may not
  // be reached yet.
  bool releases_elsewhere = false;

  Completion (*complete)(Operation&) = nullptr;
  void (*step_done)(Operation&, const Step&) = nullptr;  // after each reduce step; may be null
  // Carries out a code step: encodes to `slot`, or decodes from there. Returns the bytes that it
  // has encoded.
  uint64_t (*code)(Operation&, const Step&, std::byte* slot) = nullptr;
  void* owner = nullptr;

  // The operation begins only when `gate` has reached `gate_position`. An operation of another
  // engine makes it do so. A thread that waits for this operation drives `gate_engine` up to its
  // operation `gate_sequence` meanwhile.
  const Milestone* gate = nullptr;
  uint64_t gate_position = 0;
  Engine* gate_engine = nullptr;
  uint64_t gate_sequence = 0;

  // Returns the arguments of the reduction of `count` elements of `ranks` sources for the step
  // `of`.
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

// The progress of a plan, and the call for which it runs. An operation has a cursor, and so does a
// small call (small_call.h), which hands its cursor to an operation if it cannot go on by itself.
struct Cursor {
  const Plan* plan = nullptr;  // must outlive the call
  // The plan whose buffers' addresses the enter signals of this call have; null if they have none.
  // It differs from `plan` if the call began with its fallback plan (foresight.h).
  const Plan* asks = nullptr;
  Fingerprint fingerprint;
  uint32_t tick = 0;             // the tick that is tick 0 of the plan's present round
  uint32_t step = 0, round = 0;  // the next step, and its round
  int32_t peer = 0;              // the next peer of a wait for all
  bool unreachable = false;      // some rank cannot touch a buffer whose address a signal had
};

struct Operation : OperationSettings, Cursor {
  static constexpr size_t kInlineBindings = 4;

  // By buffer of the plan. It points to inline_bindings, or to the bindings of a unit.
  const Binding* bindings = nullptr;
  bool begun = false;       // the driver has begun it
  int64_t deadline_ns = 0;  // 0: no thread has slept on it yet
  std::array<Binding, kInlineBindings> inline_bindings;
  Norm norm;
  uint64_t coded_bytes = 0;  // bytes that the last code step has encoded
  // Data that lives as long as the operation, such as its plan and further data of the hooks.
  std::shared_ptr<const void> state;
  std::array<uint64_t, 8> context{};  // data of the hooks

  void take_fallback() {
    plan = fallback;
    stores = fallback_stores;
  }

  // The runner's view of an operation. A small call has the same functions.
  static constexpr bool has_slots = true;  // the plan may have slots
  const OperationSettings& how() const { return *this; }
  std::byte* own(uint32_t buffer) const { return bindings[buffer].base; }
  const Location& location(uint32_t i) const { return bindings[published[i]].location; }
};

}  // namespace fsccl
