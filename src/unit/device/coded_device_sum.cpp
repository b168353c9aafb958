#include "unit/device/coded_device_sum.h"

#include <cstring>

#include "base/round_up.h"

namespace fsccl {

Result<std::unique_ptr<CodedDeviceSum>> CodedDeviceSum::create(
    const UnitSpec& spec, DevicePool& pool, std::vector<CollectiveMover::Piece> pieces) {
  std::unique_ptr<CodedDeviceSum> made(new CodedDeviceSum(spec, pool, std::move(pieces)));
  FSCCL_ASSIGN(made->kernels_, cuda::DeviceKernels::of(pool.device()));
  FSCCL_TRY(made->make());
  return made;
}

Status CodedDeviceSum::make() {
  for (const CollectiveMover::Piece& piece : pieces_) {
    if (static_cast<size_t>(piece.rank) != self()) continue;
    own_offsets_.push_back(row_bytes_);
    row_bytes_ += round_up(piece.count * sizeof(float), kCodesAlignment);
  }
  FSCCL_TRY(make_tables());
  FSCCL_TRY(allocate());
  const cuda::Current current(pool_.device());
  FSCCL_ASSIGN(states_, cuda::HostMemory::of(pool_.device()).take(ranks() * sizeof(uint32_t)));
  std::memset(states_->as<uint32_t>(), 0, ranks() * sizeof(uint32_t));
  room_->enter(*this);
  return success();
}

// Makes the tables of the kernels, and all parts of the call but the place of the room.
Status CodedDeviceSum::make_tables() {
  const cuda::BlockCoding coding = device_coding_of(spec_.reduce_codec);
  // By rank: the elements that this rank encodes for it, and those that it decodes from it.
  std::vector<std::vector<cuda::BlockRange>> encoded(ranks()), decoded(ranks());
  std::vector<cuda::CastRange> own;
  for (const CollectiveMover::Piece& piece : pieces_) {
    const auto rank = static_cast<size_t>(piece.rank);
    if (rank != self()) {
      encoded[rank].push_back({piece.offset, piece.count, piece.dtype});
      sent_elements_ += piece.count;
      continue;
    }
    const uint64_t at = own_offsets_[own.size()];
    own.push_back(
        {piece.offset, self() * row_bytes_ + at, piece.count, piece.dtype, FSCCL_FLOAT32});
    for (size_t q = 0; q < ranks(); q++)
      if (q != self()) decoded[q].push_back({q * row_bytes_ + at, piece.count, FSCCL_FLOAT32});
  }
  const size_t other = self() == 0 ? ranks() - 1 : 0;
  part_bytes_ = cuda::sum_bytes(coding, decoded[other]);
  const uint64_t part_room = round_up(part_bytes_, kCodesAlignment);
  std::vector<uint64_t> encoded_at, decoded_at;
  call_.op = OpCode::all_to_all;
  call_.even = false;
  for (size_t q = 0; q < ranks(); q++) {
    const uint64_t bytes = cuda::sum_bytes(coding, encoded[q]);
    encoded_at.push_back(sent_room_);
    decoded_at.push_back(q * part_room);
    call_.sends.push_back({encoded_at[q], bytes});
    call_.receives.push_back({decoded_at[q], q == self() ? 0 : part_bytes_});
    sent_room_ += round_up(bytes, kCodesAlignment);
    sent_bytes_ += bytes;
  }
  FSCCL_ASSIGN(encoded_, kernels_->make_sums(coding, encoded, encoded_at));
  FSCCL_ASSIGN(decoded_, kernels_->make_sums(coding, decoded, decoded_at));
  FSCCL_ASSIGN(own_, kernels_->make_casts(own, cuda::CastBase::both));
  return success();
}

Status CodedDeviceSum::allocate() {
  if (spec_.reduce_codec.flags & FSCCL_CODEC_ERROR_FEEDBACK && sent_elements_) {
    FSCCL_ASSIGN(feedback_, allocate_for_codec(pool_, sent_elements_ * sizeof(float), true));
  }
  const uint64_t received = round_up(part_bytes_, kCodesAlignment) * ranks();
  return room_->reserve(std::max<uint64_t>(sent_room_ + received + row_bytes_ * ranks(), 1));
}

// The unit has waited for its streams.
CodedDeviceSum::~CodedDeviceSum() {
  room_->leave(*this);
  if (feedback_)
    (void)pool_.free(reinterpret_cast<void*>(feedback_), pool_.own_stream().get()).ok();
}

Status CodedDeviceSum::place_sums(const std::vector<CollectiveMover::Sum>& sums) {
  std::vector<cuda::ReduceRange> ranges;
  for (const CollectiveMover::Piece& piece : pieces_) {
    if (static_cast<size_t>(piece.rank) != self()) continue;
    const size_t own = ranges.size();
    if (own == sums.size()) return fail(FSCCL_ERR_INTERNAL, "{} places for more sums", sums.size());
    ranges.push_back(
        {own_offsets_[own], sums[own].destination, piece.count, FSCCL_FLOAT32, sums[own].dtype});
  }
  sums_.reset();
  if (ranges.empty()) return success();
  FSCCL_ASSIGN(sums_, kernels_->make_reduces(ranges, static_cast<int>(ranks())));
  return success();
}

Status CodedDeviceSum::reduce(cuda::CUdeviceptr slot, const cuda::ReduceEpilogue& epilogue,
                              cuda::CUdeviceptr norm, cuda::CUstream stream) {
  const cuda::Current current(pool_.device());
  FSCCL_TRY(room_->run(stream, [&] { return reduce_in(slot, epilogue, norm, stream); }));
  reductions_++;
  return success();
}

Status CodedDeviceSum::reduce_in(cuda::CUdeviceptr slot, const cuda::ReduceEpilogue& epilogue,
                                 cuda::CUdeviceptr norm, cuda::CUstream stream) {
  const cuda::CUdeviceptr sent = room_->memory();  // it moves if a larger unit is made
  const cuda::CUdeviceptr received = sent + sent_room_;
  const cuda::CUdeviceptr rows = received + round_up(part_bytes_, kCodesAlignment) * ranks();
  FSCCL_TRY(kernels_->encode_sums(*encoded_, slot, feedback_, sent, stream));
  call_.stream = stream;
  call_.input = reinterpret_cast<const std::byte*>(sent);
  call_.output = reinterpret_cast<std::byte*>(received);
  FSCCL_TRY(DeviceCollectives::of(*spec_.shard_comm).run(std::span(&call_, 1)));
  FSCCL_TRY(kernels_->decode_sums(*decoded_, received, rows, states_->device(), stream));
  FSCCL_TRY(kernels_->cast(*own_, slot, rows, stream));
  if (!sums_) return success();
  std::vector<cuda::CUdeviceptr> bases;
  for (size_t q = 0; q < ranks(); q++) bases.push_back(rows + q * row_bytes_);
  return kernels_->reduce(*sums_, bases.data(), epilogue, norm, stream);
}

void CodedDeviceSum::look() const {
  for (size_t rank = 0; rank < ranks(); rank++) {
    if (__atomic_load_n(states_->as<uint32_t>() + rank, __ATOMIC_ACQUIRE) == cuda::kPartGood)
      continue;
    const Status bad =
        fail(FSCCL_ERR_PROTOCOL,
             "rank {} brought gradients of unit '{}' in blocks that are damaged", rank, spec_.name);
    spec_.shard_comm->engine().fail_all(bad.error());
    return;
  }
}

void CodedDeviceSum::report(fsccl_codec_report_t* report) const {
  report->reductions = reductions_;
  report->reduce_plain_bytes = reductions_ * sent_elements_ * dtype_size(spec_.reduce_dtype);
  report->reduce_sent_bytes = reductions_ * sent_bytes_;
  report->reduce_state_bytes = (feedback_ ? sent_elements_ * sizeof(float) : 0) + room_->bytes();
}

}  // namespace fsccl
