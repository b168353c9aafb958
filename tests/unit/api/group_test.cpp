// Tests grouped calls that run out of memory.
#include <fsccl/fsccl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

namespace {

thread_local bool no_memory = false;  // the next allocation of this thread fails

void* allocate(std::size_t bytes) {
  if (std::exchange(no_memory, false)) throw std::bad_alloc();
  if (void* const block = std::malloc(bytes)) return block;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t) noexcept { std::free(block); }

namespace fsccl::testing {
namespace {

TEST(Group, ACallThatFindsNoMemoryIsNotSubmitted) {
  fsccl_unique_id_t id;
  ASSERT_EQ(fsccl_unique_id_create(&id), FSCCL_OK);
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  config.unique_id = &id;
  config.rank = 0;
  config.ranks = 1;
  fsccl_comm_t comm = nullptr;
  ASSERT_EQ(fsccl_comm_create(&config, &comm), FSCCL_OK);
  const auto gather = [&](const int* sent, int* received) {
    return fsccl_all_gather(sent, received, 1, FSCCL_INT32, comm, nullptr, nullptr);
  };
  const int sent = 7;
  int received = 0;
  ASSERT_EQ(gather(&sent, &received), FSCCL_OK);  // the library keeps the call's plan from now on
  received = 0;
  ASSERT_EQ(fsccl_group_start(), FSCCL_OK);
  no_memory = true;
  EXPECT_EQ(gather(&sent, &received), FSCCL_ERR_OUT_OF_MEMORY);
  EXPECT_EQ(received, 0);
  no_memory = false;
  EXPECT_EQ(gather(&sent, &received), FSCCL_OK);
  EXPECT_EQ(fsccl_group_end(), FSCCL_OK);
  EXPECT_EQ(received, sent);
  EXPECT_EQ(fsccl_comm_destroy(comm), FSCCL_OK);
}

}  // namespace
}  // namespace fsccl::testing
