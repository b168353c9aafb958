// Tests the effect of each adaptor, besides passing calls on.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <regex>
#include <sstream>

#include "refusing_source.h"

namespace fsccl::testing {
namespace {

TEST(Adaptors, LimitIsExact) {
  Refusing below;
  fsccl_allocator_t& limit = *below.add();
  ASSERT_OK(fsccl_allocator_limit(&below.table, 1000, &limit));
  void *first = nullptr, *second = nullptr;
  ASSERT_OK(get(limit, 600, &first));
  EXPECT_ERROR(get(limit, 401, &second), FSCCL_ERR_OUT_OF_MEMORY, "600 bytes are out", "401 more",
               "limit of 1000");
  ASSERT_OK(get(limit, 400, &second));
  EXPECT_OK(give(limit, first, 600));
  below.source->capacity = 0;  // a request that the source below refuses does not count
  EXPECT_ERROR(get(limit, 500, &first), FSCCL_ERR_OUT_OF_MEMORY, "'outside'");
  below.source->capacity = 1 << 20;
  ASSERT_OK(get(limit, 600, &first));
  EXPECT_OK(give(limit, first, 600));
  EXPECT_OK(give(limit, second, 400));
}

TEST(Adaptors, StatisticsCount) {
  Refusing below;
  fsccl_allocator_t& counting = *below.add();
  ASSERT_OK(fsccl_allocator_count(&below.table, &counting));
  void* blocks[3];
  for (size_t i = 0; i < 3; ++i) ASSERT_OK(get(counting, 100 * (i + 1), &blocks[i]));
  EXPECT_OK(give(counting, blocks[1], 200));
  EXPECT_OK(give(counting, blocks[2], 300));
  ASSERT_OK(get(counting, 50, &blocks[1]));
  EXPECT_EQ(get(counting, 2 << 20, &blocks[2]), FSCCL_ERR_OUT_OF_MEMORY);
  EXPECT_EQ(give(counting, &below, 8), FSCCL_ERR_INVALID_ARGUMENT);
  fsccl_allocator_stats_t stats = FSCCL_ALLOCATOR_STATS_INIT;
  ASSERT_OK(fsccl_allocator_stats(&counting, &stats));
  EXPECT_EQ(stats.size, sizeof stats);
  EXPECT_EQ(stats.live_bytes, 150u);
  EXPECT_EQ(stats.peak_bytes, 600u);
  EXPECT_EQ(stats.total_bytes, 650u);
  EXPECT_EQ(stats.allocations, 4u);
  EXPECT_EQ(stats.frees, 2u);
  EXPECT_EQ(stats.failures, 1u);
  EXPECT_ERROR(fsccl_allocator_stats(&below.table, &stats), FSCCL_ERR_INVALID_ARGUMENT,
               "fsccl_allocator_count");
  EXPECT_ERROR(fsccl_allocator_stats(&counting, nullptr), FSCCL_ERR_INVALID_ARGUMENT,
               "FSCCL_ALLOCATOR_STATS_INIT");
  EXPECT_OK(give(counting, blocks[0], 100));
  EXPECT_OK(give(counting, blocks[1], 50));
}

// A source may report an error when a block is given back. The block is gone all the same, so it
// counts neither against the limit nor as allocated.
TEST(Adaptors, ABlockWhoseReturnFailsIsGivenBack) {
  Refusing below;
  fsccl_allocator_t failing = below.table;
  static const auto kGiveBack = below.table.deallocate;
  failing.deallocate = [](void* context, void* pointer, size_t bytes, void* stream) {
    EXPECT_EQ(kGiveBack(context, pointer, bytes, stream), FSCCL_OK);
    return FSCCL_ERR_SYSTEM;
  };
  fsccl_allocator_t &limit = *below.add(), &counting = *below.add();
  ASSERT_OK(fsccl_allocator_limit(&failing, 1000, &limit));
  ASSERT_OK(fsccl_allocator_count(&limit, &counting));
  for (int turn = 0; turn < 3; ++turn) {
    void* pointer = nullptr;
    ASSERT_OK(get(counting, 1000, &pointer));
    EXPECT_ERROR(give(counting, pointer, 1000), FSCCL_ERR_SYSTEM, "take back the 1000 bytes");
    EXPECT_EQ(give(counting, pointer, 1000), FSCCL_ERR_INVALID_ARGUMENT);
  }
  fsccl_allocator_stats_t stats = FSCCL_ALLOCATOR_STATS_INIT;
  ASSERT_OK(fsccl_allocator_stats(&counting, &stats));
  EXPECT_EQ(stats.live_bytes, 0u);
  EXPECT_EQ(stats.frees, 3u);
}

TEST(Adaptors, LogHasTheFormOfRmm) {
  TemporaryPath file;
  Refusing below;
  std::vector<std::string> expected = {"Thread,Time,Action,Pointer,Size,Stream"};
  for (int life = 0; life < 2; ++life) {  // the second appends, with no second heading
    fsccl_allocator_t& log = *below.add();
    ASSERT_OK(fsccl_allocator_log(&below.table, file.path().c_str(), &log));
    void *pointer = nullptr, *none = nullptr;
    ASSERT_OK(get(log, 1000, &pointer));
    EXPECT_EQ(get(log, 2 << 20, &none, &below), FSCCL_ERR_OUT_OF_MEMORY);
    EXPECT_OK(give(log, pointer, 1000, &file));
    const auto hex = [](const void* address) {
      std::ostringstream text;
      text << "0x" << std::hex << reinterpret_cast<uintptr_t>(address);
      return text.str();
    };
    expected.push_back("allocate," + hex(pointer) + ",1000,0x0");
    expected.push_back("allocate failure,0x0,2097152," + hex(&below));
    expected.push_back("free," + hex(pointer) + ",1000," + hex(&file));
  }
  std::istringstream lines(file.text());
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);) {
    static const std::regex kForm("([0-9]+),([0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{6}),(.*)");
    std::smatch parts;
    const bool heading = found.empty() || !std::regex_match(line, parts, kForm);
    EXPECT_EQ(heading ? std::to_string(gettid()) : parts[1].str(), std::to_string(gettid()));
    found.push_back(heading ? line : parts[3].str());
  }
  EXPECT_EQ(found, expected);
  fsccl_allocator_t none;
  EXPECT_ERROR(fsccl_allocator_log(&below.table, (file.path() + "/none").c_str(), &none),
               FSCCL_ERR_CONFIG, "/none", "the log of allocations");
  EXPECT_ERROR(fsccl_allocator_log(&below.table, nullptr, &none), FSCCL_ERR_INVALID_ARGUMENT,
               "path");
}

