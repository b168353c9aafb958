// Tests a pool's reports about itself: the owners of its memory, snapshots, the log. Each is
// compared with the program's actions, and with fsccl_pool_stats(). In
// tests/torch/memory_viz_test.py PyTorch's own viewer reads snapshots.
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <tuple>

#include "fsccl/insight.h"
#include "unit_case.h"

namespace fsccl::testing {
namespace {

using Json = nlohmann::json;

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "fsccl-insight-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string path(const std::string& name) const { return (path_ / name).string(); }
  std::string read(const std::string& name) const {
    std::ifstream file(path_ / name);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_),
                                             std::filesystem::directory_iterator()));
  }

 private:
  std::filesystem::path path_;
};

struct Use {
  uint64_t live = 0, peak = 0, allocations = 0, frees = 0, allocated = 0;
};
// The key is kind, unit and stream.
using Uses = std::map<std::tuple<std::string, std::string, const void*>, Use>;

Uses uses_of(fsccl_pool_t pool) {
  Uses uses;
  EXPECT_OK(fsccl_pool_owners(
      pool,
      [](void* context, const fsccl_pool_owner_t* use) {
        EXPECT_EQ(use->size, sizeof *use);
        const auto [at, is_new] = static_cast<Uses*>(context)->try_emplace(
            std::tuple(use->kind, use->owner ? use->owner : "", use->stream),
            Use{use->live_bytes, use->peak_bytes, use->allocations, use->frees,
                use->allocated_bytes});
        EXPECT_TRUE(is_new) << use->kind;
      },
      &uses));
  return uses;
}

void expect_sums(const Uses& uses, const fsccl_pool_stats_t& stats) {
  uint64_t live = 0, local = 0;
  for (const auto& [owner, use] : uses) {
    live += use.live;
    if (const std::string& kind = std::get<0>(owner); kind != "parameters" && kind != "gradients")
      local += use.live;
    EXPECT_LE(use.live, use.peak);
    EXPECT_LE(use.peak, stats.live_peak_bytes);
    EXPECT_GE(use.allocations, use.frees);
  }
  EXPECT_EQ(live, stats.live_bytes);
  EXPECT_EQ(local, stats.local_live_bytes);
}

Json snapshot_of(fsccl_pool_t pool, const std::string& path) {
  EXPECT_OK(fsccl_pool_snapshot(pool, path.c_str()));
  return Json::parse(std::ifstream(path));
}

// Checks what must hold in every snapshot. Returns the live bytes of each owner, by its name.
std::map<std::string, uint64_t> check_snapshot(const Json& snapshot,
                                               const fsccl_pool_stats_t& stats, bool hosts_shared) {
  std::map<std::string, uint64_t> live;
  uint64_t live_sum = 0, reserved = 0;
  for (const Json& segment : snapshot.at("segments")) {
    uint64_t at = segment.at("address"), active = 0;
    const uint64_t end = at + segment.at("total_size").get<uint64_t>();
    for (const Json& block : segment.at("blocks")) {
      EXPECT_EQ(block.at("address"), at);  // blocks lie side by side, without gaps
      at += block.at("size").get<uint64_t>();
      EXPECT_LE(block.at("requested_size"), block.at("size"));
      if (block.at("state") != "active_allocated") continue;
      active += block.at("size").get<uint64_t>();
      live[block.at("frames").at(0).at("name")] += block.at("size").get<uint64_t>();
    }
    EXPECT_EQ(at, end);
    EXPECT_EQ(segment.at("allocated_size"), active);
    live_sum += active;
    const bool shared = segment.at("segment_pool_id") == Json::parse("[0,0]");
    if (!shared || hosts_shared) reserved += segment.at("total_size").get<uint64_t>();
  }
  EXPECT_EQ(live_sum, stats.live_bytes);
  EXPECT_EQ(reserved, stats.reserved_bytes);
  EXPECT_EQ(snapshot.at("fsccl").at("live_peak_bytes"), stats.live_peak_bytes);
  return live;
}

