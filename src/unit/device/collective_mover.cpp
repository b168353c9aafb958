#include "unit/device/collective_mover.h"

#include <algorithm>

#include "base/log.h"
#include "base/round_up.h"

namespace fsccl {
namespace {

constexpr uint64_t kAlignment = 256;

std::byte* address(cuda::CUdeviceptr pointer) { return reinterpret_cast<std::byte*>(pointer); }

}  // namespace

Result<std::unique_ptr<CollectiveMover>> CollectiveMover::create(Request request) {
  std::unique_ptr<CollectiveMover> made(new CollectiveMover(std::move(request)));
  DeviceCollectives& on = made->on();
  FSCCL_TRY(on.prepare(made->request_.ordinal));
  if (!on.has_kernels())
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "some rank's library has no kernels for its GPU, which sum a unit's gradients");
  FSCCL_ASSIGN(made->kernels_, cuda::DeviceKernels::of(on.device()));
  made->gather_transfer_ = made->transfer_of(made->request_.parameters);
  const Transfer gradients = made->transfer_of(made->request_.gradients);
  made->reduce_transfer_ = gradients == Transfer::in_place ? Transfer::each : gradients;
  made->parameters_ = made->place(made->request_.parameters, true);
  made->gradients_ = made->place(made->request_.gradients, false);
  FSCCL_TRY(made->allocate());
  FSCCL_TRY(made->make_tables());
  made->make_calls();
  if (on.staged() && config()->device_transport == DeviceTransport::kAuto)
    FSCCL_LOG_ONCE(kWarn,
                   "units on GPUs go through memory of the host, for neither peer-to-peer access "
                   "nor NCCL nor UCX can move them: "
                   "fsccl_explain says why not");
  return made;
}

Status CollectiveMover::use_window(uint64_t first_bytes) {
  if (gather_transfer_ != Transfer::in_place || asked_for_window_ || !first_bytes) return success();
  asked_for_window_ = true;
  return on().open_window(request_.slots, first_bytes);
}

CollectiveMover::~CollectiveMover() {
  if (asked_for_window_) on().close_window(request_.slots);
  if (!packed_) return;
  const cuda::Current current(on().device());
  (void)on().device().driver().cuMemFree(packed_);  // waits for work that uses it
}

CollectiveMover::Transfer CollectiveMover::transfer_of(const std::vector<Piece>& pieces) const {
  uint64_t bytes = 0;
  bool in_place = pieces.size() == static_cast<size_t>(ranks());
  for (size_t i = 0; i < pieces.size(); i++) {
    in_place = in_place && pieces[i].rank == static_cast<int>(i) &&
               pieces[i].bytes() == pieces[0].bytes() &&
               pieces[i].offset == pieces[0].offset + i * pieces[0].bytes();
    bytes += pieces[i].bytes();
  }
  if (in_place) return Transfer::in_place;
  return pieces.empty() || bytes / pieces.size() >= kLargePiece ? Transfer::each : Transfer::packed;
}

CollectiveMover::Packing CollectiveMover::place(const std::vector<Piece>& pieces,
                                                bool equal_parts) const {
  Packing made;
  std::vector<uint64_t> sizes(static_cast<size_t>(ranks()));
  for (const Piece& piece : pieces) {
    uint64_t& size = sizes[static_cast<size_t>(piece.rank)];
    made.offsets.push_back(size);
    size = round_up(size + piece.bytes(), kAlignment);
  }
  const uint64_t largest = *std::max_element(sizes.begin(), sizes.end());
  uint64_t end = 0;
  for (const uint64_t size : sizes) {
    made.begins.push_back(end);
    end += equal_parts ? largest : size;
  }
  made.begins.push_back(end);
  for (size_t i = 0; i < pieces.size(); i++)
    made.offsets[i] += made.begins[static_cast<size_t>(pieces[i].rank)];
  return made;
}

uint64_t CollectiveMover::parameter_bytes() const {
  return request_.parameters[0].bytes() * static_cast<uint64_t>(ranks());
}