TEST(Adaptors, GuardReportsOverruns) {
  Refusing below;
  std::vector<std::string> reports;
  fsccl_allocator_t& guard = *below.add();
  ASSERT_OK(fsccl_allocator_guard(
      &below.table,
      [](void* list, const char* text) {
        static_cast<std::vector<std::string>*>(list)->push_back(text);
      },
      &reports, &guard));
  for (const auto& [at, words] :
       std::vector<std::pair<int, std::string>>{{100, "from 1 to 1 bytes beyond its end"},
                                                {163, "from 64 to 64 bytes beyond"},
                                                {-1, "from 1 to 1 bytes before its begin"},
                                                {-64, "from 64 to 64 bytes before"},
                                                {0, ""},
                                                {99, ""}}) {
    void* pointer = nullptr;
    ASSERT_OK(get(guard, 100, &pointer));
    auto* const bytes = static_cast<unsigned char*>(pointer);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(bytes[i], 0xFF) << "fresh memory is not poisoned";
    bytes[at] = 1;
    EXPECT_OK(give(guard, pointer, 100));
    EXPECT_EQ(reports.size(), words.empty() ? 0u : 1u) << at;
    EXPECT_THAT(reports, ::testing::Each(::testing::HasSubstr(words))) << at;
    reports.clear();
  }
  // Memory that is given back is poisoned, too; the memory of the source below shows it.
  void* pointer = nullptr;
  ASSERT_OK(get(guard, 100, &pointer));
  std::memset(pointer, 1, 100);
  auto watch = [](void* context, void* given, size_t bytes, void*) -> fsccl_status_t {
    int* const poisoned = static_cast<int*>(context);
    for (size_t i = 0; i < bytes; ++i) *poisoned += static_cast<unsigned char*>(given)[i] == 0xFF;
    std::free(given);
    return FSCCL_OK;
  };
  EXPECT_OK(give(guard, pointer, 100));
  int poisoned = 0;
  fsccl_allocator_t watched = FSCCL_ALLOCATOR_INIT;
  watched.context = &poisoned;
  watched.allocate = [](void*, size_t bytes, size_t alignment, void*,
                        void** result) -> fsccl_status_t {
    *result = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    return FSCCL_OK;
  };
  watched.deallocate = watch;
  ASSERT_OK(fsccl_allocator_guard(&watched, nullptr, nullptr, below.add()));
  ASSERT_OK(get(below.made.back(), 100, &pointer));
  std::memset(pointer, 1, 100);
  EXPECT_OK(give(below.made.back(), pointer, 100));
  EXPECT_EQ(poisoned, 100);
  watched.memory = FSCCL_MEMORY_CUDA;
  fsccl_allocator_t none;
  EXPECT_ERROR(fsccl_allocator_guard(&watched, nullptr, nullptr, &none), FSCCL_ERR_NOT_AVAILABLE,
               "device memory");
}