// Checks that memory which an event gives back was taken at that address before, and that the
// memory which no event gives back is the live memory of the snapshot.
void check_traces(const Json& snapshot) {
  std::map<uint64_t, std::pair<uint64_t, std::string>> open;
  for (const Json& event : snapshot.at("device_traces").at(0)) {
    const std::string action = event.at("action");
    const uint64_t address = event.value("addr", uint64_t{0});
    const std::pair<uint64_t, std::string> what{event.at("size"), event.at("user_metadata")};
    EXPECT_EQ(event.at("frames").at(0).at("name"), event.at("user_metadata"));
    if (action == "alloc") {
      EXPECT_TRUE(open.emplace(address, what).second) << event;
    }
    if (action == "free_requested") {
      EXPECT_EQ(open.at(address), what) << event;
    }
    if (action == "free_completed") {
      EXPECT_EQ(open.erase(address), 1u) << event;
    }
  }
  for (const Json& segment : snapshot.at("segments"))
    for (const Json& block : segment.at("blocks"))
      if (block.at("state") == "active_allocated") {
        EXPECT_EQ(open.erase(block.at("address")), 1u) << block;
      }
  EXPECT_TRUE(open.empty());
}

void train_step(TestUnit& unit, uint64_t step, int rank) {
  unit.write_shards(step);
  EXPECT_OK(fsccl_unit_mark_changed(unit.get()));
  unit.unshard();
  unit.write_grads(step, rank);
  unit.reshard();
  unit.reduce(nullptr);
}

TEST(PoolUses, AreWhatUnitsAndTheProgramTook) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm);
    EXPECT_TRUE(uses_of(pool.get()).empty());
    void* block = nullptr;
    ASSERT_OK(fsccl_pool_alloc(pool.get(), 100, nullptr, &block));
    {
      TestUnit unit(simple_unit({{90, 40}, {5}}), self.comm, pool.get());
      for (uint64_t step = 1; step <= 4; step++) {
        train_step(unit, step, self.rank);
        ASSERT_OK(fsccl_pool_step(pool.get()));
      }
      unit.unshard();
      const Uses uses = uses_of(pool.get());
      expect_sums(uses, pool.stats());
      const Use& parameters = uses.at({"parameters", "unit 1", nullptr});
      EXPECT_EQ(parameters.allocations, 5u);
      EXPECT_EQ(parameters.frees, 4u);
      EXPECT_GE(parameters.live, 90u * 40 * 2);  // bf16
      EXPECT_EQ(parameters.allocated, 5 * parameters.live);
      EXPECT_EQ(uses.at({"gradients", "unit 1", nullptr}).frees, 4u);
      EXPECT_EQ(uses.at({"gradients", "unit 1", nullptr}).live, 0u);
      EXPECT_GE(uses.at({"shards", "unit 1", nullptr}).live, 45u * 40 * 4);
      EXPECT_EQ(uses.at({"block", "", nullptr}).live, 128u);
      unit.reshard();
    }
    ASSERT_OK(fsccl_pool_free(pool.get(), block, nullptr));
    const Uses uses = uses_of(pool.get());  // includes the uses of the destroyed unit
    expect_sums(uses, pool.stats());
    EXPECT_EQ(uses.size(), 4u);
    for (const auto& [owner, use] : uses)
      EXPECT_EQ(use.allocations, use.frees) << std::get<0>(owner);
    EXPECT_ERROR(fsccl_pool_owners(pool.get(), nullptr, nullptr), FSCCL_ERR_INVALID_ARGUMENT,
                 "visit");
  });
}