uint64_t CollectiveMover::own_gradient_bytes() const {
  const auto self = static_cast<size_t>(rank());
  return gradients_.begins[self + 1] - gradients_.begins[self];
}

Status CollectiveMover::allocate() {
  const cuda::Current current(on().device());
  const uint64_t packed = gather_transfer_ == Transfer::packed ? parameters_.begins.back() : 0;
  const uint64_t sent = reduce_transfer_ == Transfer::packed ? gradients_.begins.back() : 0;
  const uint64_t received = own_gradient_bytes() * static_cast<uint64_t>(ranks());
  if (packed + sent + received == 0) return success();
  FSCCL_TRY(on().device().check(
      "cuMemAlloc", on().device().driver().cuMemAlloc(&packed_, packed + sent + received)));
  sent_ = packed_ + packed;
  received_ = sent_ + sent;
  return success();
}

Status CollectiveMover::make_tables() {
  const cuda::Current current(on().device());
  std::vector<cuda::CastRange> in, out, sends;
  for (size_t i = 0; i < request_.parameters.size() && gather_transfer_ == Transfer::packed; i++) {
    const Piece& piece = request_.parameters[i];
    const uint64_t packed = parameters_.offsets[i];
    if (piece.rank == rank())
      in.push_back({piece.offset, packed, piece.count, piece.dtype, piece.dtype});
    else
      out.push_back({packed, piece.offset, piece.count, piece.dtype, piece.dtype});
  }
  for (size_t i = 0; i < request_.gradients.size() && reduce_transfer_ == Transfer::packed; i++) {
    const Piece& piece = request_.gradients[i];
    sends.push_back({piece.offset, gradients_.offsets[i], piece.count, piece.dtype, piece.dtype});
  }
  if (!in.empty()) {
    FSCCL_ASSIGN(parameters_.pack, kernels_->make_casts(in, cuda::CastBase::both));
  }
  if (!out.empty()) {
    FSCCL_ASSIGN(parameters_.unpack, kernels_->make_casts(out, cuda::CastBase::both));
  }
  if (!sends.empty()) {
    FSCCL_ASSIGN(gradients_.pack, kernels_->make_casts(sends, cuda::CastBase::both));
  }
  return success();
}

Status CollectiveMover::place_sums(const std::vector<Sum>& sums) {
  const cuda::Current current(on().device());
  std::vector<cuda::ReduceRange> pieces;
  for (size_t i = 0, own = 0; i < request_.gradients.size(); i++) {
    const Piece& piece = request_.gradients[i];
    if (piece.rank != rank()) continue;
    if (own == sums.size()) return fail(FSCCL_ERR_INTERNAL, "{} places for more sums", sums.size());
    pieces.push_back({gradients_.offsets[i] - gradients_.begins[static_cast<size_t>(rank())],
                      sums[own].destination, piece.count, piece.dtype, sums[own].dtype});
    own++;
  }
  sums_.reset();
  if (pieces.empty()) return success();
  FSCCL_ASSIGN(sums_, kernels_->make_reduces(pieces, ranks()));
  return success();
}

const char* CollectiveMover::gathers_by() const {
  if (gather_transfer_ == Transfer::packed) return "packed, one all-gather, unpacked";
  if (gather_transfer_ == Transfer::each) return "a broadcast of each piece";
  return on().gathers_by_copy_engines() ? "one all-gather in place, by copy engines"
                                        : "one all-gather in place";
}