TEST(Adaptors, OnFailureIsAskedOnce) {
  Refusing below;
  struct Asked {
    outside_source_t* source;
    std::vector<uint64_t> bytes;
    uint64_t frees;
  } asked{below.source.get(), {}, 0};
  const auto free_some = [](void* context, uint64_t bytes) {
    auto* const state = static_cast<Asked*>(context);
    state->bytes.push_back(bytes);
    state->source->capacity += state->frees;
    return state->frees;
  };
  fsccl_allocator_t& careful = *below.add();
  ASSERT_OK(fsccl_allocator_on_failure(&below.table, free_some, &asked, &careful));
  below.source->capacity = 1000;
  void* pointer = nullptr;
  asked.frees = 500;
  ASSERT_OK(get(careful, 1400, &pointer));
  EXPECT_THAT(asked.bytes, ::testing::ElementsAre(1400u));
  EXPECT_OK(give(careful, pointer, 1400));
  asked.bytes.clear();
  // The freed memory is not enough.
  EXPECT_EQ(get(careful, 5000, &pointer), FSCCL_ERR_OUT_OF_MEMORY);
  EXPECT_THAT(asked.bytes, ::testing::ElementsAre(5000u));
  asked.bytes.clear();
  asked.frees = 0;
  EXPECT_EQ(get(careful, 5000, &pointer), FSCCL_ERR_OUT_OF_MEMORY);
  EXPECT_THAT(asked.bytes, ::testing::ElementsAre(5000u));
  asked.bytes.clear();
  below.source->answer = OUTSIDE_NULL;  // wrong, not short
  EXPECT_EQ(get(careful, 10, &pointer), FSCCL_ERR_INVALID_STATE);
  EXPECT_THAT(asked.bytes, ::testing::IsEmpty());
  EXPECT_ERROR(fsccl_allocator_on_failure(&below.table, nullptr, nullptr, &careful),
               FSCCL_ERR_INVALID_ARGUMENT, "on_failure");
}

TEST(Adaptors, AChildOfForkIsTold) {
  fsccl_allocator_t host;
  ASSERT_OK(fsccl_allocator_host(&host));
  void* pointer = nullptr;
  ASSERT_OK(get(host, 100, &pointer));
  const pid_t child = fork();
  if (child == 0) {
    void* none = nullptr;
    fsccl_allocator_t limit;
    const bool told = get(host, 100, &none) == FSCCL_ERR_FORKED &&
                      give(host, pointer, 100) == FSCCL_ERR_FORKED &&
                      fsccl_allocator_limit(&host, 1, &limit) == FSCCL_ERR_FORKED &&
                      !fsccl_torch_malloc(1, 0, nullptr) && last_error().code == FSCCL_ERR_FORKED;
    _exit(told ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_OK(give(host, pointer, 100));
  EXPECT_OK(host.destroy(host.context));
}

TEST(Adaptors, OutlivesTheTableBelow) {
  fsccl_allocator_t host, counting, limit;
  ASSERT_OK(fsccl_allocator_host(&host));
  ASSERT_OK(fsccl_allocator_count(&host, &counting));
  ASSERT_OK(fsccl_allocator_limit(&counting, 10'000, &limit));
  void* pointer = nullptr;
  ASSERT_OK(get(limit, 10'000, &pointer));
  EXPECT_OK(host.destroy(host.context));
  std::memset(pointer, 1, 10'000);
  fsccl_allocator_stats_t stats = FSCCL_ALLOCATOR_STATS_INIT;
  EXPECT_OK(fsccl_allocator_stats(&counting, &stats));
  EXPECT_EQ(stats.live_bytes, 10'000u);
  EXPECT_OK(counting.destroy(counting.context));
  EXPECT_OK(give(limit, pointer, 10'000));
  EXPECT_OK(limit.destroy(limit.context));
  EXPECT_ERROR(fsccl_allocator_limit(&host, 1, &limit), FSCCL_ERR_INVALID_HANDLE, "destroyed");
}

TEST(Adaptors, APoolThatWasDestroyedIsSeen) {
  const fsccl_comm_t comm = alone();
  fsccl_allocator_t blocks;
  void* pointer = nullptr;
  {
    const PoolScope pool(comm);
    ASSERT_OK(fsccl_pool_allocator(pool.get(), &blocks));
    EXPECT_ERROR(blocks.allocate(blocks.context, 8, 8192, nullptr, &pointer),
                 FSCCL_ERR_INVALID_ARGUMENT, "4096 at most");
  }
  EXPECT_ERROR(get(blocks, 8, &pointer), FSCCL_ERR_INVALID_HANDLE, "destroyed");
  EXPECT_ERROR(fsccl_pool_allocator(nullptr, &blocks), FSCCL_ERR_INVALID_HANDLE, "NULL");
  fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
  config.dry_run = 1;
  fsccl_pool_t pool = nullptr;
  ASSERT_OK(fsccl_pool_create(comm, &config, &pool));
  EXPECT_OK(blocks.destroy(blocks.context));
  ASSERT_OK(fsccl_pool_allocator(pool, &blocks));
  EXPECT_ERROR(get(blocks, 8, &pointer), FSCCL_ERR_INVALID_STATE, "dry_run");
  EXPECT_OK(blocks.destroy(blocks.context));
  EXPECT_OK(fsccl_pool_destroy(pool));
  EXPECT_OK(fsccl_comm_destroy(comm));
}

}  // namespace
}  // namespace fsccl::testing
