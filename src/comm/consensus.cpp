#include "comm/consensus.h"

#include <algorithm>

#include "wire/told.h"

namespace fsccl {
namespace {

// An error as it travels; a longer text is cut.
struct Told {
  int32_t code = FSCCL_OK;
  char text[508] = "";
};

Status run(Communicator& comm, OpCode op, const void* input, void* output, uint64_t bytes,
           int root) {
  CollectiveCall call;
  call.op = op;
  call.input = input;
  call.output = output;
  call.count = bytes;
  call.root = root;
  fsccl_status_t state;
  return comm.run(call, true, &state);
}

}  // namespace

Status gather_bytes(Communicator& comm, const void* mine, void* all, uint64_t bytes) {
  return run(comm, OpCode::all_gather, mine, all, bytes, -1);
}

Status broadcast_bytes(Communicator& comm, int root, void* bytes, uint64_t count) {
  return run(comm, OpCode::broadcast, nullptr, bytes, count, root);
}

Status all_ok(Communicator& comm, Status mine, std::string_view what) {
  FSCCL_ASSIGN(const std::vector<uint8_t> all, all_gather<uint8_t>(comm, mine.ok() ? 1 : 0));
  const auto first = std::find(all.begin(), all.end(), uint8_t{0});
  if (first == all.end()) return success();
  const auto rank = static_cast<int>(first - all.begin());
  Told mine_told;
  if (!mine.ok()) {
    mine_told.code = mine.code();
    mine.text().copy(mine_told.text, sizeof mine_told.text - 1);
  }
  Result<std::vector<Told>> all_told = all_gather(comm, mine_told);
  // A rank that failed may end as soon as this function returns, which ends operations of others.
  // The barrier keeps every rank until all have the errors; what becomes of it itself is no matter.
  if (all_told.ok()) (void)run(comm, OpCode::barrier, nullptr, nullptr, 0, -1).ok();
  if (!mine.ok()) return mine;
  if (!all_told.ok()) return all_told.take_status();
  const Told& told = all_told.value()[static_cast<size_t>(rank)];
  const Engine& engine = comm.engine();
  return fail(told_code(told.code), "rank {} could not {}: {}", engine.known_as(rank), what,
              told_text({told.text, sizeof told.text}))
      .with_peer(engine.known_as(comm.rank()), engine.known_as(rank));
}

Result<int> first_that_differs(Communicator& comm, uint64_t mine) {
  FSCCL_ASSIGN(const std::vector<uint64_t> all, all_gather(comm, mine));
  const auto odd = std::find_if(all.begin(), all.end(), [&](uint64_t one) { return one != mine; });
  return odd == all.end() ? -1 : static_cast<int>(odd - all.begin());
}

}  // namespace fsccl
