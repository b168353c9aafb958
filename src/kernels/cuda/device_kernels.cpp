#include "kernels/cuda/device_kernels.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/immortal.h"
#include "kernels/cuda/image.h"
#include "kernels/cuda/tables.h"

namespace fsccl::cuda {
namespace {

// The bytes of a table to upload: several arrays, each at a multiple of 16 bytes.
class Image {
 public:
  template <class T>
  size_t add(const std::vector<T>& values) {
    const size_t offset = bytes_.size(), size = values.size() * sizeof(T);
    const auto* const first = reinterpret_cast<const std::byte*>(values.data());
    bytes_.reserve(offset + size + 15);
    bytes_.insert(bytes_.end(), first, first + size);
    while (bytes_.size() % 16) bytes_.push_back({});
    return offset;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

class CastTable {
 public:
  std::unique_ptr<TableMemory::Bytes> memory;
  size_t tiles = 0;  // offset of the tiles in bytes
  uint32_t tile_count = 0;
  CastBase base = CastBase::both;
};

class ReduceTable {
 public:
  std::unique_ptr<TableMemory::Bytes> memory;
  size_t tiles = 0, sums = 0, bases = 0;  // offsets in bytes
  uint32_t tile_count = 0, sources = 0;
};

class BlockTable {
 public:
  std::unique_ptr<TableMemory::Bytes> memory;
  size_t found = 0;  // offset of the encoder's scratch in bytes
  uint32_t chunk_count = 0;
  BlockCoding coding;
};

// Loads the function onto the device now. If this were left to the first launch, loading might wait
// for all work on streams, and so for a peer that waits for work behind the launch.
Status DeviceKernels::find(const char* name, CUfunction& function) const {
  const Driver& driver = device_.driver();
  FSCCL_TRY(device_.check(name, driver.cuModuleGetFunction(&function, module_, name)));
  return driver.cuFuncLoad ? device_.check("cuFuncLoad", driver.cuFuncLoad(function)) : success();
}

// Asks the driver how many blocks fit on this GPU. Without a norm blocks have fewer threads, so
// more of them may fit. If the driver does not answer, returns a number that is known to fit.
uint32_t DeviceKernels::blocks_at_once(CUfunction function, uint32_t threads) const {
  const Driver& driver = device_.driver();
  int blocks = 0;
  const bool said = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor &&
                    driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                        &blocks, function, static_cast<int>(threads), 0) == CUDA_SUCCESS &&
                    blocks > 0;
  return static_cast<uint32_t>(device_.multiprocessors()) *
         (said ? static_cast<uint32_t>(blocks) : kBlocksPerMultiprocessor);
}

Result<const DeviceKernels*> DeviceKernels::load(const Device& device) {
  if (!kKernelImage.bytes)
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "this library has no kernels for GPUs: it was built without nvcc; build it with a "
                "CUDA toolkit (meson setup "
                "-Dcuda=enabled)");
  const Driver& driver = device.driver();
  const Current current(device);
  CUstream uploads = nullptr;
  FSCCL_TRY(device.check("cuStreamCreate",
                         driver.cuStreamCreateWithPriority(&uploads, CU_STREAM_NON_BLOCKING, 0)));
  std::unique_ptr<DeviceKernels> made(new DeviceKernels(device, uploads));
  Status status =
      device.check("cuModuleLoadData", driver.cuModuleLoadData(&made->module_, kKernelImage.bytes));
  if (!status.ok()) {
    status = fail(FSCCL_ERR_NOT_AVAILABLE,
                  "the kernels for GPUs do not load on device {} ({}, compute capability {}.{}), "
                  "they are built for {}: {}; install a "
                  "newer driver (this one is for CUDA {}.{}), or build the library with a toolkit "
                  "that knows this GPU",
                  device.ordinal(), device.name(), device.capability() / 10,
                  device.capability() % 10, kKernelImage.architectures, status.text(),
                  driver.version / 1000, driver.version % 1000 / 10);
  }
  if (status.ok()) status = made->find("fsccl_cast", made->cast_);
  if (status.ok()) status = made->find("fsccl_reduce", made->reduce_);
  if (status.ok()) status = made->find("fsccl_put_bases", made->put_bases_);
  if (status.ok()) status = made->find("fsccl_divide", made->divide_);
  if (status.ok()) status = made->find("fsccl_encode", made->encode_);
  if (status.ok()) status = made->find("fsccl_decode", made->decode_);
  if (status.ok()) status = made->find("fsccl_encode_sums", made->encode_sums_);
  if (status.ok()) status = made->find("fsccl_decode_sums", made->decode_sums_);
  if (status.ok()) {
    made->cast_blocks_ = made->blocks_at_once(made->cast_, kCastThreads);
    made->reduce_blocks_ = made->blocks_at_once(made->reduce_, kWorkers);
    made->norm_blocks_ = made->blocks_at_once(made->reduce_, kReduceThreads);
    made->encode_blocks_ = made->blocks_at_once(made->encode_, kCodecThreads);
    made->decode_blocks_ = made->blocks_at_once(made->decode_, kCodecThreads);
    made->encode_sums_blocks_ = made->blocks_at_once(made->encode_sums_, kCodecThreads);
    made->decode_sums_blocks_ = made->blocks_at_once(made->decode_sums_, kCodecThreads);
    return made.release();  // never freed, like the device
  }
  if (made->module_) (void)driver.cuModuleUnload(made->module_);
  (void)driver.cuStreamDestroy(uploads);
  return status;
}

Result<const DeviceKernels*> DeviceKernels::of(const Device& device) {
  static std::mutex mutex;
  static Immortal<std::map<const Device*, const DeviceKernels*>> loaded;
  const std::lock_guard lock(mutex);
  if (const auto found = loaded.get().find(&device); found != loaded.get().end())
    return found->second;
  FSCCL_ASSIGN(const DeviceKernels* kernels, load(device));
  loaded.get().emplace(&device, kernels);
  return kernels;
}

// The upload uses a stream of its own, because the legacy stream would wait for other streams and
// cannot be used while a stream is captured.
Result<std::unique_ptr<TableMemory::Bytes>> DeviceKernels::upload(
    const std::vector<std::byte>& bytes) const {
  const Current current(device_);
  const Driver& driver = device_.driver();
  FSCCL_ASSIGN(std::unique_ptr<TableMemory::Bytes> table, memory_->take(bytes.size()));
  FSCCL_TRY(device_.check(
      "cuMemcpyAsync",
      driver.cuMemcpyAsync(table->begin(), reinterpret_cast<CUdeviceptr>(bytes.data()),
                           bytes.size(), uploads_)));
  FSCCL_TRY(device_.check("cuStreamSynchronize", driver.cuStreamSynchronize(uploads_)));
  return table;
}

Status DeviceKernels::launch(CUfunction function, uint32_t blocks, uint32_t threads, void* argument,
                             const char* name, CUstream stream) const {
  void* arguments[] = {argument};
  return device_.check(name, device_.driver().cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1,
                                                             0, stream, arguments, nullptr));
}

Result<std::shared_ptr<const CastTable>> DeviceKernels::make_casts(
    const std::vector<CastRange>& pieces, CastBase base) const {
  FSCCL_ASSIGN(const Cut cut, cut_casts(pieces));
  auto table = std::make_shared<CastTable>();
  table->base = base;
  table->tile_count = static_cast<uint32_t>(cut.tiles.size());
  if (cut.tiles.empty()) return std::shared_ptr<const CastTable>(std::move(table));
  Image image;
  image.add(cut.pieces);
  table->tiles = image.add(cut.tiles);
  FSCCL_ASSIGN(table->memory, upload(image.bytes()));
  return std::shared_ptr<const CastTable>(std::move(table));
}

Status DeviceKernels::cast(const CastTable& table, CUdeviceptr source_base,
                           CUdeviceptr destination_base, CUstream stream) const {
  if (!table.tile_count) return success();
  CastLaunch launch{};
  launch.pieces = table.memory->at<const Range>(0);
  launch.tiles = table.memory->at<const Tile>(table.tiles);
  launch.source_base = table.base == CastBase::destinations ? 0 : source_base;
  launch.destination_base = table.base == CastBase::sources ? 0 : destination_base;
  launch.tile_count = table.tile_count;
  const Current current(device_);
  const auto multiprocessors = static_cast<uint32_t>(device_.multiprocessors());
  const uint32_t blocks = even_grid(table.tile_count, multiprocessors, cast_blocks_);
  return this->launch(cast_, blocks, kCastThreads, &launch, "launch of fsccl_cast", stream);
}

Result<std::shared_ptr<const ReduceTable>> DeviceKernels::make_reduces(
    const std::vector<ReduceRange>& pieces, int sources) const {
  if (sources < 1) return fail(FSCCL_ERR_INVALID_ARGUMENT, "a reduce of {} sources", sources);
  FSCCL_ASSIGN(const Cut cut, cut_reduces(pieces));
  auto table = std::make_shared<ReduceTable>();
  table->tile_count = static_cast<uint32_t>(cut.tiles.size());
  table->sources = static_cast<uint32_t>(sources);
  Image image;
  image.add(cut.pieces);
  table->tiles = image.add(cut.tiles);
  table->sums = image.add(std::vector<uint64_t>(cut.tiles.size(), kNoSum));
  table->bases =
      image.add(std::vector<uint64_t>(table->sources > kBasesInside ? table->sources : 0));
  if (cut.tiles.empty()) return std::shared_ptr<const ReduceTable>(std::move(table));
  FSCCL_ASSIGN(table->memory, upload(image.bytes()));
  return std::shared_ptr<const ReduceTable>(std::move(table));
}

Status DeviceKernels::reduce(const ReduceTable& table, const CUdeviceptr* bases,
                             const ReduceEpilogue& epilogue, CUdeviceptr norm,
                             CUstream stream) const {
  if (!table.tile_count && !norm) return success();
  ReduceLaunch launch = reduce_launch(bases, table.sources, epilogue);
  launch.norm = reinterpret_cast<void*>(norm);
  launch.tile_count = table.tile_count;
  const Current current(device_);
  if (table.tile_count) {
    launch.pieces = table.memory->at<const Range>(0);
    launch.tiles = table.memory->at<const Tile>(table.tiles);
    launch.sums = table.memory->at<uint64_t>(table.sums);
    launch.more_bases = table.memory->at<const uint64_t>(table.bases);
    for (uint32_t first = 0; table.sources > kBasesInside && first < table.sources;
         first += kBasesPut) {
      PutLaunch put{};
      put.to = table.memory->at<uint64_t>(table.bases) + first;
      put.count = std::min(table.sources - first, kBasesPut);
      std::copy_n(bases + first, put.count, put.bases);
      FSCCL_TRY(this->launch(put_bases_, 1, kBasesPut, &put, "launch of fsccl_put_bases", stream));
    }
  }
  const auto multiprocessors = static_cast<uint32_t>(device_.multiprocessors());
  const Grid grid =
      reduce_grid(table.tile_count, norm != 0, multiprocessors, reduce_blocks(norm != 0));
  return this->launch(reduce_, grid.blocks, grid.threads, &launch, "launch of fsccl_reduce",
                      stream);
}

Status DeviceKernels::divide(CUdeviceptr values, uint64_t count, fsccl_dtype_t dtype,
                             int64_t divisor, CUstream stream) const {
  if (!count) return success();
  if (dtype != FSCCL_FLOAT32 && dtype != FSCCL_FLOAT64)
    return fail(FSCCL_ERR_NOT_AVAILABLE, "kernels divide float32 and float64, not {}",
                dtype_name(dtype));
  constexpr uint64_t kBlocksEach = 8;  // enough threads to have the memory busy
  DivideLaunch launch{reinterpret_cast<void*>(values), count, static_cast<double>(divisor),
                      dtype == FSCCL_FLOAT64};
  const Current current(device_);
  const uint64_t blocks = (count + kDivideThreads - 1) / kDivideThreads;
  const uint64_t most = static_cast<uint64_t>(device_.multiprocessors()) * kBlocksEach;
  return this->launch(divide_, static_cast<uint32_t>(std::min(blocks, most)), kDivideThreads,
                      &launch, "launch of fsccl_divide", stream);
}

Result<std::shared_ptr<const BlockTable>> DeviceKernels::make_blocks(
    const BlockCoding& coding, const std::vector<CodedPart>& parts,
    const std::vector<uint64_t>& begins) const {
  FSCCL_ASSIGN(const std::vector<Chunk> chunks, cut_chunks(coding, parts, begins));
  auto table = std::make_shared<BlockTable>();
  table->coding = coding;
  table->chunk_count = static_cast<uint32_t>(chunks.size());
  if (chunks.empty()) return std::shared_ptr<const BlockTable>(std::move(table));
  Image image;
  image.add(chunks);
  table->found = image.add(std::vector<ChunkFigures>(parts.size() == 1 ? chunks.size() : 0));
  FSCCL_ASSIGN(table->memory, upload(image.bytes()));
  return std::shared_ptr<const BlockTable>(std::move(table));
}

uint32_t DeviceKernels::codec_grid(const BlockTable& table, uint32_t most) const {
  return even_grid(table.chunk_count, static_cast<uint32_t>(device_.multiprocessors()), most);
}

Status DeviceKernels::encode(const BlockTable& table, CUdeviceptr elements_base,
                             CUdeviceptr codes_base, const BlockMeasure& measure,
                             CUstream stream) const {
  if (!table.chunk_count) return success();
  EncodeLaunch launch = encode_launch(table.coding, measure);
  launch.chunks = table.memory->at<const Chunk>(0);
  launch.found = table.memory->at<ChunkFigures>(table.found);
  launch.elements_base = elements_base;
  launch.codes_base = codes_base;
  launch.chunk_count = table.chunk_count;
  const Current current(device_);
  for (; launch.closes < 2; launch.closes++)
    FSCCL_TRY(this->launch(encode_, codec_grid(table, encode_blocks_), kCodecThreads, &launch,
                           "launch of fsccl_encode", stream));
  return success();
}

Status DeviceKernels::decode(const BlockTable& table, CUdeviceptr codes_base,
                             CUdeviceptr elements_base, CUdeviceptr states, CUstream stream) const {
  if (!table.chunk_count) return success();
  DecodeLaunch launch{.chunks = table.memory->at<const Chunk>(0),
                      .elements_base = elements_base,
                      .codes_base = codes_base,
                      .states = reinterpret_cast<uint32_t*>(states),
                      .chunk_count = table.chunk_count,
                      .codec = table.coding.codec,
                      .block = table.coding.block};
  const Current current(device_);
  return this->launch(decode_, codec_grid(table, decode_blocks_), kCodecThreads, &launch,
                      "launch of fsccl_decode", stream);
}

Result<std::shared_ptr<const BlockTable>> DeviceKernels::make_sums(
    const BlockCoding& coding, const std::vector<std::vector<BlockRange>>& parts,
    const std::vector<uint64_t>& begins) const {
  FSCCL_ASSIGN(const std::vector<SumChunk> chunks, cut_sums(coding, parts, begins));
  auto table = std::make_shared<BlockTable>();
  table->coding = coding;
  table->chunk_count = static_cast<uint32_t>(chunks.size());
  if (chunks.empty()) return std::shared_ptr<const BlockTable>(std::move(table));
  Image image;
  image.add(chunks);
  FSCCL_ASSIGN(table->memory, upload(image.bytes()));
  return std::shared_ptr<const BlockTable>(std::move(table));
}

namespace {

SumsLaunch sums_launch(const BlockTable& table, CUdeviceptr elements_base, CUdeviceptr codes_base) {
  return {.chunks = table.memory->at<const SumChunk>(0),
          .elements_base = elements_base,
          .codes_base = codes_base,
          .feedback = 0,
          .states = nullptr,
          .chunk_count = table.chunk_count,
          .codec = table.coding.codec,
          .block = table.coding.block};
}

}  // namespace

Status DeviceKernels::encode_sums(const BlockTable& table, CUdeviceptr elements_base,
                                  CUdeviceptr feedback, CUdeviceptr codes_base,
                                  CUstream stream) const {
  if (!table.chunk_count) return success();
  SumsLaunch launch = sums_launch(table, elements_base, codes_base);
  launch.feedback = feedback;
  const Current current(device_);
  return this->launch(encode_sums_, codec_grid(table, encode_sums_blocks_), kCodecThreads, &launch,
                      "launch of fsccl_encode_sums", stream);
}

Status DeviceKernels::decode_sums(const BlockTable& table, CUdeviceptr codes_base,
                                  CUdeviceptr elements_base, CUdeviceptr states,
                                  CUstream stream) const {
  if (!table.chunk_count) return success();
  SumsLaunch launch = sums_launch(table, elements_base, codes_base);
  launch.states = reinterpret_cast<uint32_t*>(states);
  const Current current(device_);
  return this->launch(decode_sums_, codec_grid(table, decode_sums_blocks_), kCodecThreads, &launch,
                      "launch of fsccl_decode_sums", stream);
}

}  // namespace fsccl::cuda
