#include "source_stack.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "fsccl/insight.h"
#include "tests/stand_in/cuda/control.h"

namespace fsccl::testing {
namespace {

constexpr size_t kCapacity = 16u << 20, kLimit = 12u << 20;

bool has(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

TemporaryPath::TemporaryPath() {
  std::string folder = (std::filesystem::temp_directory_path() / "fsccl-test-XXXXXX").string();
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  folder_ = folder;
  path_ = folder + "/file";
}

TemporaryPath::~TemporaryPath() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string TemporaryPath::text() const {
  std::ostringstream text;
  text << std::ifstream(path_).rdbuf();
  return text.str();
}

fsccl_comm_t alone() {
  fsccl_unique_id_t id;
  EXPECT_OK(fsccl_unique_id_create(&id));
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  config.unique_id = &id;
  config.rank = 0;
  config.ranks = 1;
  fsccl_comm_t comm = nullptr;
  EXPECT_OK(fsccl_comm_create(&config, &comm));
  return comm;
}

SourceStack::SourceStack(const std::string& source, const std::vector<std::string>& adaptors)
    : source_(source), adaptors_(adaptors) {
  fsccl_allocator_t table = FSCCL_ALLOCATOR_INIT;
  if (source == "host") {
    EXPECT_OK(fsccl_allocator_host(&table));
  } else if (source == "cuda") {
    EXPECT_OK(fsccl_allocator_cuda(0, &table));
  } else if (source == "pool") {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.limit_bytes = kCapacity;
    comm_ = alone();
    EXPECT_OK(fsccl_pool_create(comm_, &config, &pool_));
    EXPECT_OK(fsccl_pool_allocator(pool_, &table));
  } else {
    outside_ = std::make_unique<outside_source_t>();
    outside_source_init(outside_.get(), kCapacity, 0, &table);
  }
  tables_.push_back(table);
  for (const std::string& adaptor : adaptors) tables_.push_back(put_on(adaptor, tables_.back()));
}

fsccl_allocator_t SourceStack::put_on(const std::string& adaptor, const fsccl_allocator_t& below) {
  fsccl_allocator_t table = FSCCL_ALLOCATOR_INIT;
  fsccl_status_t status = FSCCL_ERR_INVALID_ARGUMENT;
  if (adaptor == "limit") status = fsccl_allocator_limit(&below, kLimit, &table);
  if (adaptor == "statistics") status = fsccl_allocator_count(&below, &table);
  if (adaptor == "log") status = fsccl_allocator_log(&below, log_.path().c_str(), &table);
  if (adaptor == "on_failure")
    status = fsccl_allocator_on_failure(
        &below, [](void*, uint64_t) { return uint64_t{0}; }, nullptr, &table);
  if (adaptor == "guard")
    status = fsccl_allocator_guard(
        &below,
        [](void* self, const char* text) {
          static_cast<SourceStack*>(self)->reports.push_back(text);
        },
        this, &table);
  EXPECT_OK(status);
  return table;
}

// Destroys the tables from the lowest one up, because a table keeps alive what it needs of the one
// below.
SourceStack::~SourceStack() {
  for (const fsccl_allocator_t& table : tables_)
    EXPECT_OK(table.destroy ? table.destroy(table.context) : FSCCL_OK);
  EXPECT_OK(pool_ ? fsccl_pool_destroy(pool_) : FSCCL_OK);
  EXPECT_OK(comm_ ? fsccl_comm_destroy(comm_) : FSCCL_OK);
}

bool SourceStack::bounded() const {
  return source_ == "pool" || source_ == "outside" || has(adaptors_, "limit");
}
bool SourceStack::shares() const { return source_ == "host" && !has(adaptors_, "guard"); }

bool SourceStack::reads(int fd, uint64_t offset, const void* expected, size_t bytes) {
  std::vector<char> there(bytes);
  const ssize_t got = pread(fd, there.data(), bytes, static_cast<off_t>(offset));
  close(fd);
  return got == static_cast<ssize_t>(bytes) && std::memcmp(there.data(), expected, bytes) == 0;
}

void SourceStack::expect_empty() {
  EXPECT_THAT(reports, ::testing::IsEmpty());
  if (outside_) {
    EXPECT_EQ(outside_->out, 0u);
    EXPECT_EQ(outside_->wrong_frees, 0);
  }
  if (source_ == "cuda") {
    const stand_in::Control control;
    EXPECT_EQ(control.leaks(), "");
    EXPECT_EQ(control.used_bytes(0), 0u);
    EXPECT_EQ(control.broken_rules(), "");
  }
  if (pool_) {
    fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
    EXPECT_OK(fsccl_pool_stats(pool_, &stats));
    EXPECT_EQ(stats.live_bytes, 0u);
  }
}

}  // namespace fsccl::testing
