#include "engine/executor.h"

#include <algorithm>
#include <cstring>

namespace fsccl {
namespace {

// Bytes of each source that go through the cache at once when peers' memory can only be read by the system.
constexpr uint64_t kWindowBytes = 128u << 10;

// What an enter signal carries when the plan publishes buffers.
struct Published {
  uint64_t address[2];
  uint32_t arena[2];
};
static_assert(sizeof(Published) == kInlineBytes);

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

}  // namespace

void Executor::give_up(fsccl_status_t code, int peer, std::string text) {
  Error error;
  error.code = code;
  error.rank = engine_.rank_;
  error.peer = peer;
  error.operation = op_name(op_.fingerprint.op);
  error.sequence = op_.fingerprint.sequence;
  error.text = std::move(text);
  engine_.fail_all(error);
}

void Executor::signal(const Step& step) {
  fsccl_transport_line_t line;
  line.tick = op_.tick + step.tick;
  std::memcpy(line.fingerprint, &op_.fingerprint, sizeof line.fingerprint);
  if (step.count) {
    copy_inline(line.payload, here(step.src), step.count);
  } else if (step.tick == 0 && op_.publishes) {
    Published published{};
    for (uint32_t i = 0; i < op_.publishes; i++) {
      published.address[i] = op_.bindings[op_.published[i]].location.address;
      published.arena[i] = op_.bindings[op_.published[i]].location.arena;
    }
    std::memcpy(line.payload, &published, sizeof published);
  }
  engine_.transport_.signal(engine_.channel_, &line);
}

bool Executor::enter(int peer, const fsccl_transport_line_t& line) {
  if (!equal(op_.fingerprint, line.fingerprint)) {
    Fingerprint theirs;
    std::memcpy(&theirs, line.fingerprint, sizeof theirs);
    give_up(FSCCL_ERR_MISMATCH, peer,
            fmt::format("ranks disagree: rank {} calls {}, rank {} calls {}; they differ in {}. All ranks must issue the same "
                        "operations in the same order",
                        engine_.rank_, describe(op_.fingerprint), peer, describe(theirs), difference(op_.fingerprint, theirs)));
    return false;
  }
  return op_.publishes == 0 || learn_locations(peer, line);
}

bool Executor::learn_locations(int peer, const fsccl_transport_line_t& line) {
  Published published;
  std::memcpy(&published, line.payload, sizeof published);
  for (uint32_t i = 0; i < op_.publishes; i++) {
    const uint64_t bytes = plan_.buffers[op_.published[i]].bytes;
    const Location location{published.address[i], published.arena[i]};
    Remote& remote = engine_.remote_[i * static_cast<size_t>(engine_.ranks_) + static_cast<size_t>(peer)];
    remote = {};
    if (location.arena >= kFirstArena) {
      remote.mapped = engine_.options_.arenas->resolve(location, bytes);
    } else if (location.arena == kScratch) {
      size_t half = 0;
      std::byte* scratch = engine_.scratch(peer, &half);
      if (location.address <= 2 * half && bytes <= 2 * half - location.address) remote.mapped = scratch + location.address;
    } else if (location.arena == kPrivate) {
      remote.address = location.address;
      if (engine_.options_.same_process[static_cast<size_t>(peer)]) remote.mapped = reinterpret_cast<std::byte*>(location.address);
      if (remote.mapped || engine_.single_copy_) continue;
    } else if (location.arena == kNowhere) {
      continue;  // a buffer that no plan of this operation touches
    }
    if (!remote.mapped) {
      give_up(FSCCL_ERR_PROTOCOL, peer,
              fmt::format("rank {} named a buffer for {} that rank {} cannot reach (arena {}, {} bytes): use pools made on a "
                          "communicator of both",
                          peer, describe(op_.fingerprint), engine_.rank_, location.arena, bytes));
      return false;
    }
  }
  return true;
}

bool Executor::wait(const Step& step) {
  const int last = step.peer == kAllPeers ? engine_.ranks_ - 1 : step.peer;
  int peer = step.peer == kAllPeers ? op_.peer : step.peer;
  const uint32_t tick = op_.tick + step.tick;
  for (; peer <= last; peer++) {
    if (peer == engine_.rank_) continue;
    const fsccl_transport_line_t* line = engine_.transport_.poll(engine_.channel_, peer, tick);
    if (!line) {
      op_.peer = peer;
      engine_.blocked_ = {nullptr, 0, peer, tick};
      return false;
    }
    if (step.tick == 0 && !enter(peer, *line)) return false;
    if (step.count) copy_inline(here(step.dst), line->payload, step.count);
  }
  op_.peer = 0;
  return true;
}

bool Executor::wait_released() {
  for (; op_.peer < engine_.ranks_; op_.peer++) {
    const ReleaseLine* line = op_.releases[op_.peer];
    if (op_.peer == engine_.rank_ ||
        std::atomic_ref(const_cast<uint64_t&>(line->position)).load(std::memory_order_acquire) >= op_.released)
      continue;
    engine_.blocked_ = {line, op_.released, op_.peer, 0};
    return false;
  }
  op_.peer = 0;
  return true;
}

Remote Executor::there(const Place& place, int rank) const {
  const Binding& binding = op_.bindings[place.buffer];
  if (rank == engine_.rank_ || plan_.buffers[place.buffer].shared) return {binding.base + place.offset, 0};
  if (binding.table) return binding.table[rank].plus(binding.table_offset + place.offset);
  return engine_.remote_[(place.buffer == op_.published[0] ? 0 : static_cast<size_t>(engine_.ranks_)) + static_cast<size_t>(rank)]
      .plus(place.offset);
}

bool Executor::read(const Remote& remote, int rank, void* dst, uint64_t bytes) {
  char error[256] = "";
  const fsccl_status_t code = engine_.transport_.read(engine_.channel_, rank, remote.address, dst, bytes, error, sizeof error);
  engine_.counters_.kernel_copies++;
  if (code == FSCCL_OK) return true;
  give_up(code, rank, error);
  return false;
}

bool Executor::move(const Step& step) {
  const Remote src = there(step.src, step.src.rank), dst = there(step.dst, step.dst.rank);
  if (!src.mapped) return read(src, step.src.rank, dst.mapped, step.count * dtype_size(step.from));
  if (src.mapped == dst.mapped) return true;  // in place
  if (step.kind == StepKind::copy)
    copy_bytes(dst.mapped, src.mapped, step.count * dtype_size(step.from), op_.stores);
  else
    cast(dst.mapped, step.to, src.mapped, step.from, step.count, op_.stores);
  return true;
}

bool Executor::fold_range(const Step& step, const void* const* sources, int n, std::byte* dst, uint64_t count) {
  Reduce args{};
  args.sources = sources;
  args.n = n;
  args.from = step.from;
  args.dst = dst;
  args.to = step.to;
  args.count = count;
  args.op = op_.kind;
  args.premul = op_.premul;
  args.scale = op_.scale;
  args.divisor = op_.divisor;
  args.accumulate = op_.accumulate;
  args.norm = op_.want_norm ? &op_.norm : nullptr;
  args.stores = op_.accumulate ? Stores::cached : op_.stores;
  if (reduce(args)) return true;
  give_up(FSCCL_ERR_INTERNAL, -1, fmt::format("no kernel reduces {} to {}", dtype_name(step.from), dtype_name(step.to)));
  return false;
}

// Sources of which some can only be read by the system: through a window that stays in the cache.
bool Executor::fold_windowed(const Step& step, uint64_t element_bytes) {
  const auto ranks = static_cast<size_t>(engine_.ranks_);
  if (!engine_.window_) engine_.window_ = std::make_unique_for_overwrite<std::byte[]>(ranks * kWindowBytes);
  const uint64_t chunk = kWindowBytes / element_bytes / kNormBlock * kNormBlock;
  std::byte* dst = there(step.dst, step.dst.rank).mapped;
  for (uint64_t begin = 0; begin < step.count; begin += chunk) {
    const uint64_t count = std::min(chunk, step.count - begin);
    for (size_t q = 0; q < ranks; q++) {
      const Remote source = there(step.src, static_cast<int>(q)).plus(begin * element_bytes);
      engine_.sources_[q] = source.mapped;
      if (source.mapped) continue;
      std::byte* window = engine_.window_.get() + q * kWindowBytes;
      if (!read(source, static_cast<int>(q), window, count * element_bytes)) return false;
      engine_.sources_[q] = window;
    }
    if (!fold_range(step, engine_.sources_.data(), engine_.ranks_, dst + begin * dtype_size(step.to), count)) return false;
  }
  return true;
}

bool Executor::fold(const Step& step) {
  const uint64_t element_bytes = dtype_size(step.from);
  bool mapped = true;
  for (int q = 0; q < engine_.ranks_; q++) {
    const Remote source = there(step.src, q);
    engine_.sources_[static_cast<size_t>(q)] = source.mapped;
    mapped &= source.mapped != nullptr;
  }
  if (op_.own_sources) engine_.sources_[static_cast<size_t>(engine_.rank_)] = op_.own_sources[step.dst.buffer - 1];
  const bool folded =
      mapped ? fold_range(step, engine_.sources_.data(), engine_.ranks_, there(step.dst, step.dst.rank).mapped, step.count)
             : fold_windowed(step, element_bytes);
  if (folded && op_.step_done) op_.step_done(op_, step);
  return folded;
}

bool Executor::fold_local(const Step& step) {
  for (int q = 0; q < engine_.ranks_; q++)
    engine_.sources_[static_cast<size_t>(q)] = here(step.src) + static_cast<uint64_t>(q) * step.stride;
  return fold_range(step, engine_.sources_.data(), engine_.ranks_, here(step.dst), step.count);
}

Engine::Outcome Executor::run() {
  const Step* const steps = plan_.steps.data();
  const auto count = static_cast<uint32_t>(plan_.steps.size());
  for (; op_.step < count; op_.step++) {
    const Step& step = steps[op_.step];
    bool on = true;
    switch (step.kind) {
      case StepKind::signal:
        signal(step);
        break;
      case StepKind::wait:
        on = wait(step);
        break;
      case StepKind::wait_released:
        on = wait_released();
        break;
      case StepKind::copy:
      case StepKind::cast:
        on = move(step);
        break;
      case StepKind::reduce:
        on = fold(step);
        break;
      case StepKind::reduce_local:
        on = fold_local(step);
        break;
    }
    if (!on) [[unlikely]]
      return engine_.failed() ? Engine::Outcome::failed : Engine::Outcome::blocked;
  }
  return Engine::Outcome::done;
}

}  // namespace fsccl