TEST(PoolUses, KnowImports) {
  run_ranks(1, [](Rank& self) {
    const PoolScope pool(self.comm);
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* memory = std::aligned_alloc(page, 4 * page);
    const fsccl_status_t imported = fsccl_pool_import(pool.get(), memory, 4 * page);
    if (imported == FSCCL_OK) {
      expect_sums(uses_of(pool.get()), pool.stats());
      EXPECT_EQ(uses_of(pool.get()).at({"import", "", nullptr}).live, 4 * page);
      EXPECT_OK(fsccl_pool_free(pool.get(), memory, nullptr));
      EXPECT_EQ(uses_of(pool.get()).at({"import", "", nullptr}).frees, 1u);
    }
    std::free(memory);
    EXPECT_EQ(imported, FSCCL_OK);
  });
}

TEST(PoolSnapshot, SaysWhatThePoolHoldsAndDid) {
  const Settings settings{{"FSCCL_POOL_HISTORY", "1000"}};
  const Folder folder;
  run_ranks(3, [&](Rank& self) {
    const PoolScope pool(self.comm);
    TestUnit unit(simple_unit({{900, 40}, {5}}), self.comm, pool.get());
    void* block = nullptr;
    ASSERT_OK(fsccl_pool_alloc(pool.get(), 5000, nullptr, &block));
    for (uint64_t step = 1; step <= 3; step++) {
      train_step(unit, step, self.rank);
      ASSERT_OK(fsccl_pool_step(pool.get()));
    }
    unit.unshard();
    const std::string path = folder.path(std::to_string(self.rank) + ".json");
    const Json snapshot = snapshot_of(pool.get(), path);
    const fsccl_pool_stats_t stats = pool.stats();
    const auto live = check_snapshot(snapshot, stats, self.rank == 0);
    check_traces(snapshot);
    EXPECT_EQ(live.size(), 3u);
    EXPECT_GE(live.at("unit unit 1, parameters"), 905u * 2);
    EXPECT_EQ(live.at("block"), 5056u);
    EXPECT_EQ(live.count("unit unit 1, shards"), 1u);

    // Addresses in the snapshot are those of this process.
    fsccl_view_t view{};
    ASSERT_OK(fsccl_unit_param(unit.get(), 0, &view));
    const auto at = reinterpret_cast<uint64_t>(view.data);
    bool found = false, block_found = false;
    for (const Json& segment : snapshot.at("segments"))
      for (const Json& one : segment.at("blocks")) {
        const uint64_t begin = one.at("address"), end = begin + one.at("size").get<uint64_t>();
        if (one.at("state") != "active_allocated") continue;
        found |= begin <= at && at < end &&
                 one.at("frames").at(0).at("name") == "unit unit 1, parameters";
        block_found |=
            begin == reinterpret_cast<uint64_t>(block) && one.at("requested_size") == 5000;
      }
    EXPECT_TRUE(found && block_found);

    const Json& own = snapshot.at("fsccl");
    EXPECT_EQ(own.at("rank"), self.rank);
    EXPECT_EQ(own.at("ranks"), 3);
    EXPECT_EQ(own.at("events_lost"), 0);
    EXPECT_EQ(own.at("steps"), 3);
    EXPECT_EQ(own.at("step_times_us").size(), 3u);
    uint64_t planned = 0, bound = 0;
    for (const Json& part : own.at("parts"))
      planned += part.at("planned_bytes").get<uint64_t>(),
          bound += part.at("live_bound_bytes").get<uint64_t>();
    EXPECT_EQ(planned, stats.planned_bytes);
    EXPECT_EQ(bound, stats.plan_bound_bytes);

    // An existing file is replaced as a whole, and nothing is left beside it.
    unit.reshard();
    EXPECT_EQ(check_snapshot(snapshot_of(pool.get(), path), pool.stats(), self.rank == 0)
                  .count("unit unit 1, parameters"),
              0u);
    ASSERT_OK(fsccl_pool_free(pool.get(), block, nullptr));
  });
  EXPECT_EQ(folder.files(), 3u);
}

