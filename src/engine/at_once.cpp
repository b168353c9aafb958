#include "engine/at_once.h"

namespace fsccl {

bool small_enough(const Plan& plan, const OperationSettings& settings) {
  const auto small = [&](const Step& step) {
    switch (step.kind) {
      case StepKind::signal:
      case StepKind::wait:
      case StepKind::reduce_local:
        return true;
      case StepKind::copy:
        return step.src.rank == plan.rank && step.dst.rank == plan.rank && step.count * dtype_size(step.from) <= kInlineBytes;
      default:
        return false;
    }
  };
  return plan.ticks > 0 && plan.rounds == 1 && !plan.relayed && settings.publishes == 0 &&
         plan.buffers.size() <= std::tuple_size_v<decltype(SmallCall::buffers)> &&
         std::all_of(plan.slots.begin(), plan.slots.end(), [](uint64_t bytes) { return bytes == 0; }) &&
         std::all_of(plan.steps.begin(), plan.steps.end(), small);
}

AtOnce::AtOnce(Engine& engine, const SmallCall& call, uint64_t sequence)
    : engine_(engine),
      call_(call),
      what_(*call.fingerprint),
      tick_(engine.next_tick_),
      looks_(engine.options_.oversubscribed ? 1 : Engine::kBarePolls) {
  what_.sequence = sequence;
  what_.history ^= engine.unheard_;
}

bool AtOnce::run() {
  const Plan& plan = *call_.plan;
  if (!engine_.may_begin(tick_ + static_cast<uint32_t>(plan.ticks))) return false;
  engine_.placed_ = tick_;
  for (const auto count = static_cast<uint32_t>(plan.steps.size()); step_ < count; step_++) {
    const Step& step = plan.steps[step_];
    switch (step.kind) {
      case StepKind::signal:
        if (!engine_.leaves_out(step, plan, tick_)) signal(step);
        break;
      case StepKind::wait:
        if (!wait(step)) return false;
        break;
      case StepKind::copy:
        if (at(step.dst) != at(step.src)) copy_inline(at(step.dst), at(step.src), step.count * dtype_size(step.from));
        break;
      default:
        if (!fold(step)) return false;
    }
    if (step_ == 0 && engine_.options_.recorder)  // behind the first signal, since peers wait for that
      engine_.options_.recorder->at_once(engine_.options_.recorded_as, what_);
  }
  return engine_.end_round(plan, tick_, what_);
}

void AtOnce::signal(const Step& step) {
  fsccl_transport_line_t line;
  line.tick = tick_ + step.tick;
  std::memcpy(line.fingerprint, &what_, sizeof line.fingerprint);
  if (step.count) copy_inline(line.payload, at(step.src), step.count);
  engine_.transport_.signal(engine_.channel_, &line);
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
    const fsccl_transport_line_t* line = await(peer, tick_ + step.tick);
    if (!line || (step.tick == 0 && !equal(what_, line->fingerprint))) return false;
    if (step.count) copy_inline(at(step.dst), line->payload, step.count);
  }
  peer_ = 0;
  return true;
}

bool AtOnce::fold(const Step& step) {
  const void* const* sources = engine_.blocks(at(step.src), step.stride);
  return reduce(call_.settings->reduction(step, sources, engine_.ranks_, at(step.dst), step.count));
}

void AtOnce::go_on_in_ring() const {
  Operation& op = engine_.place(what_.sequence, *call_.settings, what_);
  op.plan = call_.plan;
  for (size_t i = 0; i < call_.buffers.size(); i++) op.inline_bindings[i].base = call_.buffers[i];
  op.begun = true;
  op.tick = tick_;
  op.step = step_;
  op.peer = peer_;
  engine_.record(recording::Event::submitted, what_, what_.root);
}

Status Engine::run_at_once(const SmallCall& call, fsccl_status_t* state) {
  const uint64_t sequence = tail_.load(std::memory_order_relaxed) + 1;
  AtOnce small(*this, call, sequence);
  const bool done = small.run();
  if (done)
    next_tick_ += static_cast<uint32_t>(call.plan->ticks);
  else
    small.go_on_in_ring();
  if (done) count_completed(call.fingerprint->op);
  tail_.store(sequence, std::memory_order_release);  // last, see engine.h
  if (!done) [[unlikely]]
    return wait(sequence, -1, state);
  *state = FSCCL_OK;
  return success();
}

}  // namespace fsccl
