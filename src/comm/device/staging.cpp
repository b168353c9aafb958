#include "comm/device/staging.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "comm/device/drain.h"

namespace fsccl {
namespace {

// The bytes of a half. It is so large that a piece takes longer than its start, and so small that
// pinning it takes little time.
constexpr uint64_t kHalfBytes = 4u << 20;
constexpr size_t kPage = 4096;

// Returns the elements of a part that lie in [begin, begin + count) of every part.
uint64_t clip(const CallPart& part, uint64_t begin, uint64_t count) {
  return part.count <= begin ? 0 : std::min(part.count - begin, count);
}

uint64_t longest(const std::vector<CallPart>& parts) {
  uint64_t most = 0;
  for (const CallPart& part : parts) most = std::max(most, part.count);
  return most;
}

bool by_parts(OpCode op) {
  return op == OpCode::all_gather || op == OpCode::reduce_scatter || op == OpCode::gather ||
         op == OpCode::scatter || op == OpCode::all_to_all;
}

std::vector<size_t> clipped(const std::vector<CallPart>& parts, uint64_t begin, uint64_t count) {
  std::vector<size_t> counts;
  for (const CallPart& part : parts) counts.push_back(clip(part, begin, count));
  return counts;
}

std::vector<size_t> ends_before(const std::vector<size_t>& counts) {
  std::vector<size_t> begins;
  size_t end = 0;
  for (const size_t count : counts) {
    begins.push_back(end);
    end += count;
  }
  return begins;
}

}  // namespace

Result<std::unique_ptr<Staging>> Staging::create(Communicator& comm, const cuda::Device& device) {
  std::unique_ptr<Staging> made(new Staging(comm, device));
  const cuda::Current current(device);
  void* const memory = std::aligned_alloc(kPage, 2 * kHalfBytes);
  if (!memory)
    return fail(FSCCL_ERR_OUT_OF_MEMORY, "no {} bytes to stage device memory in", 2 * kHalfBytes);
  if (const cuda::CUresult code = device.driver().cuMemHostRegister(
          memory, 2 * kHalfBytes, cuda::CU_MEMHOSTREGISTER_PORTABLE);
      code != cuda::CUDA_SUCCESS) {
    std::free(memory);
    return device.check("cuMemHostRegister", code);
  }
  made->memory_ = static_cast<std::byte*>(memory);
  for (size_t half = 0; half < 2; half++) {
    FSCCL_ASSIGN(cuda::OwnedEvent in, cuda::OwnedEvent::create(device));
    FSCCL_ASSIGN(cuda::OwnedEvent out, cuda::OwnedEvent::create(device));
    made->halves_.push_back({made->memory_ + half * kHalfBytes, std::move(in), std::move(out)});
  }
  return made;
}

Staging::~Staging() {
  if (!memory_) return;
  const cuda::Current current(device_);
  // Streams that do not end in time may still use the memory, which is then left to them.
  const Deadline deadline = Deadline::in_ms(kDrainMs);
  for (const Half& half : halves_)
    for (const cuda::OwnedEvent* event : {&half.copied_in, &half.copied_out})
      if (event->finish(deadline).code() == FSCCL_ERR_TIMEOUT) return;
  (void)device_.driver().cuMemHostUnregister(memory_);
  std::free(memory_);
}

// All ranks have the same number of rounds. Only all_to_all_v has counts that other ranks do not
// know.
Result<uint64_t> Staging::longest_part(const DeviceCall& call, Chain& chain) {
  uint64_t mine = std::max(longest(call.sends), longest(call.receives));
  if (call.op != OpCode::all_to_all || call.even) return mine;
  CollectiveCall most;
  most.op = OpCode::all_reduce;
  most.input = most.output = &mine;
  most.count = 1;
  most.dtype = FSCCL_UINT64;
  most.reduction = FSCCL_MAX;
  fsccl_status_t state = FSCCL_OK;
  FSCCL_TRY(comm_.run(most, true, &state));
  chain.begin();
  return mine;
}

std::byte* Staging::results(const DeviceCall& call, const Round& round, Half& half) const {
  uint64_t sent = 0;
  for (const CallPart& part : call.sends) sent += clip(part, round.begin, round.count);
  if (call.op == OpCode::broadcast || call.op == OpCode::send) return half.memory;
  return half.memory + (sent * call.element() + 63) / 64 * 64;
}

Status Staging::begin(const DeviceCall& call, const Round& round, Half& half) {
  const cuda::Driver& driver = device_.driver();
  // The last copy out of this half may be on another stream.
  FSCCL_TRY(half.copied_out.make_wait(call.stream));
  std::byte* to = half.memory;
  for (const CallPart& part : call.sends) {
    const uint64_t bytes = clip(part, round.begin, round.count) * call.element();
    if (!bytes) continue;
    const std::byte* const from = call.input + (part.begin + round.begin) * call.element();
    FSCCL_TRY(device_.check(
        "cuMemcpyAsync",
        driver.cuMemcpyAsync(reinterpret_cast<cuda::CUdeviceptr>(to),
                             reinterpret_cast<cuda::CUdeviceptr>(from), bytes, call.stream)));
    to += bytes;
  }
  return half.copied_in.record(call.stream);
}

Status Staging::move(const DeviceCall& call, const Round& round, Half& half) {
  FSCCL_TRY(half.copied_in.finish(comm_.deadline(), [this] { return comm_.engine().intact(); }));
  CollectiveCall host;
  host.op = call.op;
  host.input = half.memory;
  host.output = results(call, round, half);
  host.count = round.count;
  host.dtype = call.dtype;
  host.reduction = call.reduction;
  host.root = call.root;
  host.tag = call.tag;
  fsccl_status_t state = FSCCL_OK;
  const std::vector<size_t> sent = clipped(call.sends, round.begin, round.count),
                            received = clipped(call.receives, round.begin, round.count);
  if (call.even || !by_parts(call.op)) return comm_.run(host, true, &state);
  const std::vector<size_t> sent_from = ends_before(sent), received_to = ends_before(received);
  if (call.op == OpCode::all_to_all) {
    host.op = OpCode::all_to_all_v;
    host.counts = sent.data();
    host.displacements = sent_from.data();
    host.recv_counts = received.data();
    host.recv_displacements = received_to.data();
    return comm_.run(host, true, &state);
  }
  host.op = call.op == OpCode::all_gather ? OpCode::all_gather_v : OpCode::reduce_scatter_v;
  host.counts = call.op == OpCode::all_gather ? received.data() : sent.data();
  return comm_.run(host, true, &state);
}

Status Staging::finish(const DeviceCall& call, const Round& round, Half& half) {
  const cuda::Driver& driver = device_.driver();
  const std::byte* from = results(call, round, half);
  for (const CallPart& part : call.receives) {
    const uint64_t bytes = clip(part, round.begin, round.count) * call.element();
    if (!bytes) continue;
    std::byte* const to = call.output + (part.begin + round.begin) * call.element();
    FSCCL_TRY(device_.check(
        "cuMemcpyAsync",
        driver.cuMemcpyAsync(reinterpret_cast<cuda::CUdeviceptr>(to),
                             reinterpret_cast<cuda::CUdeviceptr>(from), bytes, call.stream)));
    from += bytes;
  }
  return half.copied_out.record(call.stream);
}

Status Staging::run(const DeviceCall& call) {
  const cuda::Current current(device_);
  if (call.op == OpCode::barrier) {
    const cuda::OwnedEvent& passed = halves_[0].copied_in;
    FSCCL_TRY(passed.record(call.stream));
    FSCCL_TRY(passed.finish(comm_.deadline(), [this] { return comm_.engine().intact(); }));
    fsccl_status_t state = FSCCL_OK;
    return comm_.run(CollectiveCall{}, true, &state);
  }
  Chain chain;
  return chain.run(std::array{&comm_.engine()}, [&]() -> Status {
    FSCCL_ASSIGN(const uint64_t whole, longest_part(call, chain));
    return run_rounds(call, whole, chain);
  });
}

Status Staging::run_rounds(const DeviceCall& call, uint64_t whole, Chain& chain) {
  // The result is the same on all ranks, whatever parts each of them has.
  const uint64_t parts = by_parts(call.op) ? 2 * static_cast<uint64_t>(comm_.size()) : 2;
  const uint64_t most = std::max<uint64_t>(1, (kHalfBytes - 64) / call.element() / parts);
  const auto round = [&](uint64_t number) {
    return Round{number * most, std::min(most, whole - number * most)};
  };
  const uint64_t rounds = (whole + most - 1) / most;
  if (rounds) FSCCL_TRY(begin(call, round(0), halves_[0]));
  for (uint64_t k = 0; k < rounds; k++) {
    if (k + 1 < rounds) FSCCL_TRY(begin(call, round(k + 1), halves_[(k + 1) % 2]));
    FSCCL_TRY(move(call, round(k), halves_[k % 2]));
    chain.begin();
    FSCCL_TRY(finish(call, round(k), halves_[k % 2]));
  }
  return success();
}

}  // namespace fsccl
