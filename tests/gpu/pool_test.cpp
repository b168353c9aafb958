// Tests a pool on a GPU with one rank: only streams order the use of blocks, freed memory is used
// again, and wrong use is an error that says what to do.
#include <fsccl/allocator.h>
#include <gmock/gmock.h>

#include <set>
#include <vector>

#include "fsccl/insight.h"
#include "gpu/support.h"

namespace fsccl::testing {
namespace {

constexpr size_t kBlock = 8 << 20;

// A block is freed on a stream that has not come to its last write yet. A stream that gets the
// bytes next must write after that.
int reuse(const Child&) {
  Place place;
  if (const int code = place.make()) return code;
  const Gpu& gpu = *place.gpu;
  void *first = gpu.make_stream(), *second = gpu.make_stream();
  for (int turn = 0; turn < 8; turn++) {
    const Gpu::Gate gate(gpu);
    void *old = nullptr, *young = nullptr;
    MUST(fsccl_pool_alloc(place.pool, kBlock, first, &old) == FSCCL_OK && gpu.is_device(old));
    MUST(gate.shut(first) && gpu.fill(old, 0x11, kBlock, first));
    MUST(fsccl_pool_free(place.pool, old, first) == FSCCL_OK);
    MUST(fsccl_pool_alloc(place.pool, kBlock, second, &young) == FSCCL_OK);
    MUST(gpu.fill(young, 0x22, kBlock, second));
    gate.open();
    MUST(gpu.wait(first) && gpu.wait(second));
    const auto found = gpu.read<unsigned char>(young, kBlock, second);
    MUST(found == std::vector<unsigned char>(kBlock, 0x22));
    MUST(fsccl_pool_free(place.pool, young, second) == FSCCL_OK);
    MUST(gpu.wait(second));
  }
  return place.end() ? 0 : 1;
}

// On one stream freed bytes can be allocated again at once, although the stream has not come to the
// free yet. The host never waits.
int same_stream(const Child&) {
  Place place;
  if (const int code = place.make()) return code;
  const Gpu& gpu = *place.gpu;
  void* stream = gpu.make_stream();
  const Gpu::Gate gate(gpu);
  void* block = nullptr;
  MUST(fsccl_pool_alloc(place.pool, kBlock, stream, &block) == FSCCL_OK);
  MUST(gate.shut(stream));
  std::set<void*> addresses{block};
  fsccl_pool_stats_t before = FSCCL_POOL_STATS_INIT, after = FSCCL_POOL_STATS_INIT;
  fsccl_pool_stats(place.pool, &before);
  for (int turn = 0; turn < 100; turn++) {
    MUST(fsccl_pool_free(place.pool, block, stream) == FSCCL_OK);
    MUST(fsccl_pool_alloc(place.pool, kBlock, stream, &block) == FSCCL_OK);
    addresses.insert(block);
  }
  fsccl_pool_stats(place.pool, &after);
  MUST(addresses.size() == 1 && after.reserved_bytes == before.reserved_bytes && !gpu.idle(stream));
  gate.open();
  MUST(fsccl_pool_free(place.pool, block, stream) == FSCCL_OK && gpu.wait(stream));
  return place.end() ? 0 : 1;
}

// Many blocks of many sizes are used on two streams. None overlaps another, and each keeps its
// contents.
int many(const Child&) {
  Place place;
  if (const int code = place.make()) return code;
  const Gpu& gpu = *place.gpu;
  void* streams[2] = {gpu.make_stream(), gpu.make_stream()};
  struct Block {
    unsigned char* pointer;
    size_t bytes;
    unsigned char mark;
    void* stream;
  };
  std::vector<Block> blocks;
  uint64_t random = 12345;
  for (unsigned i = 0; i < 600; i++) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    if (!blocks.empty() && (random >> 60) < 7) {
      const size_t which = (random >> 20) % blocks.size();
      const Block block = blocks[which];
      const auto found = gpu.read<unsigned char>(block.pointer, block.bytes, block.stream);
      MUST(found == std::vector<unsigned char>(block.bytes, block.mark));
      MUST(fsccl_pool_free(place.pool, block.pointer, block.stream) == FSCCL_OK);
      blocks.erase(blocks.begin() + static_cast<long>(which));
    } else {
      void* pointer = nullptr;
      const size_t bytes = 1 + (random >> 33) % (200u << 10);
      void* stream = streams[(random >> 32) & 1];
      MUST(fsccl_pool_alloc(place.pool, bytes, stream, &pointer) == FSCCL_OK);
      MUST(reinterpret_cast<uintptr_t>(pointer) % 64 == 0);
      const auto mark = static_cast<unsigned char>(i);
      MUST(gpu.fill(pointer, mark, bytes, stream));
      blocks.push_back({static_cast<unsigned char*>(pointer), bytes, mark, stream});
    }
  }
  MUST(fsccl_pool_destroy(place.pool) == FSCCL_ERR_INVALID_STATE);
  for (const Block& block : blocks)
    MUST(fsccl_pool_free(place.pool, block.pointer, block.stream) == FSCCL_OK);
  MUST(gpu.wait(streams[0]) && gpu.wait(streams[1]));
  uint64_t released = 0;
  MUST(fsccl_pool_trim(place.pool, &released) == FSCCL_OK && released > 0);
  return place.end() ? 0 : 1;
}

int wrong_use(const Child&) {
  Place place;
  if (const int code = place.make()) return code;
  void *block = nullptr, *stream = place.gpu->make_stream();
  char on_the_host = 0;
  MUST(fsccl_pool_free(place.pool, &on_the_host, stream) == FSCCL_ERR_INVALID_ARGUMENT);
  MUST(fsccl_pool_alloc(place.pool, size_t{1} << 50, stream, &block) < 0 && !last_error().empty());
  MUST(fsccl_pool_alloc(place.pool, 1000, stream, &block) == FSCCL_OK);
  MUST(fsccl_pool_free(place.pool, block, stream) == FSCCL_OK);
  MUST(fsccl_pool_free(place.pool, block, stream) == FSCCL_ERR_INVALID_ARGUMENT);
  MUST(fsccl_pool_free(place.pool, nullptr, stream) == FSCCL_OK);
  fsccl_pool_config_t nowhere = FSCCL_POOL_CONFIG_INIT;
  nowhere.memory = FSCCL_MEMORY_CUDA, nowhere.device = 4711;
  fsccl_pool_t pool = nullptr;
  MUST(fsccl_pool_create(place.comm, &nowhere, &pool) < 0 &&
       last_error().find("4711") != std::string::npos);
  return place.end() ? 0 : 1;
}

// Calls the two functions of libfsccl that PyTorch's MemPool calls, over a pool.
int pluggable(const Child&) {
  Place place;
  if (const int code = place.make()) return code;
  const Gpu& gpu = *place.gpu;
  void* stream = gpu.make_stream();
  fsccl_allocator_t source;
  MUST(fsccl_pool_allocator(place.pool, &source) == FSCCL_OK &&
       source.memory == FSCCL_MEMORY_CUDA && source.device == 0);
  MUST(fsccl_torch_use(0, &source) == FSCCL_OK);
  void* block = fsccl_torch_malloc(static_cast<ssize_t>(kBlock), 0, stream);
  MUST(block && gpu.is_device(block) && gpu.fill(block, 0x33, kBlock, stream));
  MUST(gpu.read<unsigned char>(block, kBlock, stream) == std::vector<unsigned char>(kBlock, 0x33));
  fsccl_torch_free(block, static_cast<ssize_t>(kBlock), 0, stream);
  MUST(fsccl_torch_use(0, nullptr) == FSCCL_OK && source.destroy(source.context) == FSCCL_OK);
  return place.end() ? 0 : 1;
}

TEST(GpuPool, BlocksAreOrderedByStreams) { run_ranks("reuse", 1, 20310); }
TEST(GpuPool, OneStreamGetsItsBytesBackAtOnce) { run_ranks("same_stream", 1, 20311); }
TEST(GpuPool, ManyBlocksKeepTheirContents) { run_ranks("many", 1, 20312); }
TEST(GpuPool, WrongUseIsRefused) { run_ranks("wrong_use", 1, 20313); }
TEST(GpuPool, ServesAsAPluggableAllocator) { run_ranks("pluggable", 1, 20314); }

}  // namespace
}  // namespace fsccl::testing

int main(int argc, char** argv) {
  using namespace fsccl::testing;
  if (const auto code = run_role(argc, argv,
                                 {{"reuse", reuse},
                                  {"same_stream", same_stream},
                                  {"many", many},
                                  {"wrong_use", wrong_use},
                                  {"pluggable", pluggable}}))
    return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
