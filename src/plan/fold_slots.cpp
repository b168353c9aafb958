// Reducing through slots, in rounds: a rank puts what others fold of its input into its slot; each folds its part from the slots
// and its own input, in rank order. Where others get the result, the folder puts it into the slot of a second tick.
// Mirrored slots are filled straight from the input, and from where the result was folded.
#include <algorithm>

#include "plan/build.h"
#include "plan/collectives.h"

namespace fsccl {

Plan fold_slots(const Folding& f, uint64_t slot_bytes) {
  constexpr uint32_t kOutput = 1, kSlot = 2, kResult = 3;
  const uint64_t size = dtype_size(f.dtype);
  const bool delivers = f.deliver != Deliver::self && f.ranks > 1;
  uint64_t most = 0;
  for (const Shape::Part& part : f.parts) most = std::max(most, part.count * size);
  const uint64_t pieces = f.everybody_folds_all ? 1 : static_cast<uint64_t>(f.ranks), chunk = piece_of(slot_bytes / pieces, most);
  Builder build(std::string(f.name) + (f.everybody_folds_all ? "_small_slots" : "_slots"), f.rank, f.ranks, delivers ? 2 : 1);
  build.mirrored(f.mirrored);
  build.buffer("input", Role::input, f.input_bytes);
  build.buffer("output", Role::output, f.output_bytes);
  build.slot("slot", chunk * pieces, 0);
  if (delivers) build.slot("result slot", chunk, 1);
  build.in_rounds(chunk, most);

  const auto part = [&](int q) { return f.parts[static_cast<size_t>(q)]; };
  const auto place = [&](int q) { return f.everybody_folds_all ? 0 : chunk * static_cast<uint64_t>(q); };
  const Shape::Part own = part(f.rank);
  // In place, a rank that folds everything overwrites its input as soon as it has the others', when the puts of it may still be on
  // their way: they leave from a copy.
  const auto folders = std::count_if(f.parts.begin(), f.parts.end(), [](const Shape::Part& any) { return any.count > 0; });
  const bool staged = f.mirrored && f.everybody_folds_all && own.count && folders > 1;
  if (staged) build.copy(build.here(kSlot, 0), build.here(0, 0), own.count, f.dtype);
  for (int i = 1; i < f.ranks; ++i) {
    const int q = build.peer(i);
    const Place input = staged ? build.here(kSlot, 0) : build.here(0, part(q).begin * size);
    build.offer(q, build.here(kSlot, place(q)), input, part(q).count, f.dtype);
    if (f.everybody_folds_all && !f.mirrored && part(q).count) break;
  }
  build.signal(0);
  const uint64_t begin = own.begin * size;
  const bool stays = !delivers || f.deliver == Deliver::all || f.rank == f.root;  // the result belongs in this rank's output
  if (own.count || !f.everybody_folds_all)
    build.wait_all(0);
  else
    build.lazy();
  const Place result = f.deliver == Deliver::self ? build.here(kOutput, 0)
                       : stays                    ? build.here(kOutput, begin)
                                                  : build.here(kResult, 0);
  build.reduce(result, f.dtype, build.here(kSlot, place(f.rank)), f.dtype, own.count, build.here(0, begin));
  if (!delivers) return build.take();
  if (f.deliver == Deliver::all && !f.mirrored) build.copy(build.here(kResult, 0), result, own.count, f.dtype);
  for (int i = 1; i < f.ranks && f.mirrored; ++i)
    if (const int q = build.peer(i); f.deliver == Deliver::all || q == f.root)
      build.put(q, build.here(kResult, 0), result, own.count, f.dtype);
  build.signal(1);
  if (f.deliver == Deliver::root && f.rank != f.root) return build.take();
  for (int i = 1; i < f.ranks; ++i) {
    const int q = build.peer(i);
    if (part(q).count == 0) continue;
    build.wait(q, 1);
    build.copy(build.here(kOutput, part(q).begin * size), build.at(q, kResult, 0), part(q).count, f.dtype);
  }
  return build.take();
}

}  // namespace fsccl
