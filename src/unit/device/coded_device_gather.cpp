#include "unit/device/coded_device_gather.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/round_up.h"
#include "codec/blocks.h"

namespace fsccl {

Result<std::unique_ptr<CodedDeviceGather>> CodedDeviceGather::create(
    const UnitSpec& spec, DevicePool& pool, const std::vector<CollectiveMover::Piece>& pieces) {
  std::unique_ptr<CodedDeviceGather> made(new CodedDeviceGather(spec, pool));
  FSCCL_ASSIGN(made->kernels_, cuda::DeviceKernels::of(pool.device()));
  FSCCL_TRY(made->make(pieces));
  return made;
}

Status CodedDeviceGather::make(const std::vector<CollectiveMover::Piece>& pieces) {
  std::vector<std::vector<cuda::BlockRange>> ranges(ranks());
  for (const CollectiveMover::Piece& piece : pieces) {
    const auto rank = static_cast<size_t>(piece.rank);
    if (rank == self()) own_bytes_ += piece.bytes();
    ranges[rank].push_back({piece.offset, piece.count, piece.dtype});
    bound_ = std::max(bound_, block_bound(spec_.gather_codec.form(), piece.dtype));
  }
  for (std::vector<cuda::BlockRange>& of_rank : ranges) {
    parts_.emplace_back(device_coding_of(spec_.gather_codec), std::move(of_rank));
    part_bytes_ = std::max(part_bytes_, parts_.back().bytes());
  }
  part_bytes_ = round_up(std::max<uint64_t>(part_bytes_, 1), kCodesAlignment);
  const BlockForm form = spec_.gather_codec.form();
  measure_.most_error = spec_.gather_codec.max_relative_error;
  measure_.every = spec_.gather_codec.audit_every;
  measure_.bounds[cuda::kFp16] = block_bound(form, FSCCL_FLOAT16);
  measure_.bounds[cuda::kBf16] = block_bound(form, FSCCL_BFLOAT16);
  measure_.bounds[cuda::kFp32] = block_bound(form, FSCCL_FLOAT32);
  FSCCL_TRY(make_tables());
  FSCCL_TRY(room_->reserve(part_bytes_ * ranks()));
  FSCCL_ASSIGN(own_, allocate_for_codec(pool_, part_bytes_, true));
  const cuda::Current current(pool_.device());
  const size_t bytes = sizeof(cuda::BlockFigures) + ranks() * sizeof(uint32_t);
  FSCCL_ASSIGN(found_, cuda::HostMemory::of(pool_.device()).take(bytes));
  std::memset(found_->as<std::byte>(), 0, bytes);
  measure_.figures = found_->device();
  room_->enter(*this);
  return success();
}

// Makes the tables of the kernels, and all parts of the call but the place of the room.
Status CodedDeviceGather::make_tables() {
  const cuda::BlockCoding coding = device_coding_of(spec_.gather_codec);
  std::vector<uint64_t> begins;
  call_.op = OpCode::all_gather;
  call_.sends = {{0, part_bytes_}};
  for (size_t rank = 0; rank < ranks(); rank++) {
    begins.push_back(rank * part_bytes_);
    call_.receives.push_back({begins[rank], part_bytes_});
  }
  FSCCL_ASSIGN(encoded_, kernels_->make_blocks(coding, {parts_[self()]}, {0}));
  FSCCL_ASSIGN(decoded_, kernels_->make_blocks(coding, parts_, begins));
  return success();
}

// The unit has waited for its streams.
CodedDeviceGather::~CodedDeviceGather() {
  room_->leave(*this);
  if (own_) (void)pool_.free(reinterpret_cast<void*>(own_), pool_.own_stream().get()).ok();
}

Status CodedDeviceGather::gather(cuda::CUdeviceptr slot, bool changed, cuda::CUstream stream) {
  const cuda::Current current(pool_.device());
  FSCCL_TRY(room_->run(stream, [&] { return gather_in(slot, changed, stream); }));
  gathers_++;
  return success();
}

Status CodedDeviceGather::encode(cuda::CUdeviceptr slot, cuda::CUstream stream) {
  measure_.phase = static_cast<uint32_t>(audit_phase(encodings_, 0, measure_.every));
  FSCCL_TRY(kernels_->encode(*encoded_, slot, own_, measure_, stream));
  encodings_++;
  return success();
}

Status CodedDeviceGather::gather_in(cuda::CUdeviceptr slot, bool changed, cuda::CUstream stream) {
  if (changed) FSCCL_TRY(encode(slot, stream));
  const cuda::CUdeviceptr received = room_->memory();  // it moves if a larger unit is made
  call_.stream = stream;
  call_.input = reinterpret_cast<const std::byte*>(own_);
  call_.output = reinterpret_cast<std::byte*>(received);
  FSCCL_TRY(DeviceCollectives::of(*spec_.shard_comm).run(std::span(&call_, 1)));
  return kernels_->decode(*decoded_, received, slot, found_->device() + sizeof(cuda::BlockFigures),
                          stream);
}

void CodedDeviceGather::look() const {
  for (size_t rank = 0; rank < ranks(); rank++) {
    const uint32_t state = __atomic_load_n(states() + rank, __ATOMIC_ACQUIRE);
    if (state == cuda::kPartGood) continue;
    const Status bad =
        state == cuda::kPartNoRoom
            ? fail(FSCCL_ERR_PROTOCOL,
                   "the gather of unit '{}' has a codec, and more than one in {} of rank {}'s "
                   "elements are in blocks with NaN, infinities or values beyond 2^100 or below "
                   "2^-100 (float16: 2^15){}, for which units on GPUs have no room: correct the "
                   "parameters{}, or leave the codec out",
                   spec_.name, cuda::kExactShare, rank,
                   measure_.most_error > 0 ? ", or with errors above max_relative_error" : "",
                   measure_.most_error > 0 ? ", allow larger errors" : "")
            : fail(FSCCL_ERR_PROTOCOL, "rank {} brought blocks of unit '{}' that are damaged", rank,
                   spec_.name);
    spec_.shard_comm->engine().fail_all(bad.error());
    return;
  }
}

void CodedDeviceGather::report(fsccl_codec_report_t* report) const {
  report->gathers = report->coded = gathers_;
  report->plain_bytes = gathers_ * own_bytes_;
  report->sent_bytes = gathers_ * part_bytes_;
  report->state_bytes = part_bytes_ + room_->bytes();
  // The GPU adds to all of them at once. `exact` is read first, so that no reader sees more exact
  // blocks than blocks.
  report->exact_blocks = __atomic_load_n(&figures()->exact, __ATOMIC_ACQUIRE);
  report->blocks = __atomic_load_n(&figures()->blocks, __ATOMIC_RELAXED);
  report->audited_blocks = __atomic_load_n(&figures()->measured, __ATOMIC_RELAXED);
  report->beyond_bound = __atomic_load_n(&figures()->beyond, __ATOMIC_RELAXED);
  report->max_error = std::bit_cast<float>(__atomic_load_n(&figures()->largest, __ATOMIC_RELAXED));
  report->bound = bound_;
}

}  // namespace fsccl
