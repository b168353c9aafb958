#include "engine/at_once.h"

#include "base/fetch.h"
#include "engine/executor.h"

namespace fsccl {

bool small_enough(const Plan& plan) {
  const auto given = [&](const Place& place) {
    return !plan.buffers[place.buffer].slot && place.rank == plan.rank;
  };
  const auto touched = [&](const Place& place) {
    return plan.buffers[place.buffer].slot || given(place);
  };
  const auto read = [&](const Place& place) {
    return touched(place) || plan.buffers[place.buffer].published;
  };
  const auto small = [&](const Step& step) {
    switch (step.kind) {
      case StepKind::signal:
      case StepKind::wait:
      case StepKind::reduce_local:
      case StepKind::choose:
        return true;
      case StepKind::copy:
        return read(step.src) && touched(step.dst) &&
               step.count * dtype_size(step.from) <= Engine::kSmallBytes;
      case StepKind::put:
        return touched(step.src) && step.count * dtype_size(step.from) <= Engine::kSmallBytes;
      case StepKind::reduce:
        return read(step.src) && given(step.own) && touched(step.dst) && !step.spread &&
               step.count * dtype_size(step.from) <= Engine::kSmallBytes;
      default:
        return false;
    }
  };
  const auto slots = static_cast<size_t>(
      std::count_if(plan.buffers.begin(), plan.buffers.end(), [](auto& b) { return b.slot; }));
  return plan.ticks > 0 && plan.rounds == 1 && !plan.relayed &&
         plan.buffers.size() - slots <= std::tuple_size_v<decltype(SmallCall::buffers)> &&
         std::all_of(plan.steps.begin(), plan.steps.end(), small);
}

AtOnce::AtOnce(Engine& engine, const SmallCall& call, uint64_t sequence)
    : engine_(engine),
      call_(call),
      what_(*call.fingerprint),
      tick_(engine.next_tick_),
      has_slots_(call.plan->slots[0] != 0),
      looks_(engine.options_.oversubscribed ? 1
             : engine.mirrored()            ? Engine::kNetworkPolls
                                            : Engine::kBarePolls) {
  what_.sequence = sequence;
  engine.sites_.mark(what_);
  what_.history ^= engine.unheard_;
}

bool AtOnce::run() {
  const Plan& plan = *call_.plan;
  if (!engine_.may_begin(tick_ + static_cast<uint32_t>(plan.ticks))) return false;
  if (!has_slots_)
    engine_.placed_ = tick_;
  else if (!engine_.slots_reserved_.load(std::memory_order_relaxed) ||
           !engine_.place_slots(plan, tick_))
    return false;
  Recorder* recorder = engine_.options_.recorder;
  for (const auto count = static_cast<uint32_t>(plan.steps.size()); step_ < count; step_++) {
    const Step& step = plan.steps[step_];
    switch (step.kind) {
      case StepKind::signal:
        if (!engine_.leaves_out(step, plan, tick_)) signal(step);
        if (recorder)  // behind the first signal, since peers wait for that
          std::exchange(recorder, nullptr)->at_once(engine_.options_.recorded_as, what_);
        break;
      case StepKind::wait:
        if (!wait(step)) return false;
        break;
      case StepKind::copy:
        if (!copy(step)) return false;
        break;
      case StepKind::put:
        put(step);
        break;
      case StepKind::choose:
        if (unreachable_) return false;
        break;
      default:
        if (!fold(step)) return false;
    }
  }
  if (!engine_.end_round(plan, tick_, what_)) return false;
  if (call_.settings->foresees) engine_.foresight_.found(unreachable_);
  return true;
}

void AtOnce::signal(const Step& step) {
  engine_.fence_slots();
  fsccl_transport_line_t line;
  line.tick = tick_ + step.tick;
  std::memcpy(line.fingerprint, &what_, sizeof line.fingerprint);
  if (step.count) {
    copy_inline(line.payload, at(step.src), step.count);
  } else if (step.tick == 0 && call_.asks) {
    Published published{};
    for (uint32_t i = 0; i < call_.settings->publishes; i++) {
      const Location& location = call_.published[i];
      published.set(i, location);
      // others judge it, so do we
      if (location.arena == kPrivate) learn(engine_.rank_, i, location);
    }
    std::memcpy(line.payload, &published, sizeof published);
  }
  if (engine_.transport_.hold && Executor::signals_again(*call_.plan, step_))
    engine_.transport_.hold(engine_.channel_);
  engine_.transport_.signal(engine_.channel_, &line);
}

bool AtOnce::learn(int rank, uint32_t index, const Location& location) {
  return engine_.learn(rank, index, location, *call_.asks, *call_.settings, &unreachable_);
}

bool AtOnce::enter(int peer, const fsccl_transport_line_t& line) {
  if (!equal(what_, line.fingerprint)) return false;
  if (!call_.asks) return true;
  Published published;
  std::memcpy(&published, line.payload, sizeof published);
  for (uint32_t i = 0; i < call_.settings->publishes; i++)
    if (!learn(peer, i, published.at(i))) return false;
  return true;
}

bool AtOnce::copy(const Step& step) const {
  std::byte *to = at(step.dst), *from = at(step.src);
  const uint64_t bytes = step.count * dtype_size(step.from);
  if (!from) return bytes == 0;
  if (to == from) return true;
  if (bytes <= kInlineBytes)
    copy_inline(to, from, bytes);
  else
    engine_.copy(to, from, bytes, call_.plan->slot_bytes(step.dst), is_slot(step.src),
                 *call_.settings);
  return true;
}

void AtOnce::put(const Step& step) const {
  const size_t at =
      engine_.slot_at_[call_.plan->buffers[step.dst.buffer].slot_tick] + step.dst.offset;
  const uint64_t bytes = step.count * dtype_size(step.from);
  if (bytes) engine_.transport_.put(engine_.channel_, step.peer, at, this->at(step.src), bytes);
}

void AtOnce::fetch_ahead(int peer) const {
  const Step* const next = Executor::reads_slot_behind(*call_.plan, step_);
  if (!next) return;
  const uint64_t bytes = next->count * dtype_size(next->from);
  if (bytes > Engine::kFetchAheadBytes) return;
  const std::byte* const data = in_slot(next->src, peer);
  fetch_to_read(data, bytes);
}

const fsccl_transport_line_t* AtOnce::await(int peer, uint32_t tick) {
  const fsccl_transport_line_t* line;
  do line = engine_.transport_.poll(engine_.channel_, peer, tick);
  while (!line && --looks_ > 0);
  return line;
}

bool AtOnce::wait(const Step& step) {
  const bool all = step.peer == kAllPeers;
  for (int peer = all ? peer_ : step.peer; peer < (all ? engine_.ranks_ : step.peer + 1); peer++) {
    if (peer == engine_.rank_) continue;
    peer_ = peer;
    if (has_slots_) fetch_ahead(peer);
    const fsccl_transport_line_t* line = await(peer, tick_ + step.tick);
    if (!line || (step.tick == 0 && !enter(peer, *line))) return false;
    if (step.count) copy_inline(at(step.dst), line->payload, step.count);
  }
  peer_ = 0;
  return true;
}

bool AtOnce::fold(const Step& step) {
  const void* const* sources;
  if (step.kind == StepKind::reduce_local) {
    sources = engine_.blocks(at(step.src), step.stride);
  } else {
    for (int q = 0; q < engine_.ranks_; q++) {
      const std::byte* const source = q == engine_.rank_ ? at(step.own) : at(step.src, q);
      if (!source) return step.count == 0;
      engine_.sources_[static_cast<size_t>(q)] = source;
    }
    sources = engine_.sources_.data();
  }
  return reduce(call_.settings->reduction(step, sources, engine_.ranks_, at(step.dst), step.count));
}

void AtOnce::go_on_in_ring() const {
  engine_.fence_slots();
  Operation& op = engine_.place(what_.sequence, *call_.settings, what_);
  op.plan = call_.plan;
  for (size_t i = 0; i < call_.buffers.size(); i++) op.inline_bindings[i].base = call_.buffers[i];
  if (call_.asks) {
    op.foreseen = call_.asks != call_.plan;
    if (op.foreseen) op.otherwise = call_.asks;
    op.unreachable = unreachable_;
    for (uint32_t i = 0; i < op.publishes; i++)
      op.inline_bindings[op.published[i]].location = call_.published[i];
  }
  op.begun = true;
  op.tick = tick_;
  op.step = step_;
  op.peer = peer_;
  engine_.record(recording::Event::submitted, what_, what_.root);
}

Status Engine::run_at_once(const SmallCall& call, fsccl_status_t* state) {
  const uint64_t sequence = tail_.load(std::memory_order_relaxed) + 1;
  AtOnce small(*this, call, sequence);
  bool done = false;
  try {
    done = small.run();
  } catch (const std::bad_alloc&) {
    fail_without_memory();
  }
  if (done) {
    next_tick_ += static_cast<uint32_t>(call.plan->ticks);
    count_completed(call.fingerprint->op);
    if (transport_.rest) transport_.rest(channel_);
  } else {
    small.go_on_in_ring();
  }
  tail_.store(sequence, std::memory_order_release);  // last, see engine.h
  if (!done) [[unlikely]]
    return wait(sequence, -1, state);
  *state = FSCCL_OK;
  return success();
}

}  // namespace fsccl
