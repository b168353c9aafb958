#include "device_machine.h"

#include "kernels/cuda/tables.h"

extern "C" {
void fsccl_emulated_fsccl_cast(const unsigned grid[3], const unsigned block[3], void** arguments);
void fsccl_emulated_fsccl_reduce(const unsigned grid[3], const unsigned block[3], void** arguments);
void fsccl_emulated_fsccl_divide(const unsigned grid[3], const unsigned block[3], void** arguments);
void fsccl_emulated_fsccl_encode(const unsigned grid[3], const unsigned block[3], void** arguments);
void fsccl_emulated_fsccl_decode(const unsigned grid[3], const unsigned block[3], void** arguments);
void fsccl_emulated_fsccl_encode_sums(const unsigned grid[3], const unsigned block[3],
                                      void** arguments);
void fsccl_emulated_fsccl_decode_sums(const unsigned grid[3], const unsigned block[3],
                                      void** arguments);
}

namespace fsccl::cuda {
namespace {

// Returns the pieces of a call, with the arena at `begin`.
std::vector<CastRange> placed(const CastCall& call, CUdeviceptr begin) {
  std::vector<CastRange> pieces = call.pieces;
  for (CastRange& piece : pieces) {
    if (call.base == CastBase::destinations) piece.source += begin;
    if (call.base == CastBase::sources) piece.destination += begin;
  }
  return pieces;
}
std::vector<ReduceRange> placed(const ReduceCall& call, CUdeviceptr begin) {
  std::vector<ReduceRange> pieces = call.pieces;
  for (ReduceRange& piece : pieces) piece.destination += begin;
  return pieces;
}
BlockMeasure placed(const CodedCall& call, CUdeviceptr begin) {
  BlockMeasure measure = call.measure;
  if (measure.figures) measure.figures += begin;
  return measure;
}
std::vector<CUdeviceptr> bases_at(const ReduceCall& call, CUdeviceptr begin) {
  std::vector<CUdeviceptr> bases;
  for (const size_t base : call.bases) bases.push_back(begin + base);
  return bases;
}

using Kernel = void(const unsigned*, const unsigned*, void**);
void run(Kernel* kernel, uint32_t blocks, uint32_t threads, void* launch) {
  const unsigned grid[3] = {blocks, 1, 1}, block[3] = {threads, 1, 1};
  kernel(grid, block, &launch);
}

// A grid has at most so few blocks, so that each block takes several tiles.
constexpr uint32_t kBlocks = 4;

class Emulated : public Machine {
 public:
  void cast(Arena& arena, const CastCall& call) override {
    const auto begin = reinterpret_cast<CUdeviceptr>(arena.data());
    const Cut cut = cut_casts(placed(call, begin)).take();
    CastLaunch launch{};
    launch.pieces = cut.pieces.data(), launch.tiles = cut.tiles.data();
    launch.tile_count = static_cast<uint32_t>(cut.tiles.size());
    launch.source_base = call.base == CastBase::destinations ? 0 : begin + call.source_base;
    launch.destination_base = call.base == CastBase::sources ? 0 : begin + call.destination_base;
    run(fsccl_emulated_fsccl_cast, even_grid(launch.tile_count, 1, kBlocks), kCastThreads, &launch);
  }

  void reduce(Arena& arena, const ReduceCall& call, DeviceNorm* norm) override {
    const auto begin = reinterpret_cast<CUdeviceptr>(arena.data());
    const Cut cut = cut_reduces(placed(call, begin)).take();
    const std::vector<CUdeviceptr> bases = bases_at(call, begin);
    const std::vector<uint64_t> more(bases.begin(), bases.end());
    std::vector<uint64_t> sums(cut.tiles.size(), kNoSum);
    ReduceLaunch launch =
        reduce_launch(bases.data(), static_cast<uint32_t>(bases.size()), call.epilogue);
    launch.pieces = cut.pieces.data(), launch.tiles = cut.tiles.data();
    launch.tile_count = static_cast<uint32_t>(cut.tiles.size());
    launch.sums = sums.data(), launch.more_bases = more.data(), launch.norm = norm;
    const Grid grid = reduce_grid(launch.tile_count, norm != nullptr, 1, kBlocks);
    for (int time = 0; time < call.times; time++)
      run(fsccl_emulated_fsccl_reduce, grid.blocks, grid.threads, &launch);
    EXPECT_EQ(sums, std::vector<uint64_t>(cut.tiles.size(), kNoSum))
        << "the table is not ready for the next launch";
  }

