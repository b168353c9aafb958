// Moving through slots: a rank puts what it sends into its slot, signals, and copies what is meant for it from the senders' slots.
// One exchange for what fits; the rest goes in rounds, whose slots alternate, so that a sender may be some rounds ahead. No peer's
// buffer is touched, and the slots are so small that the second copy reads from the caches.
#include <algorithm>

#include "plan/build.h"
#include "plan/collectives.h"

namespace fsccl {

Plan move_slots(const Movement& m, uint64_t slot_bytes) {
  const uint64_t size = dtype_size(m.dtype);
  const auto rank = static_cast<size_t>(m.rank), ranks = static_cast<size_t>(m.ranks);
  const uint32_t output = m.one_buffer ? 0 : 1, slot = output + 1;
  uint64_t most = 0;
  for (const Flow& flow : m.flows) most = std::max(most, flow.count * size);
  const uint64_t chunk = piece_of(m.same_to_all ? slot_bytes : slot_bytes / ranks, most);  // for one receiver, or for all
  Builder build(std::string(m.name) + "_slots", m.rank, m.ranks, 1);
  build.buffer("input", m.one_buffer ? Role::inout : Role::input, m.input_bytes[rank]);
  if (!m.one_buffer) build.buffer("output", Role::output, m.output_bytes[rank]);
  build.slot("slot", m.same_to_all ? chunk : chunk * ranks, 0);
  build.in_rounds(chunk, most);

  const auto place = [&](int to) { return m.same_to_all ? 0 : chunk * static_cast<uint64_t>(to); };
  for (int i = 1; i < m.ranks; ++i) {
    const Flow& flow = m.flow(m.rank, build.peer(i));
    build.copy(build.here(slot, place(build.peer(i))), build.here(0, flow.src * size), flow.count, m.dtype);
    if (m.same_to_all && flow.count) break;
  }
  build.signal(0);
  if (!m.one_buffer) {
    const Flow& own = m.flow(m.rank, m.rank);
    build.copy(build.here(1, own.dst * size), build.here(0, own.src * size), own.count, m.dtype);
  }
  bool everybody = true;
  for (int i = 1; i < m.ranks; ++i) {
    const int q = build.peer(i);
    const Flow& flow = m.flow(q, m.rank);
    if (flow.count == 0 && !m.mutual) {
      everybody = false;
      continue;
    }
    build.wait(q, 0);
    build.copy(build.here(output, flow.dst * size), build.at(q, slot, place(m.rank)), flow.count, m.dtype);
  }
  if (!everybody) build.lazy();
  return build.take();
}

}  // namespace fsccl
