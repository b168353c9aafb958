// Reduction through slots, in rounds. A rank puts the parts of its input that others reduce into
// its slot. Each rank reduces its part from the slots and its own input, in rank order. If others
// get the result, the rank puts the result into the slot of a later tick.
//
// Mirrored slots are filled straight from the input and from the result. A piece that does not fit
// a slot is cut into parts for several ticks, and the rank puts all of them before it reduces the
// first: it reduces one part while the network moves the next.
#include <algorithm>

#include "plan/build.h"
#include "plan/collectives.h"

namespace fsccl {

namespace {

// How the part that one rank reduces is cut into pieces and ticks.
struct Cut {
  Cut(const ReductionShape& f, uint64_t slot_bytes) {
    const uint64_t size = dtype_size(f.dtype);
    uint64_t longest = 0;
    for (const Shape::Part& part : f.parts) longest = std::max(longest, part.count);
    pieces = f.every_rank_reduces_all ? 1 : pieces_for_readers(f.ranks);
    const uint64_t room = slot_bytes / pieces, needed = (longest * size + room - 1) / room;
    const int most_ticks = !f.mirrored ? 1 : f.deliver == Deliver::self ? kMaxTicks : kMaxTicks / 2;
    ticks = static_cast<int>(std::clamp<uint64_t>(needed, 1, static_cast<uint64_t>(most_ticks)));
    most = portion_of(longest, 0, ticks, size).count * size;
    chunk = piece_of(room, most);
  }
  uint64_t place(int reader) const { return place_of_piece(pieces, chunk, reader); }

  uint64_t pieces = 1;  // in a slot
  int ticks = 1;        // ticks of a round that bring input
  uint64_t most = 0;    // bytes of one tick, in all rounds
  uint64_t chunk = 0;   // bytes of a piece
};

constexpr uint32_t kOutput = 1, kSlots = 2;

uint32_t slot(int tick) { return kSlots + static_cast<uint32_t>(tick); }

// Returns the part that rank `q` reduces in a tick.
Portion part(const ReductionShape& f, const Cut& cut, int q, int tick) {
  const Shape::Part& whole = f.parts[static_cast<size_t>(q)];
  const Portion portion = portion_of(whole.count, tick, cut.ticks, dtype_size(f.dtype));
  return Portion{whole.begin + portion.begin, portion.count};
}

// Copies the results of the other ranks from their slots.
void collect(const ReductionShape& f, const Cut& cut, Builder& build) {
  for (int t = 0; t < cut.ticks; ++t) {
    for (int i = 1; i < f.ranks; ++i) {
      const int q = build.peer(i);
      const Portion theirs = part(f, cut, q, t);
      if (theirs.count == 0) continue;
      build.wait(q, cut.ticks + t);
      build.copy(build.mine(kOutput, theirs.begin * dtype_size(f.dtype)),
                 build.at(q, slot(cut.ticks + t), 0), theirs.count, f.dtype);
    }
  }
}

}  // namespace

Plan reduce_slots(const ReductionShape& f, uint64_t slot_bytes) {
  const uint64_t size = dtype_size(f.dtype);
  const bool delivers = f.deliver != Deliver::self && f.ranks > 1;
  const Cut cut(f, slot_bytes);
  const int ticks = cut.ticks;
  Builder build(std::string(f.name) + (f.every_rank_reduces_all ? "_small_slots" : "_slots"),
                f.rank, f.ranks, delivers ? 2 * ticks : ticks);
  build.mirrored(f.mirrored);
  build.buffer("input", Role::input, f.input_bytes);
  build.buffer("output", Role::output, f.output_bytes);
  for (int t = 0; t < ticks; ++t) build.slot("slot", cut.chunk * cut.pieces, t);
  for (int t = 0; t < ticks && delivers; ++t) build.slot("result slot", cut.chunk, ticks + t);
  build.in_rounds(cut.chunk, cut.most);

  const bool reduces = f.parts[static_cast<size_t>(f.rank)].count > 0;
  // If the output is the input, a rank that reduces everything overwrites its input as soon as it
  // has the others' inputs. The puts of its input may still be in flight then, so they are made
  // from a copy.
  const auto reducers = std::count_if(f.parts.begin(), f.parts.end(),
                                      [](const Shape::Part& any) { return any.count > 0; });
  if (reducers == f.ranks) build.two_way();
  const bool staged = f.mirrored && f.every_rank_reduces_all && reduces && reducers > 1;
  for (int t = 0; t < ticks; ++t) {
    const Portion own = part(f, cut, f.rank, t);
    if (staged)
      build.copy(build.mine(slot(t), 0), build.mine(0, own.begin * size), own.count, f.dtype);
    for (int i = 1; i < f.ranks; ++i) {
      const int q = build.peer(i);
      const Portion theirs = part(f, cut, q, t);
      const Operand input = staged ? build.mine(slot(t), 0) : build.mine(0, theirs.begin * size);
      build.fill(q, build.mine(slot(t), cut.place(q)), input, theirs.count, f.dtype);
      if (f.every_rank_reduces_all && !f.mirrored && theirs.count) break;
    }
    build.signal(t);
  }
  // The result goes to this rank's output.
  const bool stays = !delivers || f.deliver == Deliver::all || f.rank == f.root;
  if (!reduces && f.every_rank_reduces_all) build.completes_early();
  for (int t = 0; t < ticks; ++t) {
    const Portion own = part(f, cut, f.rank, t);
    if (reduces || !f.every_rank_reduces_all) build.wait_all(t);
    const uint32_t result_slot = slot(ticks + t);
    const Portion& kept =
        f.deliver == Deliver::self
            ? portion_of(f.parts[static_cast<size_t>(f.rank)].count, t, ticks, size)
            : own;
    const Operand result =
        stays ? build.mine(kOutput, kept.begin * size) : build.mine(result_slot, 0);
    build.reduce(result, f.dtype, build.mine(slot(t), cut.place(f.rank)), f.dtype, own.count,
                 build.mine(0, own.begin * size));
    if (!delivers) continue;
    if (f.deliver == Deliver::all && !f.mirrored)
      build.copy(build.mine(result_slot, 0), result, own.count, f.dtype);
    for (int i = 1; i < f.ranks && f.mirrored; ++i)
      if (const int q = build.peer(i); f.deliver == Deliver::all || q == f.root)
        build.put(q, build.mine(result_slot, 0), result, own.count, f.dtype);
    build.signal(ticks + t);
  }
  if (delivers && (f.deliver != Deliver::root || f.rank == f.root)) collect(f, cut, build);
  return build.take();
}

}  // namespace fsccl