  void divide(Arena& arena, size_t at, uint64_t count, fsccl_dtype_t dtype,
              int64_t divisor) override {
    DivideLaunch launch{arena.data() + at, count, static_cast<double>(divisor),
                        dtype == FSCCL_FLOAT64};
    run(fsccl_emulated_fsccl_divide, 3, kDivideThreads, &launch);
  }

  void encode(Arena& arena, const CodedCall& call) override {
    const auto begin = reinterpret_cast<CUdeviceptr>(arena.data());
    const std::vector<Chunk> chunks = cut_chunks(call.coding, call.parts, call.begins).take();
    std::vector<ChunkFigures> found(chunks.size());
    EncodeLaunch launch = encode_launch(call.coding, placed(call, begin));
    launch.chunks = chunks.data();
    launch.found = found.data();
    launch.elements_base = launch.codes_base = begin;
    launch.chunk_count = static_cast<uint32_t>(chunks.size());
    for (; launch.closes < 2; launch.closes++)
      run(fsccl_emulated_fsccl_encode, even_grid(launch.chunk_count, 1, kBlocks), kCodecThreads,
          &launch);
  }

  void decode(Arena& arena, const CodedCall& call) override {
    const auto begin = reinterpret_cast<CUdeviceptr>(arena.data());
    const std::vector<Chunk> chunks = cut_chunks(call.coding, call.parts, call.begins).take();
    const auto count = static_cast<uint32_t>(chunks.size());
    DecodeLaunch launch{chunks.data(),
                        begin,
                        begin,
                        reinterpret_cast<uint32_t*>(arena.data() + call.states),
                        count,
                        call.coding.codec,
                        call.coding.block};
    run(fsccl_emulated_fsccl_decode, even_grid(count, 1, kBlocks), kCodecThreads, &launch);
  }

  void encode_sums(Arena& arena, const SumsCall& call) override {
    code_sums(arena, call, fsccl_emulated_fsccl_encode_sums);
  }
  void decode_sums(Arena& arena, const SumsCall& call) override {
    code_sums(arena, call, fsccl_emulated_fsccl_decode_sums);
  }

  uint32_t blocks() const override { return kBlocks; }

 private:
  static void code_sums(Arena& arena, const SumsCall& call, Kernel* kernel) {
    const auto begin = reinterpret_cast<CUdeviceptr>(arena.data());
    const std::vector<SumChunk> chunks = cut_sums(call.coding, call.parts, call.begins).take();
    const auto count = static_cast<uint32_t>(chunks.size());
    SumsLaunch launch{chunks.data(),
                      begin,
                      begin,
                      call.feedback ? begin + call.feedback : 0,
                      reinterpret_cast<uint32_t*>(arena.data() + call.states),
                      count,
                      call.coding.codec,
                      call.coding.block};
    run(kernel, even_grid(count, 1, kBlocks), kCodecThreads, &launch);
  }
};

class OnDriver : public Machine {
 public:
  OnDriver(const Device& device, const DeviceKernels& kernels)
      : device_(device), kernels_(kernels) {
    const Current current(device_);
    check(device_.check("cuStreamCreate", device_.driver().cuStreamCreateWithPriority(
                                              &stream_, CU_STREAM_NON_BLOCKING, 0)));
  }
  ~OnDriver() override {
    const Current current(device_);
    if (begin_) (void)device_.driver().cuMemFree(begin_);
    (void)device_.driver().cuStreamDestroy(stream_);
  }

  void cast(Arena& arena, const CastCall& call) override {
    bring(arena);
    const auto table = kernels_.make_casts(placed(call, begin_), call.base);
    ASSERT_TRUE(table.ok()) << table.status().text();
    check(kernels_.cast(*table.value(), begin_ + call.source_base, begin_ + call.destination_base,
                        stream_));
    fetch(arena);
  }