// Makes all parts of the calls but the address of the slot, which changes from call to call.
void CollectiveMover::make_calls() {
  const auto count = static_cast<size_t>(ranks());
  const auto self = static_cast<size_t>(rank());
  gather_call_.op = OpCode::all_gather;
  if (gather_transfer_ == Transfer::packed || gather_transfer_ == Transfer::in_place) {
    const uint64_t part = gather_transfer_ == Transfer::packed ? parameters_.begins[1]
                                                               : request_.parameters[0].bytes();
    gather_call_.sends = {{0, part}};
    for (size_t q = 0; q < count; q++) gather_call_.receives.push_back({q * part, part});
  }
  for (const Piece& piece : request_.parameters) {
    DeviceCall& call = broadcasts_.emplace_back();
    call.op = OpCode::broadcast;
    call.root = piece.rank;
    (piece.rank == rank() ? call.sends : call.receives) = {{0, piece.bytes()}};
  }
  // The pieces of a pair of ranks are sent and received in the same order.
  for (size_t i = 0; i < request_.gradients.size(); i++) {
    const Piece& piece = request_.gradients[i];
    DeviceCall& call = gathers_.emplace_back();
    call.op = OpCode::gather;
    call.root = piece.rank;
    call.sends = {{0, piece.bytes()}};
    call.output = address(received_);
    for (size_t q = 0; q < count && piece.rank == rank(); q++)
      call.receives.push_back(
          {q * own_gradient_bytes() + gradients_.offsets[i] - gradients_.begins[self],
           piece.bytes()});
  }
  exchange_.op = OpCode::all_to_all;
  exchange_.even = false;
  exchange_.input = address(sent_);
  exchange_.output = address(received_);
  for (size_t q = 0; q < count; q++) {
    exchange_.sends.push_back(
        {gradients_.begins[q], gradients_.begins[q + 1] - gradients_.begins[q]});
    exchange_.receives.push_back({q * own_gradient_bytes(), own_gradient_bytes()});
  }
}

Status CollectiveMover::gather(uint64_t slot, cuda::CUstream stream) {
  const cuda::Current current(on().device());
  const cuda::CUdeviceptr base = request_.slots + slot;
  if (request_.parameters.empty()) return success();
  gather_call_.stream = stream;
  if (gather_transfer_ == Transfer::packed) {
    if (parameters_.pack) FSCCL_TRY(kernels_->cast(*parameters_.pack, base, packed_, stream));
    gather_call_.output = address(packed_);
    gather_call_.input = gather_call_.to(static_cast<size_t>(rank()));
    FSCCL_TRY(on().run(std::span(&gather_call_, 1)));
    return parameters_.unpack ? kernels_->cast(*parameters_.unpack, packed_, base, stream)
                              : success();
  }
  std::byte* const first = address(base + request_.parameters[0].offset);
  if (gather_transfer_ == Transfer::in_place &&
      on().can_gather_in_place(first, parameter_bytes())) {
    gather_call_.output = first;
    gather_call_.input = gather_call_.to(static_cast<size_t>(rank()));
    return on().gather_in_place(gather_call_);
  }
  for (size_t i = 0; i < broadcasts_.size(); i++) {
    broadcasts_[i].stream = stream;
    broadcasts_[i].output = address(base + request_.parameters[i].offset);
    broadcasts_[i].input = broadcasts_[i].output;
  }
  return on().run(broadcasts_);
}

Status CollectiveMover::reduce(uint64_t slot, const cuda::ReduceEpilogue& epilogue,
                               cuda::CUdeviceptr norm, cuda::CUstream stream) {
  const cuda::Current current(on().device());
  const cuda::CUdeviceptr base = request_.slots + slot;
  if (reduce_transfer_ == Transfer::packed) {
    if (gradients_.pack) FSCCL_TRY(kernels_->cast(*gradients_.pack, base, sent_, stream));
    exchange_.stream = stream;
    FSCCL_TRY(on().run(std::span(&exchange_, 1)));
  } else {
    for (size_t i = 0; i < gathers_.size(); i++) {
      gathers_[i].stream = stream;
      gathers_[i].input = address(base + request_.gradients[i].offset);
    }
    FSCCL_TRY(on().run(gathers_));
  }
  if (!sums_) return success();
  std::vector<cuda::CUdeviceptr> bases;
  for (int q = 0; q < ranks(); q++)
    bases.push_back(received_ + static_cast<uint64_t>(q) * own_gradient_bytes());
  return kernels_->reduce(*sums_, bases.data(), epilogue, norm, stream);
}

}  // namespace fsccl
