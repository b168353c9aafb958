// Tests tables from outside, which are checked, and the two functions that PyTorch loads.
#include <cstddef>

#include "refusing_source.h"

namespace fsccl::testing {
namespace {

TEST(Outside, TablesFromOutsideAreChecked) {
  Refusing below;
  fsccl_allocator_t made;
  const auto expect = [&](fsccl_allocator_t table, fsccl_status_t code, const char* words) {
    EXPECT_ERROR(fsccl_allocator_limit(&table, 1, &made), code, words);
  };
  EXPECT_ERROR(fsccl_allocator_limit(nullptr, 1, &made), FSCCL_ERR_INVALID_ARGUMENT, "NULL");
  EXPECT_ERROR(fsccl_allocator_limit(&below.table, 1, nullptr), FSCCL_ERR_INVALID_ARGUMENT, "NULL");
  fsccl_allocator_t table = below.table;
  for (const size_t size :
       {size_t{0}, size_t{8}, offsetof(fsccl_allocator_t, share) + 2, size_t{5000}}) {
    table.size = size;
    expect(table, FSCCL_ERR_INVALID_ARGUMENT, "FSCCL_ALLOCATOR_INIT");
  }
  table = below.table;
  table.abi = 2;
  expect(table, FSCCL_ERR_VERSION, "abi is 2");
  table = below.table;
  table.allocate = nullptr;
  expect(table, FSCCL_ERR_INVALID_ARGUMENT, "no function allocate");
  table = below.table;
  table.deallocate = nullptr;
  expect(table, FSCCL_ERR_INVALID_ARGUMENT, "no function deallocate");
  table = below.table;
  table.memory = wild<fsccl_memory_t>(7);
  expect(table, FSCCL_ERR_INVALID_ARGUMENT, "memory is 7");
  table = below.table;
  table.size = offsetof(fsccl_allocator_t, share);  // a table of an older program
  table.name = nullptr;
  table.destroy = [](void*) { return FSCCL_ERR_INTERNAL; };
  ASSERT_OK(fsccl_allocator_limit(&table, 1000, below.add()));
  void* pointer = nullptr;
  ASSERT_OK(get(below.made.back(), 1000, &pointer));
  EXPECT_OK(give(below.made.back(), pointer, 1000));
}

TEST(Outside, AnswersFromOutsideAreChecked) {
  Refusing below;
  fsccl_allocator_t& limit = *below.add();
  ASSERT_OK(fsccl_allocator_limit(&below.table, 1 << 20, &limit));
  void *pointer = nullptr, *other = nullptr;
  ASSERT_OK(get(limit, 100, &pointer));
  below.source->answer = OUTSIDE_NULL;
  EXPECT_ERROR(get(limit, 10, &other), FSCCL_ERR_INVALID_STATE, "'outside'", "NULL");
  below.source->answer = OUTSIDE_MISALIGNED;
  EXPECT_ERROR(get(limit, 10, &other), FSCCL_ERR_INVALID_STATE, "aligned to 64: it is not");
  below.source->answer = OUTSIDE_ODD_STATUS;
  EXPECT_ERROR(get(limit, 10, &other), FSCCL_ERR_SYSTEM, "returned -80");
  below.source->answer = OUTSIDE_TWICE;
  EXPECT_ERROR(get(limit, 10, &other), FSCCL_ERR_INVALID_STATE, "overlaps");
  below.source->answer = OUTSIDE_RIGHT;
  EXPECT_EQ(other, nullptr);
  EXPECT_OK(give(limit, pointer, 100));
  EXPECT_EQ(below.source->frees, 2);  // the block, and the misaligned one that was refused
}

TEST(TorchAllocator, ServesEachDeviceFromItsAllocator) {
  Refusing first, second;
  EXPECT_EQ(fsccl_torch_malloc(100, 0, nullptr), nullptr);
  EXPECT_THAT(last_error().text, ::testing::HasSubstr("fsccl_torch_use"));
  ASSERT_OK(fsccl_torch_use(0, &first.table));
  ASSERT_OK(fsccl_torch_use(1, &second.table));
  EXPECT_EQ(fsccl_torch_malloc(0, 0, nullptr), nullptr);
  EXPECT_EQ(first.source->allocations, 0);
  void* const zero = fsccl_torch_malloc(1000, 0, nullptr);
  void* const one = fsccl_torch_malloc(2000, 1, nullptr);
  EXPECT_EQ(first.source->out, 1000u);
  EXPECT_EQ(second.source->out, 2000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(zero) % 512, 0u);
  // A block goes back to the source that gave it, whichever source is in use then.
  ASSERT_OK(fsccl_torch_use(0, &second.table));
  fsccl_torch_free(zero, 999, 0, nullptr);
  EXPECT_THAT(last_error().text, ::testing::HasSubstr("has 1000 bytes"));
  EXPECT_EQ(first.source->out, 1000u);
  fsccl_torch_free(zero, 1000, 0, nullptr);
  EXPECT_EQ(first.source->out, 0u);
  fsccl_torch_free(zero, 1000, 0, nullptr);
  EXPECT_THAT(last_error().text, ::testing::HasSubstr("given back before"));
  fsccl_torch_free(nullptr, 0, 0, nullptr);
  fsccl_torch_free(&first, 8, 0, nullptr);
  EXPECT_THAT(last_error().text, ::testing::HasSubstr("is not a block"));
  ASSERT_OK(fsccl_torch_use(1, nullptr));
  EXPECT_EQ(fsccl_torch_malloc(1, 1, nullptr), nullptr);
  fsccl_torch_free(one, 2000, 1, nullptr);
  EXPECT_EQ(second.source->out, 0u);
  second.source->capacity = 10;
  EXPECT_EQ(fsccl_torch_malloc(11, 0, nullptr), nullptr);
  EXPECT_EQ(last_error().code, FSCCL_ERR_OUT_OF_MEMORY);
  EXPECT_EQ(fsccl_torch_malloc(-1, 0, nullptr), nullptr);
  EXPECT_EQ(last_error().code, FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_ERROR(fsccl_torch_use(-1, &first.table), FSCCL_ERR_INVALID_ARGUMENT, "device is -1");
  ASSERT_OK(fsccl_torch_use(0, nullptr));
}

TEST(TorchAllocator, ServesFromAPool) {
  SourceStack stack("pool", {});
  ASSERT_OK(fsccl_torch_use(3, &stack.top()));
  void* const block = fsccl_torch_malloc(100'000, 3, nullptr);
  ASSERT_NE(block, nullptr);
  std::memset(block, 1, 100'000);
  EXPECT_ERROR(fsccl_pool_destroy(stack.pool()), FSCCL_ERR_INVALID_STATE, "1 block(s)");
  EXPECT_EQ(fsccl_torch_malloc(1 << 30, 3, nullptr), nullptr);
  EXPECT_EQ(last_error().code, FSCCL_ERR_OUT_OF_MEMORY);
  fsccl_torch_free(block, 100'000, 3, nullptr);
  stack.expect_empty();
  ASSERT_OK(fsccl_torch_use(3, nullptr));
}

}  // namespace
}  // namespace fsccl::testing
