// The plan of a call is chosen and made once for each shape, and kept.
#include <algorithm>

#include "base/hash.h"
#include "comm/device/collectives.h"

namespace fsccl {
namespace {

// So many shapes are kept. Uneven ones may never be used again.
constexpr size_t kMostPlans = 1024;

uint64_t hash_of(const DeviceCall& call) {
  uint64_t hash = mix_in_order(static_cast<uint64_t>(call.op), static_cast<uint64_t>(call.dtype));
  hash = mix_in_order(hash, static_cast<uint64_t>(call.reduction.kind));
  hash = mix_in_order(hash, static_cast<uint64_t>(static_cast<int64_t>(call.root)));
  for (const std::vector<CallPart>* parts : {&call.sends, &call.receives})
    for (const CallPart& part : *parts)
      hash = mix_in_order(mix_in_order(hash, part.begin), part.count);
  return hash;
}

bool same_parts(const std::vector<CallPart>& a, const std::vector<CallPart>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); i++)
    if (a[i].begin != b[i].begin || a[i].count != b[i].count) return false;
  return true;
}

bool same_shape(const DeviceCall& a, const DeviceCall& b) {
  return a.op == b.op && a.dtype == b.dtype && a.root == b.root && a.even == b.even &&
         a.reduction.kind == b.reduction.kind && same_parts(a.sends, b.sends) &&
         same_parts(a.receives, b.receives);
}

// Returns the bytes by which the algorithm is chosen. All ranks must choose alike, so the bytes
// follow from what all of them know: they know one part of a gather or a scatter, and nothing of an
// all-to-all with parts of any length.
uint64_t bytes_to_choose_by(const DeviceCall& call, int ranks) {
  constexpr uint64_t kUnknown = 1 << 20;
  if (call.op == OpCode::all_to_all && !call.even) return kUnknown;
  uint64_t send = 0, receive = 0;
  for (const CallPart& part : call.sends) send += part.count;
  for (const CallPart& part : call.receives) receive += part.count;
  if (call.op == OpCode::gather) receive = send * static_cast<uint64_t>(ranks);
  if (call.op == OpCode::scatter) send = receive * static_cast<uint64_t>(ranks);
  return std::max(send, receive) * call.element();
}

}  // namespace

Plan DeviceCollectives::make_plan(const DeviceCall& call, NativeAlgorithm by) const {
  const NativeShape shape{call.op,    comm_.rank(), comm_.size(), std::max(call.root, 0),
                          call.dtype, call.sends,   call.receives};
  NativeMeans means{by};
  means.mover = ucx_ ? NativeAlgorithm::exchanged : NativeAlgorithm::nccl;
  means.host_in_rank_order = one_host_ || decision_.by_placement;
  means.divides = by == NativeAlgorithm::nccl && divides(call);
  return native_plan(shape, means);
}

const DeviceCollectives::Kept& DeviceCollectives::kept(const DeviceCall& call) {
  if (last_ && same_shape(last_->call, call)) [[likely]]
    return *last_;
  const uint64_t hash = hash_of(call);
  for (auto [found, end] = kept_.equal_range(hash); found != end; ++found)
    if (same_shape(found->second.call, call)) return *(last_ = &found->second);
  const NativeAlgorithm algorithm =
      choose_native(native_call(call, bytes_to_choose_by(call, comm_.size())),
                    comm_.collectives().options().select);
  return *(last_ = &kept_.emplace(hash, Kept{call, algorithm, make_plan(call, algorithm)})->second);
}

void DeviceCollectives::forget_plans() {
  last_ = nullptr;
  kept_.clear();
}

Result<std::vector<DeviceCollectives::Planned>> DeviceCollectives::plan_calls(
    std::span<const DeviceCall> calls) {
  if (comm_.engine().failed()) return comm_.engine().failure();
  if (kept_.size() >= kMostPlans) forget_plans();
  std::vector<Planned> planned;
  planned.reserve(calls.size());
  for (const DeviceCall& call : calls) {
    FSCCL_TRY(check_buffers(call));
    planned.push_back({&call, &kept(call)});
  }
  return planned;
}

// Returns a native step of a plan of several steps as a call of its own. It reduces a part for each
// rank, or gathers a part of each rank.
DeviceCall DeviceCollectives::call_of(const Planned& one, const Step& step) const {
  const DeviceCall& call = *one.call;
  const Native& native = one.kept->plan.natives[step.tick];
  if (one.kept->plan.natives.size() == 1) return call;
  const auto by_rank = [&](const std::vector<Native::Part>& from) {
    std::vector<CallPart> parts(static_cast<size_t>(comm_.size()), CallPart{0, 0});
    for (const Native::Part& part : from)
      parts[static_cast<size_t>(part.peer)] = {part.offset / call.element(), part.count};
    return parts;
  };
  const auto first = [&](const std::vector<Native::Part>& from) {
    return from.empty() ? CallPart{0, 0} : CallPart{from[0].offset / call.element(), from[0].count};
  };
  DeviceCall made = call;
  made.even = false;
  made.input = step.src.buffer == 0 ? call.input : call.output;
  if (native.reduces) {
    made.op = OpCode::reduce_scatter;
    made.sends = by_rank(native.sends);
    made.receives = {first(native.receives)};
    return made;
  }
  made.op = OpCode::all_gather;
  const CallPart own = first(native.sends);
  made.input += own.begin * call.element();
  made.sends = {{0, own.count}};
  made.receives = by_rank(native.receives);
  return made;
}

void DeviceCollectives::record(const Planned& one, NativeAlgorithm by) const {
  const EngineOptions& options = comm_.engine().options();
  if (!options.recorder) return;
  const DeviceCall& call = *one.call;
  Fingerprint what;
  what.op = call.op;
  what.dtype = static_cast<uint8_t>(call.dtype);
  what.kind = static_cast<uint8_t>(by);
  what.count = call.sends.empty() ? 0 : call.sends[0].count;
  options.recorder->record(recording::Event::native, options.recorded_as, what, call.root);
}

}  // namespace fsccl