// Another thread takes snapshots while the program goes on with steps that differ, so that plans
// come and go. The thread sanitizer reports a data race here.
TEST(PoolSnapshot, IsTakenByAnyThread) {
  const Settings settings{{"FSCCL_POOL_HISTORY", "100"}};
  const Folder folder;
  run_ranks(1, [&](Rank& self) {
    const PoolScope pool(self.comm);
    TestUnit small(simple_unit({{40}}), self.comm, pool.get()),
        large(simple_unit({{900}}), self.comm, pool.get());
    std::atomic<bool> over{false};
    std::atomic<int> taken{0};
    std::thread looker([&] {
      for (; !over || !taken; taken++)
        EXPECT_EQ(snapshot_of(pool.get(), folder.path("a")).at("fsccl").at("ranks"), 1);
    });
    for (uint64_t step = 1; step <= 40 || !taken; step++) {
      for (TestUnit* unit : {&small, &large}) {
        if (step / 5 % 2 == 0 && unit == &small) continue;
        unit->unshard();
        unit->reshard();
      }
      EXPECT_OK(fsccl_pool_step(pool.get()));
    }
    over = true;
    looker.join();
  });
}

TEST(PoolSnapshot, KeepsTheLastEventsOnly) {
  const Settings settings{{"FSCCL_POOL_HISTORY", "8"}};
  const Folder folder;
  run_ranks(1, [&](Rank& self) {
    const PoolScope pool(self.comm);
    for (int i = 0; i < 20; i++) {
      void* block = nullptr;
      ASSERT_OK(fsccl_pool_alloc(pool.get(), 64, nullptr, &block));
      ASSERT_OK(fsccl_pool_free(pool.get(), block, nullptr));
    }
    const Json snapshot = snapshot_of(pool.get(), folder.path("a"));
    // The pool keeps 4 events of taking and 4 of giving back. In a trace the latter are two each.
    EXPECT_EQ(snapshot.at("device_traces").at(0).size(), 12u);
    EXPECT_EQ(snapshot.at("fsccl").at("events_lost"), 33);  // 32, and one growth
  });
}

TEST(PoolSnapshot, HasNoEventsUnlessTheyWereAskedFor) {
  const Folder folder;
  run_ranks(2, [&](Rank& self) {
    const PoolScope pool(self.comm);
    TestUnit unit(simple_unit({{9, 4}}), self.comm, pool.get());
    unit.write_shards(1);
    unit.unshard();
    const Json snapshot = snapshot_of(pool.get(), folder.path(std::to_string(self.rank)));
    EXPECT_EQ(snapshot.at("device_traces"), Json::parse("[[]]"));
    EXPECT_EQ(
        check_snapshot(snapshot, pool.stats(), self.rank == 0).count("unit unit 1, parameters"),
        1u);
    unit.reshard();
  });
}

TEST(PoolSnapshot, SaysWhatWasRefused) {
  const Settings settings{{"FSCCL_POOL_HISTORY", "100"}};
  const Folder folder;
  run_ranks(1, [&](Rank& self) {
    const PoolScope pool(self.comm, 4 << 20);
    void* block = nullptr;
    EXPECT_ERROR(fsccl_pool_alloc(pool.get(), 64 << 20, nullptr, &block), FSCCL_ERR_OUT_OF_MEMORY,
                 "limit");
    const Json traces = snapshot_of(pool.get(), folder.path("a")).at("device_traces").at(0);
    ASSERT_EQ(traces.size(), 1u);
    EXPECT_EQ(traces[0].at("action"), "oom");
    EXPECT_EQ(traces[0].at("size"), 64 << 20);
    EXPECT_EQ(traces[0].at("device_free"), 4 << 20);
  });
}

