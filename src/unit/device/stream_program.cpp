#include "unit/device/stream_program.h"

#include <algorithm>

#include "base/config.h"
#include "base/log.h"

namespace fsccl {

using Kind = StreamAction::Kind;

Result<std::unique_ptr<StreamProgram>> StreamProgram::make(const cuda::Device& device,
                                                           StreamPlan plan,
                                                           std::vector<cuda::CUdeviceptr> slots) {
  FSCCL_ASSIGN(const cuda::DeviceKernels* kernels, cuda::DeviceKernels::of(device));
  std::unique_ptr<StreamProgram> program(
      new StreamProgram(device, *kernels, std::move(plan), std::move(slots)));
  size_t most = 0;
  for (const StreamAction& action : program->plan_.actions) {
    FSCCL_ASSIGN(Tables tables, program->make_tables(action));
    program->tables_.push_back(std::move(tables));
    most = std::max({most, action.copies.size(), action.casts.size()});
  }
  program->sources_.resize(most);
  program->destinations_.resize(most);
  program->bases_ = program->slots_;
  program->takes_batches_ = device.batches() && config()->device_batches;
  return program;
}

// Makes the tables of an action. Tables contain the beginnings of slots, so a launch adds the same
// number to sources and destinations: the slot's present offset.
Result<StreamProgram::Tables> StreamProgram::make_tables(const StreamAction& action) const {
  Tables tables;
  std::vector<cuda::CastRange> pieces = action.casts;
  for (cuda::CastRange& piece : pieces) piece.destination += own();
  if (action.kind == Kind::cast) {
    FSCCL_ASSIGN(tables.casts, kernels_.make_casts(pieces, cuda::CastBase::destinations));
  }
  if (action.kind == Kind::place)
    for (const cuda::CastRange& piece : action.casts)
      tables.sizes.push_back(piece.count * dtype_size(piece.from));
  for (const CopyRange& piece : action.copies) {
    pieces.push_back({slots_[static_cast<size_t>(piece.peer)] + piece.from, own() + piece.to,
                      piece.count, piece.dtype, piece.dtype});
    tables.sizes.push_back(piece.bytes());
  }
  if (action.kind == Kind::scatter) {
    FSCCL_ASSIGN(tables.casts, kernels_.make_casts(pieces, cuda::CastBase::both));
  }
  if (action.kind == Kind::reduce) {
    FSCCL_ASSIGN(tables.reduces, kernels_.make_reduces(action.reduces, plan_.ranks));
  }
  return tables;
}

// Copies the batches that were laid out. Each call takes a limited number, because no driver
// promises to take any number.
cuda::CUresult StreamProgram::copy_batches(const std::vector<size_t>& sizes,
                                           cuda::CUstream stream) {
  const cuda::Driver& driver = device_.driver();
  cuda::CUresult code = cuda::CUDA_SUCCESS;
  for (size_t first = 0; first < sizes.size() && code == cuda::CUDA_SUCCESS;
       first += kMostInBatch) {
    const size_t count = std::min(sizes.size() - first, kMostInBatch);
    cuda::CUdeviceptr *const to = &destinations_[first], *const from = &sources_[first];
    auto* const bytes = const_cast<size_t*>(&sizes[first]);
    cuda::CUmemcpyAttributes attributes;
    size_t begin = 0, failed = 0;
    code =
        driver.cuMemcpyBatchAsync_v2
            ? driver.cuMemcpyBatchAsync_v2(to, from, bytes, count, &attributes, &begin, 1, stream)
            : driver.cuMemcpyBatchAsync(to, from, bytes, count, &attributes, &begin, 1, &failed,
                                        stream);
  }
  return code;
}

Status StreamProgram::run_copies(const StreamAction& action, const Tables& tables, uint64_t offset,
                                 cuda::CUstream stream) {
  const cuda::Driver& driver = device_.driver();
  const size_t count = tables.sizes.size();
  for (size_t i = 0; i < action.casts.size(); i++) {
    sources_[i] = action.casts[i].source;
    destinations_[i] = own() + offset + action.casts[i].destination;
  }
  for (size_t i = 0; i < action.copies.size(); i++) {
    const CopyRange& piece = action.copies[i];
    sources_[i] = slots_[static_cast<size_t>(piece.peer)] + offset + piece.from;
    destinations_[i] = own() + offset + piece.to;
  }
  const cuda::Current current(device_);
  if (takes_batches_ && !cuda::is_legacy(stream)) {  // the legacy stream takes no batches
    const cuda::CUresult code = copy_batches(tables.sizes, stream);
    if (code != cuda::CUDA_ERROR_INVALID_VALUE && code != cuda::CUDA_ERROR_NOT_SUPPORTED)
      return device_.check("cuMemcpyBatchAsync", code);
    // A driver before 12.8 refuses batches but may take the pieces one by one, and then reports a
    // wrong piece by itself. Pieces that were already copied are copied again.
    takes_batches_ = false;
    FSCCL_LOG(kWarn, "{}; copies of this unit go one by one from now on",
              device_.check("cuMemcpyBatchAsync", code).text());
  }
  for (size_t i = 0; i < count; i++)
    FSCCL_TRY(device_.check("cuMemcpyAsync", driver.cuMemcpyAsync(destinations_[i], sources_[i],
                                                                  tables.sizes[i], stream)));
  return success();
}

Status StreamProgram::run(Track& track, uint64_t offset, cuda::CUstream stream,
                          const ReduceRun& reduce) {
  for (size_t i = 0; i < plan_.actions.size(); i++) {
    const StreamAction& action = plan_.actions[i];
    const Tables& tables = tables_[i];
    switch (action.kind) {
      case Kind::cast:
        FSCCL_TRY(kernels_.cast(*tables.casts, 0, offset, stream));
        break;
      case Kind::scatter:
        FSCCL_TRY(kernels_.cast(*tables.casts, offset, offset, stream));
        break;
      case Kind::signal:
        FSCCL_TRY(track.signal(action.tick, stream));
        break;
      case Kind::wait:
        FSCCL_TRY(track.wait(action.peers, action.tick, stream));
        break;
      case Kind::place:
      case Kind::copy:
        FSCCL_TRY(run_copies(action, tables, offset, stream));
        break;
      case Kind::reduce:
        for (size_t rank = 0; rank < slots_.size(); rank++) bases_[rank] = slots_[rank] + offset;
        FSCCL_TRY(
            kernels_.reduce(*tables.reduces, bases_.data(), reduce.epilogue, reduce.norm, stream));
        break;
    }
  }
  return success();
}

}  // namespace fsccl
