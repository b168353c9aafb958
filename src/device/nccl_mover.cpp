#include "device/nccl_mover.h"

#include <algorithm>

#include "base/round_up.h"
#include "device/nccl_collectives.h"

namespace fsccl {
namespace {

constexpr uint64_t kAlignment = 256;

void* address(cuda::DevicePointer pointer) { return reinterpret_cast<void*>(pointer); }

}  // namespace

Result<std::unique_ptr<NcclMover>> NcclMover::create(Request request) {
  std::unique_ptr<NcclMover> made(new NcclMover(std::move(request)));
  DeviceCollectives& on = made->on();
  FSCCL_TRY(on.prepare(made->request_.ordinal));
  if (!on.nccl()) return fail(FSCCL_ERR_NOT_AVAILABLE, "NCCL does not move bytes here (fsccl_explain says why)");
  if (!on.has_kernels())
    return fail(FSCCL_ERR_NOT_AVAILABLE, "some rank's library has no kernels for its GPU, which sum a unit's gradients");
  FSCCL_ASSIGN(made->kernels_, cuda::DeviceKernels::of(on.device()));
  made->gather_way_ = made->way_of(made->request_.parameters);
  const Way gradients = made->way_of(made->request_.gradients);
  made->reduce_way_ = gradients == Way::in_place ? Way::each : gradients;
  made->parameters_ = made->place(made->request_.parameters, true);
  made->gradients_ = made->place(made->request_.gradients, false);
  FSCCL_TRY(made->allocate());
  FSCCL_TRY(made->make_tables());
  return made;
}

Status NcclMover::use_window(uint64_t first_bytes) {
  if (gather_way_ != Way::in_place || asked_for_window_ || !first_bytes) return success();
  asked_for_window_ = true;
  return on().open_window(request_.slots, first_bytes);
}

NcclMover::~NcclMover() {
  if (asked_for_window_) on().close_window(request_.slots);
  if (!packed_) return;
  const cuda::Current current(on().device());
  (void)on().device().driver().free(packed_);  // waits for what uses it
}

NcclMover::Way NcclMover::way_of(const std::vector<Piece>& pieces) const {
  uint64_t bytes = 0;
  bool in_place = pieces.size() == static_cast<size_t>(ranks());
  for (size_t i = 0; i < pieces.size(); i++) {
    in_place = in_place && pieces[i].rank == static_cast<int>(i) && pieces[i].bytes() == pieces[0].bytes() &&
               pieces[i].offset == pieces[0].offset + i * pieces[0].bytes();
    bytes += pieces[i].bytes();
  }
  if (in_place) return Way::in_place;
  return pieces.empty() || bytes / pieces.size() >= kLargePiece ? Way::each : Way::packed;
}

NcclMover::Packing NcclMover::place(const std::vector<Piece>& pieces, bool equal_parts) const {
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
  for (size_t i = 0; i < pieces.size(); i++) made.offsets[i] += made.begins[static_cast<size_t>(pieces[i].rank)];
  return made;
}

uint64_t NcclMover::own_gradient_bytes() const {
  const auto self = static_cast<size_t>(rank());
  return gradients_.begins[self + 1] - gradients_.begins[self];
}

Status NcclMover::allocate() {
  const cuda::Current current(on().device());
  const uint64_t packed = gather_way_ == Way::packed ? parameters_.begins.back() : 0;
  const uint64_t sent = reduce_way_ == Way::packed ? gradients_.begins.back() : 0;
  const uint64_t received = own_gradient_bytes() * static_cast<uint64_t>(ranks());
  if (packed + sent + received == 0) return success();
  FSCCL_TRY(on().device().check("cuMemAlloc", on().device().driver().allocate(&packed_, packed + sent + received)));
  sent_ = packed_ + packed;
  received_ = sent_ + sent;
  return success();
}

Status NcclMover::make_tables() {
  const cuda::Current current(on().device());
  std::vector<cuda::CastPiece> in, out, sends;
  for (size_t i = 0; i < request_.parameters.size() && gather_way_ == Way::packed; i++) {
    const Piece& piece = request_.parameters[i];
    const uint64_t packed = parameters_.offsets[i];
    if (piece.rank == rank())
      in.push_back({piece.offset, packed, piece.count, piece.dtype, piece.dtype});
    else
      out.push_back({packed, piece.offset, piece.count, piece.dtype, piece.dtype});
  }
  for (size_t i = 0; i < request_.gradients.size() && reduce_way_ == Way::packed; i++) {
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

Status NcclMover::place_sums(const std::vector<Sum>& sums) {
  const cuda::Current current(on().device());
  std::vector<cuda::ReducePiece> pieces;
  for (size_t i = 0, own = 0; i < request_.gradients.size(); i++) {
    const Piece& piece = request_.gradients[i];
    if (piece.rank != rank()) continue;
    if (own == sums.size()) return fail(FSCCL_ERR_INTERNAL, "{} places for more sums", sums.size());
    pieces.push_back({gradients_.offsets[i] - gradients_.begins[static_cast<size_t>(rank())], sums[own].destination, piece.count,
                      piece.dtype, sums[own].dtype});
    own++;
  }
  sums_.reset();
  if (pieces.empty()) return success();
  FSCCL_ASSIGN(sums_, kernels_->make_reduces(pieces, ranks()));
  return success();
}

const char* NcclMover::gathers_by() const {
  if (gather_way_ == Way::packed) return "packed, one all-gather, unpacked";
  if (gather_way_ == Way::each) return "a broadcast of each piece";
  return on().gathers_by_copy_engines() ? "one all-gather in place, by copy engines" : "one all-gather in place";
}

Status NcclMover::gather(uint64_t slot, cuda::Stream stream) {
  const cuda::Current current(on().device());
  const cuda::DevicePointer base = request_.slots + slot;
  if (request_.parameters.empty()) return success();
  if (gather_way_ == Way::packed) {
    FSCCL_TRY(gather_packed(base, stream));
  } else if (gather_way_ == Way::each) {
    FSCCL_TRY(broadcast_each(base, stream));
  } else {
    nccl::Communicator& by = on().gatherer();
    const uint64_t bytes = request_.parameters[0].bytes();
    const cuda::DevicePointer whole = base + request_.parameters[0].offset;
    // NCCL looks where a buffer begins, and takes the window for all of it: so no gather that it has windows for leaves one.
    const uint64_t all = bytes * static_cast<uint64_t>(ranks());
    if (by.touches_window(address(whole), all) && !by.in_window(address(whole), all)) {
      FSCCL_TRY(broadcast_each(base, stream));
      return on().follow(stream);
    }
    FSCCL_TRY(by.group([&] {
      return by.check("ncclAllGather", by.library().all_gather(address(whole + static_cast<uint64_t>(rank()) * bytes),
                                                               address(whole), bytes, nccl::Type::uint8, by.handle(), stream));
    }));
  }
  return on().follow(stream);
}

Status NcclMover::gather_packed(cuda::DevicePointer slot, cuda::Stream stream) {
  nccl::Communicator& by = *on().nccl();
  if (parameters_.pack) FSCCL_TRY(kernels_->cast(*parameters_.pack, slot, packed_, stream));
  const uint64_t part = parameters_.begins[1];
  FSCCL_TRY(by.group([&] {
    return by.check("ncclAllGather", by.library().all_gather(address(packed_ + static_cast<uint64_t>(rank()) * part),
                                                             address(packed_), part, nccl::Type::uint8, by.handle(), stream));
  }));
  return parameters_.unpack ? kernels_->cast(*parameters_.unpack, packed_, slot, stream) : success();
}

Status NcclMover::broadcast_each(cuda::DevicePointer slot, cuda::Stream stream) {
  nccl::Communicator& by = *on().nccl();
  return by.group([&] {
    for (const Piece& piece : request_.parameters) {
      void* const place = address(slot + piece.offset);
      if (piece.count)
        FSCCL_TRY(by.check("ncclBroadcast", by.library().broadcast(place, place, piece.bytes(), nccl::Type::uint8, piece.rank,
                                                                   by.handle(), stream)));
    }
    return success();
  });
}

Status NcclMover::reduce(uint64_t slot, const cuda::ReduceEpilogue& epilogue, cuda::DevicePointer norm, cuda::Stream stream) {
  const cuda::Current current(on().device());
  FSCCL_TRY(reduce_way_ == Way::packed ? send_packed(request_.slots + slot, stream) : send_each(request_.slots + slot, stream));
  FSCCL_TRY(on().follow(stream));
  if (!sums_) return success();
  std::vector<cuda::DevicePointer> bases;
  for (int q = 0; q < ranks(); q++) bases.push_back(received_ + static_cast<uint64_t>(q) * own_gradient_bytes());
  return kernels_->reduce(*sums_, bases.data(), epilogue, norm, stream);
}

// Pieces of a pair of ranks are sent and received in one order.
Status NcclMover::send_each(cuda::DevicePointer slot, cuda::Stream stream) {
  nccl::Communicator& by = *on().nccl();
  const uint64_t begin = gradients_.begins[static_cast<size_t>(rank())];
  return by.group([&] {
    for (size_t i = 0; i < request_.gradients.size(); i++) {
      const Piece& piece = request_.gradients[i];
      if (!piece.count) continue;
      FSCCL_TRY(by.check("ncclSend", by.library().send(address(slot + piece.offset), piece.bytes(), nccl::Type::uint8, piece.rank,
                                                       by.handle(), stream)));
      for (int q = 0; q < ranks() && piece.rank == rank(); q++) {
        const cuda::DevicePointer to = received_ + static_cast<uint64_t>(q) * own_gradient_bytes() + gradients_.offsets[i] - begin;
        FSCCL_TRY(by.check("ncclRecv", by.library().recv(address(to), piece.bytes(), nccl::Type::uint8, q, by.handle(), stream)));
      }
    }
    return success();
  });
}

Status NcclMover::send_packed(cuda::DevicePointer slot, cuda::Stream stream) {
  nccl::Communicator& by = *on().nccl();
  if (gradients_.pack) FSCCL_TRY(kernels_->cast(*gradients_.pack, slot, sent_, stream));
  DeviceCall parts;
  parts.op = OpCode::all_to_all;
  parts.stream = stream;
  parts.input = reinterpret_cast<const std::byte*>(sent_);
  parts.output = reinterpret_cast<std::byte*>(received_);
  for (size_t q = 0; q < static_cast<size_t>(ranks()); q++) {
    parts.sends.push_back({gradients_.begins[q], gradients_.begins[q + 1] - gradients_.begins[q]});
    parts.receives.push_back({q * own_gradient_bytes(), own_gradient_bytes()});
  }
  return by.group([&] { return enqueue_exchange(by, parts); });
}

}  // namespace fsccl
