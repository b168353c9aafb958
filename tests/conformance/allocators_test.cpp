// The promises of every source of memory (fsccl/allocator.h): the library's own, a pool, an outside
// source, and each adaptor and some stacks of three over each of them. adaptors_test.cpp tests the
// effects of adaptors.
#include <algorithm>
#include <atomic>
#include <thread>

#include "source_stack.h"
#include "tests/stand_in/cuda/control.h"

namespace fsccl::testing {
namespace {

using Adaptors = std::vector<std::string>;
class Allocators : public ::testing::TestWithParam<std::tuple<const char*, Adaptors>> {
 protected:
  Allocators() : stack_(std::get<0>(GetParam()), std::get<1>(GetParam())), table_(stack_.top()) {}
  ~Allocators() override { stack_.expect_empty(); }

  void* get(size_t bytes, size_t alignment = 64) {
    void* pointer = nullptr;
    EXPECT_OK(table_.allocate(table_.context, bytes, alignment, nullptr, &pointer));
    EXPECT_NE(pointer, nullptr);
    return pointer;
  }
  fsccl_status_t give(void* pointer, size_t bytes) {
    return table_.deallocate(table_.context, pointer, bytes, nullptr);
  }

  SourceStack stack_;
  const fsccl_allocator_t table_;
};

struct Block {
  unsigned char* pointer;
  size_t bytes;
  unsigned char seed;
};
void fill_block(const Block& block) {
  for (size_t i = 0; i < block.bytes; ++i)
    block.pointer[i] = static_cast<unsigned char>(block.seed + i);
}
bool holds(const Block& block) {
  for (size_t i = 0; i < block.bytes; ++i)
    if (block.pointer[i] != static_cast<unsigned char>(block.seed + i)) return false;
  return true;
}

TEST_P(Allocators, SizesAndAlignments) {
  std::vector<Block> blocks;
  Random random(1);
  for (size_t alignment : {0, 1, 2, 8, 64, 256, 1024, 4096, 8192, 1 << 20}) {
    if (alignment > stack_.largest_alignment()) continue;
    for (const size_t bytes : {0, 1, 7, 63, 64, 65, 4095, 4096, 4097, 65535, 100'003}) {
      auto* const pointer = static_cast<unsigned char*>(get(bytes, alignment));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(pointer) % (alignment ? alignment : 64), 0u)
          << bytes << " at " << alignment;
      blocks.push_back({pointer, bytes, static_cast<unsigned char>(random.next())});
      fill_block(blocks.back());
    }
  }
  std::vector<const unsigned char*> starts;
  for (const Block& block : blocks) starts.push_back(block.pointer);
  std::sort(starts.begin(), starts.end());
  EXPECT_EQ(std::adjacent_find(starts.begin(), starts.end()), starts.end())
      << "an address was given twice";
  while (!blocks.empty()) {
    const size_t at = random.below(blocks.size());
    EXPECT_TRUE(holds(blocks[at])) << blocks[at].bytes << " bytes";
    EXPECT_OK(give(blocks[at].pointer, blocks[at].bytes));
    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

TEST_P(Allocators, RandomOrder) {
  std::vector<Block> blocks;
  Random random(2);
  for (int step = 0; step < 300; ++step) {
    if (blocks.size() < 20 && random.below(5) < 3) {
      const size_t bytes = random.below(random.below(4) ? 5000 : 200'000);
      blocks.push_back(
          {static_cast<unsigned char*>(get(bytes)), bytes, static_cast<unsigned char>(step)});
      fill_block(blocks.back());
    } else if (!blocks.empty()) {
      const size_t at = random.below(blocks.size());
      EXPECT_TRUE(holds(blocks[at]));
      EXPECT_OK(give(blocks[at].pointer, blocks[at].bytes));
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  for (const Block& block : blocks) {
    EXPECT_TRUE(holds(block));
    EXPECT_OK(give(block.pointer, block.bytes));
  }
}

TEST_P(Allocators, Threads) {
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed)
    threads.emplace_back([this, seed] {
      Random random(seed);
      for (int round = 0; round < 60; ++round) {
        std::vector<Block> blocks;
        for (size_t i = 0; i < 1 + random.below(4); ++i) {
          const size_t bytes = random.below(20'000);
          blocks.push_back({static_cast<unsigned char*>(get(bytes)), bytes,
                            static_cast<unsigned char>(seed * 64 + i)});
          fill_block(blocks.back());
        }
        for (const Block& block : blocks) {
          EXPECT_TRUE(holds(block));
          EXPECT_OK(give(block.pointer, block.bytes));
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_P(Allocators, WrongRequests) {
  void* pointer = this;
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX / 2, size_t{1} << 62, size_t{1} << 46}) {
    const fsccl_status_t status = table_.allocate(table_.context, bytes, 64, nullptr, &pointer);
    EXPECT_LT(status, 0) << bytes;
    EXPECT_GT(status, -40) << explain(status);
  }
  for (const size_t alignment : {size_t{3}, size_t{96}, size_t{1} << 31, SIZE_MAX})
    EXPECT_ERROR(table_.allocate(table_.context, 64, alignment, nullptr, &pointer),
                 FSCCL_ERR_INVALID_ARGUMENT, "alignment");
  EXPECT_EQ(pointer, this) << "written by a call that failed";
  EXPECT_ERROR(table_.allocate(table_.context, 64, 64, nullptr, nullptr),
               FSCCL_ERR_INVALID_ARGUMENT, "NULL");
}

TEST_P(Allocators, ForeignAndDoubleFree) {
  auto* const block = static_cast<unsigned char*>(get(1000));
  const Block written{block, 1000, 7};
  fill_block(written);
  char foreign[64];
  EXPECT_ERROR(give(foreign, sizeof foreign), FSCCL_ERR_INVALID_ARGUMENT, "is not a block");
  EXPECT_ERROR(give(nullptr, 0), FSCCL_ERR_INVALID_ARGUMENT, "is not a block");
  EXPECT_ERROR(give(block + 64, 936), FSCCL_ERR_INVALID_ARGUMENT, "is not a block");
  EXPECT_ERROR(give(block, 999), FSCCL_ERR_INVALID_ARGUMENT, "has 1000 bytes", "999");
  EXPECT_TRUE(holds(written));
  EXPECT_OK(give(block, 1000));
  EXPECT_ERROR(give(block, 1000), FSCCL_ERR_INVALID_ARGUMENT, "given back before");
}

TEST_P(Allocators, ExhaustionAndRecovery) {
  if (!stack_.bounded()) return;  // the machine's memory is not for a test to exhaust
  constexpr size_t kBytes = 1 << 20;
  for (int round = 0; round < 3; ++round) {
    std::vector<Block> blocks;
    void* pointer = nullptr;
    fsccl_status_t status = FSCCL_OK;
    while (blocks.size() < 100 &&
           (status = table_.allocate(table_.context, kBytes, 64, nullptr, &pointer)) == FSCCL_OK) {
      blocks.push_back({static_cast<unsigned char*>(pointer), kBytes,
                        static_cast<unsigned char>(blocks.size())});
      fill_block(blocks.back());
    }
    EXPECT_EQ(status, FSCCL_ERR_OUT_OF_MEMORY) << explain(status);
    EXPECT_GE(blocks.size(), 4u);
    EXPECT_OK(give(blocks.back().pointer, kBytes));
    blocks.back().pointer = static_cast<unsigned char*>(get(kBytes));
    fill_block(blocks.back());
    for (const Block& block : blocks) {
      EXPECT_TRUE(holds(block));
      EXPECT_OK(give(block.pointer, kBytes));
    }
  }
}

TEST_P(Allocators, ShareIsTheSameMemoryOrRefused) {
  auto* const block = static_cast<unsigned char*>(get(10'000));
  const Block written{block, 10'000, 3};
  fill_block(written);
  int fd = -1;
  uint64_t offset = 1;
  const fsccl_status_t status = table_.share(table_.context, block, &fd, &offset);
  if (stack_.shares()) {
    EXPECT_OK(status);
    EXPECT_TRUE(stack_.reads(fd, offset, block, 10'000));
  } else {
    EXPECT_EQ(status, FSCCL_ERR_NOT_AVAILABLE) << explain(status);
    EXPECT_EQ(fd, -1);
  }
  EXPECT_OK(give(block, 10'000));
  EXPECT_ERROR(table_.share(table_.context, block, &fd, &offset), FSCCL_ERR_INVALID_ARGUMENT,
               "is not a block");
}

TEST_P(Allocators, DestroyIsRefusedWhileBlocksAreOut) {
  void* const block = get(100);
  EXPECT_ERROR(table_.destroy(table_.context), FSCCL_ERR_INVALID_STATE, "1 block(s)", "100 bytes");
  EXPECT_OK(give(block, 100));
  EXPECT_OK(table_.destroy(table_.context));
  stack_.forget_top();
  void* pointer = nullptr;
  EXPECT_ERROR(table_.destroy(table_.context), FSCCL_ERR_INVALID_HANDLE, "destroyed");
  EXPECT_ERROR(table_.allocate(table_.context, 1, 1, nullptr, &pointer), FSCCL_ERR_INVALID_HANDLE,
               "destroyed");
  EXPECT_ERROR(give(block, 100), FSCCL_ERR_INVALID_HANDLE, "destroyed");
}

std::vector<Adaptors> stacks() {
  return {{"limit"},
          {"statistics"},
          {"log"},
          {"guard"},
          {"on_failure"},
          {"limit", "statistics", "log"},
          {"guard", "limit", "on_failure"},
          {"log", "on_failure", "guard"},
          {"statistics", "guard", "statistics"}};
}
// Returns no source without the stand-in driver, because these tests cannot write memory of a real
// GPU.
std::vector<const char*> cuda() {
  return stand_in::Control().there() ? std::vector<const char*>{"cuda"}
                                     : std::vector<const char*>{};
}
std::string name_of_case(const ::testing::TestParamInfo<Allocators::ParamType>& info) {
  std::string name = std::get<0>(info.param);
  for (const std::string& adaptor : std::get<1>(info.param)) name += "_" + adaptor;
  return name;
}
// A table from outside is checked where the library uses it, so the outside source has at least one
// adaptor on it.
INSTANTIATE_TEST_SUITE_P(Sources, Allocators,
                         ::testing::Combine(::testing::Values("host", "pool"),
                                            ::testing::Values(Adaptors{})),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Adaptors, Allocators,
                         ::testing::Combine(::testing::Values("host", "pool", "outside"),
                                            ::testing::ValuesIn(stacks())),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(
    Cuda, Allocators,
    ::testing::Combine(::testing::ValuesIn(cuda()),
                       ::testing::Values(Adaptors{}, Adaptors{"limit"}, Adaptors{"statistics"},
                                         Adaptors{"log"}, Adaptors{"on_failure"},
                                         Adaptors{"limit", "statistics", "log"},
                                         Adaptors{"log", "on_failure", "limit"})),
    name_of_case);

}  // namespace
}  // namespace fsccl::testing