  void reduce(Arena& arena, const ReduceCall& call, DeviceNorm* norm) override {
    bring(arena);
    const std::vector<CUdeviceptr> bases = bases_at(call, begin_);
    const auto table = kernels_.make_reduces(placed(call, begin_), static_cast<int>(bases.size()));
    ASSERT_TRUE(table.ok()) << table.status().text();
    const CUdeviceptr norm_at = begin_ + bytes_;
    for (int time = 0; time < call.times; time++)
      check(kernels_.reduce(*table.value(), bases.data(), call.epilogue, norm ? norm_at : 0,
                            stream_));
    if (norm) copy(reinterpret_cast<CUdeviceptr>(norm), norm_at, sizeof *norm);
    fetch(arena);
  }

  void divide(Arena& arena, size_t at, uint64_t count, fsccl_dtype_t dtype,
              int64_t divisor) override {
    bring(arena);
    check(kernels_.divide(begin_ + at, count, dtype, divisor, stream_));
    fetch(arena);
  }

  void encode(Arena& arena, const CodedCall& call) override {
    bring(arena);
    const auto table = kernels_.make_blocks(call.coding, call.parts, call.begins);
    ASSERT_TRUE(table.ok()) << table.status().text();
    check(kernels_.encode(*table.value(), begin_, begin_, placed(call, begin_), stream_));
    fetch(arena);
  }

  void decode(Arena& arena, const CodedCall& call) override {
    bring(arena);
    const auto table = kernels_.make_blocks(call.coding, call.parts, call.begins);
    ASSERT_TRUE(table.ok()) << table.status().text();
    check(kernels_.decode(*table.value(), begin_, begin_, begin_ + call.states, stream_));
    fetch(arena);
  }

  void encode_sums(Arena& arena, const SumsCall& call) override {
    bring(arena);
    const auto table = kernels_.make_sums(call.coding, call.parts, call.begins);
    ASSERT_TRUE(table.ok()) << table.status().text();
    check(kernels_.encode_sums(*table.value(), begin_, call.feedback ? begin_ + call.feedback : 0,
                               begin_, stream_));
    fetch(arena);
  }

  void decode_sums(Arena& arena, const SumsCall& call) override {
    bring(arena);
    const auto table = kernels_.make_sums(call.coding, call.parts, call.begins);
    ASSERT_TRUE(table.ok()) << table.status().text();
    check(kernels_.decode_sums(*table.value(), begin_, begin_, begin_ + call.states, stream_));
    fetch(arena);
  }

  uint32_t blocks() const override { return kernels_.reduce_blocks(true); }

 private:
  static void check(const Status& status) { EXPECT_TRUE(status.ok()) << status.text(); }
  void copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    const Current current(device_);
    check(device_.check("cuMemcpyAsync", device_.driver().cuMemcpyAsync(to, from, bytes, stream_)));
    check(device_.check("cuStreamSynchronize", device_.driver().cuStreamSynchronize(stream_)));
  }
  void bring(const Arena& arena) {
    if (arena.used() > bytes_) {
      const Current current(device_);
      if (begin_) check(device_.check("cuMemFree", device_.driver().cuMemFree(begin_)));
      bytes_ = (arena.used() + 255) / 256 * 256;
      check(device_.check("cuMemAlloc",
                          device_.driver().cuMemAlloc(&begin_, bytes_ + sizeof(DeviceNorm))));
    }
    copy(begin_, reinterpret_cast<CUdeviceptr>(arena.data()), arena.used());
  }
  void fetch(Arena& arena) {
    copy(reinterpret_cast<CUdeviceptr>(arena.data()), begin_, arena.used());
  }

  const Device& device_;
  const DeviceKernels& kernels_;
  CUdeviceptr begin_ = 0;
  size_t bytes_ = 0;  // a DeviceNorm lies behind them
  CUstream stream_ = nullptr;
};

}  // namespace

std::unique_ptr<Machine> make_machine(const std::string& way, std::string* why) {
  if (way == "emulated") return std::make_unique<Emulated>();
  const auto device = Device::open(0);
  if (!device.ok()) return *why = device.status().text(), nullptr;
  const auto kernels = DeviceKernels::of(*device.value());
  if (!kernels.ok() && kernels.status().code() == FSCCL_ERR_NOT_AVAILABLE)
    return *why = kernels.status().text(), nullptr;
  EXPECT_TRUE(kernels.ok()) << kernels.status().text();
  return kernels.ok() ? std::make_unique<OnDriver>(*device.value(), *kernels.value()) : nullptr;
}

}  // namespace fsccl::cuda