TEST(PoolSnapshot, NamesThePathThatItCannotWrite) {
  const Folder folder;
  run_ranks(1, [&](Rank& self) {
    const PoolScope pool(self.comm);
    const std::string path = folder.path("missing/a.json");
    EXPECT_ERROR(fsccl_pool_snapshot(pool.get(), path.c_str()), FSCCL_ERR_SYSTEM, path.c_str(),
                 "No such file");
    EXPECT_ERROR(fsccl_pool_snapshot(pool.get(), nullptr), FSCCL_ERR_INVALID_ARGUMENT,
                 "path is NULL");
    EXPECT_ERROR(fsccl_pool_snapshot(pool.get(), ""), FSCCL_ERR_INVALID_ARGUMENT, "path is empty");
    EXPECT_ERROR(fsccl_pool_snapshot(nullptr, "a"), FSCCL_ERR_INVALID_HANDLE, "pool");
  });
}

// Replays the log of each rank. Every block that is given back must have been taken before with the
// same size, and at the end no block is left.
TEST(PoolLog, CanBeReplayed) {
  const Folder folder;
  const std::string pattern = folder.path("log.%r.csv");
  const Settings settings{{"FSCCL_POOL_LOG", pattern.c_str()}};
  std::vector<uint64_t> allocations(2);
  run_ranks(2, [&](Rank& self) {
    const PoolScope pool(self.comm);
    TestUnit unit(simple_unit({{90, 40}, {5}}), self.comm, pool.get());
    for (uint64_t step = 1; step <= 5; step++) {
      train_step(unit, step, self.rank);
      void* block = nullptr;
      ASSERT_OK(fsccl_pool_alloc(pool.get(), 64 * step, nullptr, &block));
      ASSERT_OK(fsccl_pool_free(pool.get(), block, nullptr));
      ASSERT_OK(fsccl_pool_step(pool.get()));
    }
    for (const auto& [owner, use] : uses_of(pool.get()))
      allocations[static_cast<size_t>(self.rank)] += use.allocations;
  });
  EXPECT_EQ(folder.files(), 2u);
  for (size_t rank = 0; rank < 2; rank++) {
    std::istringstream log(folder.read("log." + std::to_string(rank) + ".csv"));
    std::string line, field;
    ASSERT_TRUE(std::getline(log, line));
    EXPECT_EQ(line, "Thread,Time,Action,Pointer,Size,Stream");
    std::map<std::string, std::string> open;
    uint64_t taken = 0;
    while (std::getline(log, line)) {
      std::vector<std::string> fields;
      for (std::istringstream words(line); std::getline(words, field, ',');)
        fields.push_back(field);
      ASSERT_EQ(fields.size(), 6u) << line;
      if (fields[2] == "allocate") {
        EXPECT_TRUE(open.emplace(fields[3], fields[4]).second) << line;
        taken++;
      } else {
        ASSERT_EQ(fields[2], "free") << line;
        ASSERT_EQ(open.count(fields[3]), 1u) << line;
        EXPECT_EQ(open[fields[3]], fields[4]) << line;
        open.erase(fields[3]);
      }
    }
    EXPECT_TRUE(open.empty());
    EXPECT_EQ(taken, allocations[rank]);
  }
}

TEST(PoolLog, ThatCannotBeOpenedIsAnErrorOnAllRanks) {
  const Folder folder;
  std::filesystem::create_directory(folder.path("log.1"));  // so rank 1 cannot open its log
  const std::string pattern = folder.path("log.%r");
  const Settings settings{{"FSCCL_POOL_LOG", pattern.c_str()}};
  run_ranks(2, [&](Rank& self) {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    fsccl_pool_t pool = nullptr;
    if (self.rank == 1)
      EXPECT_ERROR(fsccl_pool_create(self.comm, &config, &pool), FSCCL_ERR_CONFIG, "FSCCL_POOL_LOG",
                   "log.1", "it is a directory");
    else
      EXPECT_ERROR(fsccl_pool_create(self.comm, &config, &pool), FSCCL_ERR_CONFIG,
                   "rank 1 could not", "log.1", "it is a directory");
  });
}

}  // namespace
}  // namespace fsccl::testing
