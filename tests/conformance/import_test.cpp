// fsccl_pool_import: the caller's memory keeps its addresses and contents, and collectives on it
// are right, before, while and after it belongs to the pool.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "fsccl/insight.h"
#include "support.h"

namespace fsccl::testing {
namespace {

// Memory of the caller's own, in whole pages.
class Pages {
 public:
  explicit Pages(size_t pages)
      : bytes_(pages * kPage), data_(static_cast<char*>(std::aligned_alloc(kPage, bytes_))) {}
  ~Pages() { std::free(data_); }
  Pages(const Pages&) = delete;
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  size_t bytes_;
  char* data_;
};

char pattern(uint64_t seed, size_t index) {
  return static_cast<char>(mix(seed, index / 64) + index);
}

void fill(const Pages& pages, uint64_t seed) {
  for (size_t i = 0; i < pages.bytes(); i++) pages.data()[i] = pattern(seed, i);
}
void expect_filled(const Pages& pages, uint64_t seed, const char* when) {
  for (size_t i = 0; i < pages.bytes(); i++)
    ASSERT_EQ(pages.data()[i], pattern(seed, i)) << when << ", byte " << i;
}

class Import : public ::testing::TestWithParam<int> {};

// All-gather, all-reduce and broadcast on `pages` (which holds an all-gather's result).
void run_collectives(const Rank& self, const Pages& send, const Pages& recv, int round) {
  const size_t count = send.bytes() / sizeof(int32_t);
  const auto value = [&](int rank, size_t i) {
    return static_cast<int32_t>(i * 7) + rank * 1000 + round;
  };
  for (size_t i = 0; i < count; i++) send.as<int32_t>()[i] = value(self.rank, i);
  ASSERT_OK(
      fsccl_all_gather(send.data(), recv.data(), count, FSCCL_INT32, self.comm, nullptr, nullptr));
  for (int q = 0; q < self.ranks; q++)
    for (size_t i = 0; i < count; i++)
      ASSERT_EQ(recv.as<int32_t>()[static_cast<size_t>(q) * count + i], value(q, i));
  ASSERT_OK(fsccl_all_reduce(send.data(), recv.data(), count, FSCCL_INT32, FSCCL_SUM, self.comm,
                             nullptr, nullptr));
  for (size_t i = 0; i < count; i++)
    ASSERT_EQ(recv.as<int32_t>()[i],
              self.ranks * value(0, i) + 1000 * (self.ranks * (self.ranks - 1) / 2));
  const int root = round % self.ranks;
  // This broadcasts a part that begins and ends inside of the pages.
  ASSERT_OK(fsccl_broadcast(send.as<int32_t>() + 3, count - 5, FSCCL_INT32, root, self.comm,
                            nullptr, nullptr));
  for (size_t i = 3; i < count - 2; i++) ASSERT_EQ(send.as<int32_t>()[i], value(root, i));
}

TEST_P(Import, CollectivesAndContents) {
  for (const char* single_copy : {"off", "auto"}) {
    const Settings settings{{"FSCCL_SINGLE_COPY", single_copy}};
    run_ranks(GetParam(), [](Rank& self) {
      const PoolScope pool(self.comm);
      const Pages send(64), recv(64 * static_cast<size_t>(self.ranks));
      const auto seed = static_cast<uint64_t>(self.rank) + 1;
      for (int round = 0; round < 3 && !HasFailure(); round++) {
        run_collectives(self, send, recv, round);
        fill(send, seed);
        fill(recv, seed + 100);
        ASSERT_OK(fsccl_pool_import(pool.get(), send.data(), send.bytes()));
        if (round != 1 || self.rank % 2 == 0) {
          ASSERT_OK(fsccl_pool_import(pool.get(), recv.data(), recv.bytes()));
        }
        expect_filled(send, seed, "imported");
        expect_filled(recv, seed + 100, "imported");
        EXPECT_GE(pool.stats().local_live_bytes, send.bytes());
        for (int i = 0; i < 3 && !HasFailure(); i++) run_collectives(self, send, recv, round + i);
        fsccl_counters_t counters = FSCCL_COUNTERS_INIT;
        ASSERT_OK(fsccl_comm_counters(self.comm, &counters));
        EXPECT_EQ(counters.kernel_copies, 0u);
        fill(send, seed + 7);
        fill(recv, seed + 8);
        ASSERT_OK(fsccl_pool_free(pool.get(), send.data(), nullptr));
        if (round != 1 || self.rank % 2 == 0) {
          ASSERT_OK(fsccl_pool_free(pool.get(), recv.data(), nullptr));
        }
        expect_filled(send, seed + 7, "ended");
        expect_filled(recv, seed + 8, "ended");
        EXPECT_EQ(pool.stats().local_live_bytes, 0u);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Shm, Import, ::testing::Values(1, 2, 4),
                         ::testing::PrintToStringParamName());

TEST(Imports, PartsOfOneAllocationInAnyOrder) {
  run_ranks(1, [](Rank& self) {
    const PoolScope pool(self.comm);
    const Pages pages(40);
    fill(pages, 3);
    for (const size_t at : {20, 0, 39, 5})
      ASSERT_OK(fsccl_pool_import(pool.get(), pages.data() + at * kPage, kPage));
    EXPECT_EQ(pool.stats().local_live_bytes, 4 * kPage);
    expect_filled(pages, 3, "parts imported");
    for (const size_t at : {0, 5, 39, 20})
      ASSERT_OK(fsccl_pool_free(pool.get(), pages.data() + at * kPage, nullptr));
    expect_filled(pages, 3, "parts ended");
    // The pages are private memory again, so they can be imported once more.
    ASSERT_OK(fsccl_pool_import(pool.get(), pages.data(), pages.bytes()));
    expect_filled(pages, 3, "whole imported");
    ASSERT_OK(fsccl_pool_free(pool.get(), pages.data(), nullptr));
    expect_filled(pages, 3, "whole ended");
  });
}

TEST(Imports, MisuseIsRefusedAndChangesNothing) {
  run_ranks(1, [](Rank& self) {
    const PoolScope pool(self.comm);
    const Pages pages(8);
    fill(pages, 5);
    const auto refuse = [&](void* pointer, size_t bytes, const char* word) {
      EXPECT_ERROR(fsccl_pool_import(pool.get(), pointer, bytes), FSCCL_ERR_INVALID_ARGUMENT, word);
    };
    refuse(nullptr, kPage, "aligned_alloc");
    refuse(pages.data(), 0, "aligned_alloc");
    refuse(pages.data() + 64, kPage, "whole pages of 4096 bytes");
    refuse(pages.data(), kPage + 1, "whole pages of 4096 bytes");
    refuse(pages.data(), SIZE_MAX / kPage * kPage, "aligned_alloc");
    const auto map = [](size_t bytes, int protection, int flags) {
      return mmap(nullptr, bytes, protection, flags, -1, 0);
    };
    constexpr int kReadWrite = PROT_READ | PROT_WRITE;
    void* shared = map(kPage, kReadWrite, MAP_SHARED | MAP_ANONYMOUS);
    void* constant = map(kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS);
    void* hole = map(3 * kPage, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS);
    munmap(static_cast<char*>(hole) + kPage, kPage);
    refuse(shared, kPage, "shared");
    refuse(constant, kPage, "not readable and writable");
    refuse(hole, 3 * kPage, "no memory at");
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    void* file = mmap(nullptr, kPage, kReadWrite, MAP_PRIVATE, fd, 0);
    ASSERT_NE(file, MAP_FAILED);
    refuse(file, kPage, "of a file");
    // The address of a variable would not do, because a sanitizer keeps variables elsewhere.
    refuse(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) / kPage *
                                   kPage),
           kPage, "stack");
    void* block = nullptr;
    ASSERT_OK(fsccl_pool_alloc(pool.get(), 1 << 20, nullptr, &block));
    refuse(block, kPage, "of a pool already");
    ASSERT_OK(fsccl_pool_free(pool.get(), block, nullptr));
    ASSERT_OK(fsccl_pool_import(pool.get(), pages.data(), pages.bytes()));
    refuse(pages.data(), pages.bytes(), "of a pool already");
    refuse(pages.data() + kPage, kPage, "of a pool already");
    EXPECT_ERROR(fsccl_pool_free(pool.get(), pages.data() + kPage, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "not a block");
    EXPECT_ERROR(fsccl_pool_destroy(pool.get()), FSCCL_ERR_INVALID_STATE, "1 import(s)");
    EXPECT_ERROR(fsccl_pool_import(nullptr, pages.data(), kPage), FSCCL_ERR_INVALID_HANDLE, "NULL");
    ASSERT_OK(fsccl_pool_free(pool.get(), pages.data(), nullptr));
    EXPECT_ERROR(fsccl_pool_free(pool.get(), pages.data(), nullptr), FSCCL_ERR_INVALID_ARGUMENT,
                 "not a block");
    expect_filled(pages, 5, "after all");
    EXPECT_EQ(pool.stats().local_live_bytes, 0u);
    close(fd);
    munmap(file, kPage);
    munmap(shared, kPage);
    munmap(constant, kPage);
    munmap(hole, 3 * kPage);
  });
}

TEST(Imports, ThePoolsLimitHolds) {
  run_ranks(1, [](Rank& self) {
    const PoolScope pool(self.comm, 4 << 20);
    const Pages small(512), large(2048);  // 2 and 8 MiB
    fill(large, 9);
    ASSERT_OK(fsccl_pool_import(pool.get(), small.data(), small.bytes()));
    EXPECT_ERROR(fsccl_pool_import(pool.get(), large.data(), large.bytes()),
                 FSCCL_ERR_OUT_OF_MEMORY, "limit");
    expect_filled(large, 9, "refused");
    EXPECT_EQ(pool.stats().local_live_bytes, small.bytes());
    ASSERT_OK(fsccl_pool_free(pool.get(), small.data(), nullptr));
  });
}

TEST(Imports, ARehearsalHasNoMemory) {
  run_ranks(1, [](Rank& self) {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.dry_run = 1;
    fsccl_pool_t pool = nullptr;
    ASSERT_OK(fsccl_pool_create(self.comm, &config, &pool));
    const Pages pages(1);
    EXPECT_ERROR(fsccl_pool_import(pool, pages.data(), pages.bytes()), FSCCL_ERR_INVALID_STATE,
                 "dry_run");
    ASSERT_OK(fsccl_pool_destroy(pool));
  });
}

// A forked child cannot reach the parent's imported data. After the import has ended, the memory is
// inherited as before.
TEST(Imports, AForkedChildDoesNotHaveThem) {
  run_ranks(1, [](Rank& self) {
    const PoolScope pool(self.comm);
    const Pages pages(4);
    fill(pages, 2);
    ASSERT_OK(fsccl_pool_import(pool.get(), pages.data(), pages.bytes()));
    unsigned char resident[4];
    for (const bool imported : {true, false}) {
      if (!imported) {
        ASSERT_OK(fsccl_pool_free(pool.get(), pages.data(), nullptr));
      }
      const pid_t child = fork();
      if (child == 0) {
        const bool there = mincore(pages.data(), pages.bytes(), resident) == 0;
        _exit(there == !imported ? 0 : 1);
      }
      int status = 1;
      waitpid(child, &status, 0);
      EXPECT_EQ(status, 0) << imported;
      expect_filled(pages, 2, "after a fork");
    }
  });
}

}  // namespace
}  // namespace fsccl::testing
