// Data movement by pulling: each rank copies its elements straight from the sender's buffer, and
// signals tick 1 when it has them. A sender never writes memory that peers read after its enter
// signal.
#include "plan/build.h"
#include "plan/collectives.h"

namespace fsccl {

Plan move_direct(const DataMovement& m) {
  const uint64_t size = dtype_size(m.dtype);
  const auto rank = static_cast<size_t>(m.rank);
  const uint32_t output = m.one_buffer ? 0 : 1;
  Builder build(std::string(m.name) + "_direct", m.rank, m.ranks, m.ranks > 1 ? 2 : 1);
  build.peer_buffer("input", m.one_buffer ? Role::inout : Role::input, m.input_bytes[rank])
      .peer_bytes = m.input_bytes;
  if (!m.one_buffer) build.buffer("output", Role::output, m.output_bytes[rank]);

  build.signal(0);
  if (!m.one_buffer) {
    const Flow& own = m.to(m.rank);
    build.copy(build.mine(1, own.dst * size), build.mine(0, own.src * size), own.count, m.dtype);
  }
  build.wait_all(0);
  build.choose();
  for (int i = 1; i < m.ranks; ++i) {
    const int q = build.peer(i);
    const Flow& flow = m.from(q);
    build.copy(build.mine(output, flow.dst * size), build.at(q, 0, flow.src * size), flow.count,
               m.dtype);
  }
  if (m.ranks == 1) return build.take();
  build.signal(1);
  for (int i = 1; i < m.ranks; ++i)
    if (m.to(build.peer(i)).count)
      build.wait(build.peer(i), 1);  // this peer reads this rank's input
  return build.take();
}

}  // namespace fsccl
