#include "engine/staged.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace fsccl {
namespace {

// The state of one staged operation; owned by it. All plans are looked up before it is submitted: the driver may be another thread.
struct Staged {
  Collectives& collectives;
  CollectiveCall call;
  Operation direct;            // the operation as it would run without staging
  std::vector<uint8_t> votes;  // 1: this rank needs staging
  uint8_t vote = 0;
  const Collectives::Entry* whole_chunk = nullptr;
  const Collectives::Entry* tail = nullptr;  // may go another way than a whole chunk: inside the signals, publishing nothing
  uint64_t done = 0;                         // elements of the call that are through
  uint64_t chunk = 0;                        // of the current chunk

  std::byte* half(size_t slot) const {
    size_t bytes = 0;
    Engine& engine = collectives.engine();
    return engine.scratch(engine.rank(), &bytes) + slot * bytes;
  }
};

Staged& staged_of(Operation& op) { return *static_cast<Staged*>(op.owner); }

// Elements per chunk: what fits a scratch half, counting every rank's part where input or output holds one for each.
uint64_t chunk_elements(const Staged& s) {
  const bool parted = s.call.op == OpCode::reduce_scatter || s.call.op == OpCode::all_gather;
  const uint64_t parts = parted ? static_cast<uint64_t>(s.collectives.engine().ranks()) : 1;
  const uint64_t elements = s.collectives.options().stage_bytes / parts / dtype_size(s.call.dtype);
  return elements < 64 ? std::max<uint64_t>(elements, 1) : elements / 64 * 64;
}

// Binds the next chunk to scratch and copies its input there.
void load_chunk(Operation& op) {
  Staged& s = staged_of(op);
  const uint64_t size = dtype_size(s.call.dtype);
  s.chunk = std::min(chunk_elements(s), s.call.count - s.done);
  const Collectives::Entry& entry = s.chunk == chunk_elements(s) ? *s.whole_chunk : *s.tail;
  op.plan = &entry.plan;
  op.publishes = entry.settings.publishes;
  op.published = entry.settings.published;
  size_t half = 0;
  Engine& engine = s.collectives.engine();
  engine.scratch(engine.rank(), &half);
  const auto* in = static_cast<const std::byte*>(s.call.op == OpCode::broadcast ? s.call.output : s.call.input);
  if (s.call.op == OpCode::reduce_scatter) {
    for (int q = 0; q < engine.ranks(); q++)
      std::memcpy(s.half(0) + static_cast<uint64_t>(q) * s.chunk * size,
                  in + (static_cast<uint64_t>(q) * s.call.count + s.done) * size, s.chunk * size);
  } else {
    std::memcpy(s.half(0), in + s.done * size, s.chunk * size);
  }
  op.inline_bindings[0].base = s.half(0);
  op.inline_bindings[0].location = {0, kScratch};
  op.inline_bindings[1].base = s.half(1);
  op.inline_bindings[1].location = {half, kScratch};
}

// Copies the chunk's result to where the caller wants it.
void store_chunk(const Operation& op, const Staged& s) {
  const uint64_t size = dtype_size(s.call.dtype);
  auto* out = static_cast<std::byte*>(s.call.output);
  const std::byte* from = op.inline_bindings[s.call.op == OpCode::broadcast ? 0 : 1].base;
  if (s.call.op != OpCode::all_gather) {
    std::memcpy(out + s.done * size, from, s.chunk * size);
    return;
  }
  for (int q = 0; q < s.collectives.engine().ranks(); q++)
    std::memcpy(out + (static_cast<uint64_t>(q) * s.call.count + s.done) * size, from + static_cast<uint64_t>(q) * s.chunk * size,
                s.chunk * size);
}

Completion next_chunk(Operation& op) {
  Staged& s = staged_of(op);
  store_chunk(op, s);
  s.done += s.chunk;
  if (s.done < s.call.count) {
    load_chunk(op);
    return Completion::again;
  }
  return Completion::over;
}

Completion voted(Operation& op) {
  Staged& s = staged_of(op);
  if (std::any_of(s.votes.begin(), s.votes.end(), [](uint8_t vote) { return vote != 0; })) {
    op.complete = next_chunk;
    load_chunk(op);
    return Completion::again;
  }
  op.plan = s.direct.plan;
  op.publishes = s.direct.publishes;
  op.published = s.direct.published;
  op.inline_bindings = s.direct.inline_bindings;
  op.owner = s.direct.owner;
  op.complete = s.direct.complete;
  if (s.direct.begin) s.direct.begin(op);
  return Completion::again;
}

}  // namespace

Status begin_staged(Collectives& collectives, Operation& op, const CollectiveCall& call, bool reachable) {
  const auto ranks = static_cast<size_t>(collectives.engine().ranks());
  auto s =
      std::make_shared<Staged>(Staged{collectives, call, op, std::vector<uint8_t>(ranks), static_cast<uint8_t>(reachable ? 0 : 1)});
  const uint64_t chunk = chunk_elements(*s);
  CollectiveCall part = call;
  part.count = std::min(chunk, call.count);
  FSCCL_ASSIGN(s->whole_chunk, collectives.entry_for(part));
  if (call.count % chunk) part.count = call.count % chunk;
  FSCCL_ASSIGN(s->tail, collectives.entry_for(part));
  CollectiveCall vote;
  vote.op = OpCode::all_gather;
  vote.count = 1;
  FSCCL_ASSIGN(const Collectives::Entry* entry, collectives.entry_for(vote));
  op.plan = &entry->plan;
  op.owner = s.get();
  op.begin = nullptr;
  op.publishes = 0;
  op.complete = voted;
  op.inline_bindings[0].base = reinterpret_cast<std::byte*>(&s->vote);
  op.inline_bindings[1].base = reinterpret_cast<std::byte*>(s->votes.data());
  op.state = std::move(s);
  return success();
}

}  // namespace fsccl
