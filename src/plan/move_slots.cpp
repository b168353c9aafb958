// Data movement through slots: a rank copies what it sends into its slot, signals, and copies what
// is for it from the senders' slots. Bytes that fit a slot take one exchange of signals. More bytes
// go in rounds, whose slots alternate, so that a sender may be some rounds ahead. No peer's buffer
// is touched. Slots are so small that the second copy reads from the caches. Mirrored slots are
// filled by a put for each receiver, straight from the input.
//
// If every rank sends and receives, bytes that do not fit a slot are cut into a part for each of
// several ticks, and a round fills the slots of all its ticks before it empties the first. So a
// rank that is late does not delay the others, and no rank writes its slot while others read
// theirs, which would slow both. Senders fill mirrored slots in the same way even if they do not
// receive, because each signal there is a message: a rank that only receives then signals once for
// several slots.
#include <algorithm>

#include "plan/build.h"
#include "plan/collectives.h"

namespace fsccl {

Plan move_slots(const DataMovement& m, uint64_t slot_bytes) {
  const uint64_t size = dtype_size(m.dtype);
  const auto rank = static_cast<size_t>(m.rank);
  const uint32_t output = m.one_buffer ? 0 : 1, first_slot = output + 1;
  // All receivers read one piece of a slot if they get the same.
  const uint64_t pieces = m.same_to_all ? 1 : pieces_for_readers(m.ranks);
  const uint64_t room = slot_bytes / pieces, needed = (m.longest * size + room - 1) / room;
  const bool ahead = (m.every_rank_sends || m.mirrored) && m.ranks > 1;
  const int ticks = ahead ? static_cast<int>(std::clamp<uint64_t>(needed, 1, kMaxTicks)) : 1;
  const uint64_t most = portion_of(m.longest, 0, ticks, size).count * size,
                 chunk = piece_of(room, most);
  Builder build(std::string(m.name) + "_slots", m.rank, m.ranks, ticks);
  build.mirrored(m.mirrored);
  if (m.every_rank_sends) build.two_way();
  build.buffer("input", m.one_buffer ? Role::inout : Role::input, m.input_bytes[rank]);
  if (!m.one_buffer) build.buffer("output", Role::output, m.output_bytes[rank]);
  for (int t = 0; t < ticks; ++t) build.slot("slot", chunk * pieces, t);
  build.in_rounds(chunk, most);

  const auto slot = [&](int tick) { return first_slot + static_cast<uint32_t>(tick); };
  const auto place = [&](int to) { return place_of_piece(pieces, chunk, to); };
  const auto part = [&](const Flow& flow, int tick) {
    const Portion portion = portion_of(flow.count, tick, ticks, size);
    return Flow{flow.src + portion.begin, flow.dst + portion.begin, portion.count};
  };
  if (m.one_buffer && ticks == 1) build.quiet();
  bool sends = m.every_rank_sends;
  for (int i = 1; i < m.ranks; ++i) sends |= m.to(build.peer(i)).count > 0;
  for (int t = 0; t < ticks; ++t) {
    for (int i = 1; i < m.ranks; ++i) {
      const int q = build.peer(i);
      const Flow sent = part(m.to(q), t);
      build.fill(q, build.mine(slot(t), place(q)), build.mine(0, sent.src * size), sent.count,
                 m.dtype);
      if (m.same_to_all && !m.mirrored && sent.count) break;
    }
    if (sends)
      build.signal(t);
    else if (t == 0)
      build.enter_to_receive();
  }
  for (int t = 0; t < ticks && !m.one_buffer; ++t) {
    const Flow own = part(m.to(m.rank), t);
    build.copy(build.mine(1, own.dst * size), build.mine(0, own.src * size), own.count, m.dtype);
  }
  bool waits_for_all = true;
  for (int t = 0; t < ticks; ++t) {
    for (int i = 1; i < m.ranks; ++i) {
      const int q = build.peer(i);
      const Flow received = part(m.from(q), t);
      if (received.count == 0 && !(m.every_rank_sends && t == 0)) {
        waits_for_all &= m.every_rank_sends;
        continue;
      }
      build.wait(q, t);
      build.copy(build.mine(output, received.dst * size), build.at(q, slot(t), place(m.rank)),
                 received.count, m.dtype);
    }
  }
  if (!waits_for_all) build.completes_early();
  return build.take();
}

}  // namespace fsccl
