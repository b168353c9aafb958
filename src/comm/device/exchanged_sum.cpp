#include "comm/device/exchanged_sum.h"

#include <algorithm>
#include <array>

#include "comm/device/drain.h"

namespace fsccl {
namespace {

// The size of all ranks' pieces of one half. An exchange of so much takes far longer than its
// launch.
constexpr uint64_t kSumHalfBytes = 64u << 20;
constexpr uint64_t kLargestPiece = 8u << 20, kPieceAlignment = 256;
constexpr size_t kMostTables = 64;

}  // namespace

bool can_sum_exchanged(const DeviceCall& call) {
  const int kind = call.reduction.kind;
  return dtype_float(call.dtype) &&
         (kind == FSCCL_OP_SUM || kind == FSCCL_OP_AVG || kind == FSCCL_OP_PREMUL_SUM);
}

cuda::ReduceEpilogue epilogue_of(const DeviceCall& call, int ranks) {
  cuda::ReduceEpilogue epilogue;
  if (call.reduction.kind == FSCCL_OP_AVG) epilogue.divisor = ranks;
  if (call.reduction.kind == FSCCL_OP_PREMUL_SUM) epilogue.scale = call.reduction.scale;
  return epilogue;
}

Result<std::unique_ptr<ExchangedSum>> ExchangedSum::create(Request request) {
  const cuda::Device& device = request.device;
  const auto ranks = static_cast<uint64_t>(request.ranks);
  std::unique_ptr<ExchangedSum> made(new ExchangedSum(std::move(request)));
  FSCCL_ASSIGN(made->kernels_, cuda::DeviceKernels::of(device));
  const cuda::Current current(device);
  made->piece_bytes_ = std::clamp(kSumHalfBytes / ranks / kPieceAlignment * kPieceAlignment,
                                  kPieceAlignment, kLargestPiece);
  const cuda::Driver& driver = device.driver();
  const uint64_t half_bytes = made->piece_bytes_ * ranks;
  FSCCL_TRY(device.check("cuMemAlloc",
                         driver.cuMemAlloc(&made->scratch_, 2 * half_bytes + made->piece_bytes_)));
  made->result_ = made->scratch_ + 2 * half_bytes;
  FSCCL_ASSIGN(made->side_, cuda::OwnedStream::create(device));
  for (uint64_t half = 0; half < 2; half++) {
    FSCCL_ASSIGN(cuda::OwnedEvent exchanged, cuda::OwnedEvent::create(device));
    FSCCL_ASSIGN(cuda::OwnedEvent summed, cuda::OwnedEvent::create(device));
    made->halves_.push_back(
        {made->scratch_ + half * half_bytes, std::move(exchanged), std::move(summed)});
  }
  return made;
}

ExchangedSum::~ExchangedSum() {
  const cuda::Current current(request_.device);
  const cuda::Driver& driver = request_.device.driver();
  // A stream that does not end in time may still use the scratch memory, which is then left to it.
  const bool over = !side_ || side_->finish(Deadline::in_ms(kDrainMs)).code() != FSCCL_ERR_TIMEOUT;
  if (scratch_ && over) (void)driver.cuMemFree(scratch_);  // waits for what uses it
}

Result<const cuda::ReduceTable*> ExchangedSum::table(fsccl_dtype_t dtype, uint64_t count) {
  const auto found = tables_.find({dtype, count});
  if (found != tables_.end()) return found->second.get();
  // If lengths change all the time, the tables are made anew when none is in use.
  if (tables_.size() >= kMostTables) {
    FSCCL_TRY(side_->finish(Deadline::never(), request_.broken));
    tables_.clear();
  }
  FSCCL_ASSIGN(auto made,
               kernels_->make_reduces({{0, result_, count, dtype, dtype}}, request_.ranks));
  return tables_.emplace(std::pair(dtype, count), std::move(made)).first->second.get();
}

Status ExchangedSum::exchange(const DeviceCall& call, uint64_t begin, uint64_t count,
                              const Half& half, Chain& chain) {
  DeviceCall pieces;
  pieces.op = OpCode::all_to_all;
  pieces.even = false;
  pieces.dtype = call.dtype;
  pieces.stream = call.stream;
  pieces.input = call.input;
  pieces.output = reinterpret_cast<std::byte*>(half.memory);
  for (int q = 0; q < request_.ranks; q++) {
    const CallPart& part = call.sends[static_cast<size_t>(q)];
    pieces.sends.push_back(
        {part.begin + begin, part.count <= begin ? 0 : std::min(part.count - begin, count)});
    const uint64_t mine = call.receives[0].count;
    pieces.receives.push_back({static_cast<uint64_t>(q) * (piece_bytes_ / call.element()),
                               mine <= begin ? 0 : std::min(mine - begin, count)});
  }
  FSCCL_TRY(half.summed.make_wait(call.stream));  // the former content must have been summed
  chain.begin();  // peers count on this exchange and on all that follow
  FSCCL_TRY(request_.exchange(pieces));
  return half.exchanged.record(call.stream);
}

Status ExchangedSum::sum(const DeviceCall& call, uint64_t begin, uint64_t count, const Half& half,
                         const cuda::ReduceEpilogue& epilogue) {
  const cuda::Device& device = request_.device;
  FSCCL_TRY(half.exchanged.make_wait(side_->get()));
  const uint64_t mine = call.receives[0].count,
                 received = mine <= begin ? 0 : std::min(mine - begin, count);
  if (received) {
    FSCCL_ASSIGN(const cuda::ReduceTable* reduces, table(call.dtype, received));
    std::vector<cuda::CUdeviceptr> bases;
    for (int q = 0; q < request_.ranks; q++)
      bases.push_back(half.memory + static_cast<uint64_t>(q) * piece_bytes_);
    FSCCL_TRY(kernels_->reduce(*reduces, bases.data(), epilogue, 0, side_->get()));
    const auto to = reinterpret_cast<cuda::CUdeviceptr>(
        call.output + (call.receives[0].begin + begin) * call.element());
    FSCCL_TRY(device.check(
        "cuMemcpyAsync",
        device.driver().cuMemcpyAsync(to, result_, received * call.element(), side_->get())));
  }
  return half.summed.record(side_->get());
}

Status ExchangedSum::reduce_scatter(const DeviceCall& call, const cuda::ReduceEpilogue& epilogue) {
  const uint64_t piece = piece_bytes_ / call.element();
  uint64_t longest = 0;
  for (const CallPart& part : call.sends) longest = std::max(longest, part.count);
  Chain chain;
  return chain.run(std::array{&request_.engine}, [&]() -> Status {
    // The result is written on the other stream, after what the caller's stream was given so far.
    size_t turn = 0;
    for (uint64_t begin = 0; begin < longest; begin += piece, turn++) {
      FSCCL_TRY(exchange(call, begin, piece, halves_[turn % 2], chain));
      FSCCL_TRY(sum(call, begin, piece, halves_[turn % 2], epilogue));
    }
    for (size_t half = 0; half < std::min<size_t>(turn, 2); half++)
      FSCCL_TRY(halves_[half].summed.make_wait(call.stream));
    return success();
  });
}

}  // namespace fsccl
