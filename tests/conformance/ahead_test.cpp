// Tests gathers that are issued after a reduction whose sums are not made yet: the gathers go ahead
// of the sums, and every other operation of the communicator goes behind the sums. A callback holds
// the sums in the middle, so that no test depends on time.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "fsccl/insight.h"
#include "unit_case.h"

namespace fsccl::testing {
namespace {

using Json = nlohmann::json;

// Stops the sums of a reduction after its first parameter until let_go(). The thread that made this
// object is not stopped, because it makes the sums itself when it waits for them.
class Hold {
 public:
  explicit Hold(fsccl_reduce_config_t* config) {
    config->shard_ready = hold;
    config->shard_ready_context = this;
  }
  ~Hold() { let_go(); }
  Hold(const Hold&) = delete;
  void let_go() { over_ = true; }

 private:
  static void hold(void* context, fsccl_unit_t, size_t) {
    const auto& self = *static_cast<const Hold*>(context);
    if (std::this_thread::get_id() == self.maker_) return;
    // The hold ends after 5 s, so that a library that waits for the sums first fails the test and
    // does not hang.
    for (int i = 0; !self.over_ && i < 5'000; i++)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::thread::id maker_ = std::this_thread::get_id();
  std::atomic<bool> over_{false};
};

UnitCase two_parameters(uint64_t seed) { return simple_unit({{96, 50}, {48, 100}}, seed); }

class Ahead : public ::testing::TestWithParam<int> {
 protected:
  // With these settings the library's thread makes the sums of even the smallest units, apart.
  const Settings settings_{{"FSCCL_SUMS_APART_BYTES", "0"}, {"FSCCL_SUM_THREAD", "service"}};
};

TEST_P(Ahead, AGatherGoesAheadOfSums) {
  run_ranks(GetParam(), [](Rank& self) {
    const PoolScope pool(self.comm);
    TestUnit reduced(two_parameters(1), self.comm, pool.get());
    TestUnit gathered(two_parameters(2), self.comm, pool.get());
    gathered.write_shards(1);
    for (uint64_t step = 1; step <= 20 && !HasFailure(); step++) {
      reduced.write_grads(step, self.rank);
      fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
      fsccl_reduce_result_t result{};
      config.result = &result;
      Hold hold(&config);
      fsccl_work_t work = nullptr;
      reduced.reduce(&config, &work);
      std::atomic<bool> over{false};  // fsccl_work_test() is not used: it could make the sums
      ASSERT_OK(fsccl_work_callback(
          work, [](void* told, fsccl_status_t) { *static_cast<std::atomic<bool>*>(told) = true; },
          &over));
      gathered.unshard();
      EXPECT_FALSE(over) << "the gather waited for the sums";
      gathered.check_params(1);
      gathered.reshard();
      hold.let_go();
      ASSERT_OK(fsccl_work_wait(work, -1));
      ASSERT_OK(fsccl_work_error(work));
      while (!over) std::this_thread::yield();
      reduced.check_sharded_grads({{step}});
      reduced.check_result(result);
    }
  });
}

// A collective may read memory that the sums write, and nothing tells the library so. It must run
// behind the sums.
TEST_P(Ahead, OtherOperationsGoBehindSums) {
  run_ranks(GetParam(), [](Rank& self) {
    const PoolScope pool(self.comm);
    TestUnit reduced(two_parameters(1), self.comm, pool.get());
    for (uint64_t step = 1; step <= 20 && !HasFailure(); step++) {
      reduced.write_grads(step, self.rank);
      fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
      Hold hold(&config);
      fsccl_view_t view{};
      ASSERT_OK(fsccl_unit_sharded_grad(reduced.get(), 1, &view));
      std::vector<float> all(view.count * static_cast<size_t>(self.ranks)), again(all.size());
      fsccl_work_t sums = nullptr, gather = nullptr;
      reduced.reduce(&config, &sums);
      // The sums of the second parameter are not there yet.
      ASSERT_GE(fsccl_all_gather(view.data, all.data(), view.count, FSCCL_FLOAT32, self.comm,
                                 nullptr, &gather),
                0);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      hold.let_go();
      ASSERT_OK(fsccl_work_wait(gather, -1));
      ASSERT_OK(fsccl_work_test(sums));
      reduced.check_sharded_grads({{step}});
      ASSERT_OK(fsccl_all_gather(view.data, again.data(), view.count, FSCCL_FLOAT32, self.comm,
                                 nullptr, nullptr));
      ASSERT_EQ(all, again) << "it was gathered before the sums were there";
    }
  });
}

// The works of many reductions end in another order than that in which they were submitted.
TEST_P(Ahead, ManyReductionsInFlight) {
  run_ranks(GetParam(), [](Rank& self) {
    const PoolScope pool(self.comm);
    std::vector<std::unique_ptr<TestUnit>> units;
    for (uint64_t i = 0; i < 6; i++)
      units.push_back(std::make_unique<TestUnit>(two_parameters(i), self.comm, pool.get()));
    Random random(3), own(static_cast<uint64_t>(self.rank));
    for (uint64_t step = 1; step <= 30 && !HasFailure(); step++) {
      std::vector<fsccl_work_t> works(units.size());
      for (size_t i = 0; i < units.size(); i++) {
        units[i]->write_shards(step);
        ASSERT_OK(fsccl_unit_mark_changed(units[i]->get()));
        units[i]->write_grads(step, self.rank);
        fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
        units[i]->reduce(&config, random.below(4) ? &works[i] : nullptr);
        dawdle(own);
        TestUnit& other = *units[random.below(i + 1)];
        other.unshard();
        other.check_params(step);
        other.reshard();
      }
      for (size_t k = 0; k < units.size(); k++) {
        const size_t i = step % 2 ? k : units.size() - 1 - k;
        if (works[i]) {
          ASSERT_OK(fsccl_work_wait(works[i], -1));
        }
        units[i]->check_sharded_grads({{step}});
      }
    }
  });
}

// A failure of the communicator ends the sums as well.
TEST_P(Ahead, SumsEndWithTheCommunicator) {
  RanksOptions options;
  options.abort_at_end = true;
  run_ranks(
      GetParam(),
      [](Rank& self) {
        const PoolScope pool(self.comm);
        TestUnit reduced(two_parameters(1), self.comm, pool.get());
        reduced.write_grads(1, self.rank);
        fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
        Hold hold(&config);
        fsccl_work_t work = nullptr;
        reduced.reduce(&config, &work);
        self.meet();
        ASSERT_OK(fsccl_comm_abort(self.comm));
        hold.let_go();
        EXPECT_EQ(fsccl_work_wait(work, -1), FSCCL_ERR_ABORTED);
        EXPECT_EQ(fsccl_work_error(work), FSCCL_ERR_ABORTED);
      },
      options);
}

// Returns the recording of a rank of this process.
Json recording_of(int rank) {
  const std::string folder = ::testing::TempDir() + "ahead_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  EXPECT_OK(fsccl_trace_dump(folder.c_str()));
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::string text;
    EXPECT_OK(fsccl_trace_read(
        entry.path().c_str(),
        [](void* to, const char* part, size_t bytes) {
          static_cast<std::string*>(to)->append(part, bytes);
        },
        &text));
    Json recording = Json::parse(text);
    if (recording["rank"] == rank) return recording;
  }
  return {};
}

// Returns the last event of this kind, and of this operation unless that is empty; null if there is
// none.
Json last_event(const Json& recording, const std::string& kind, const std::string& operation) {
  Json found;
  for (const Json& event : recording["events"])
    if (event["event"] == kind && (operation.empty() || event["operation"] == operation))
      found = event;
  return found;
}

TEST(Trace, ShowsTheGatherInsideTheSums) {
  const Settings settings{{"FSCCL_SUMS_APART_BYTES", "0"}, {"FSCCL_SUM_THREAD", "service"}};
  run_ranks(2, [&](Rank& self) {
    const PoolScope pool(self.comm);
    TestUnit reduced(two_parameters(1), self.comm, pool.get());
    TestUnit gathered(two_parameters(2), self.comm, pool.get());
    reduced.write_grads(1, self.rank);
    fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
    Hold hold(&config);
    fsccl_work_t work = nullptr;
    reduced.reduce(&config, &work);
    gathered.unshard();
    hold.let_go();
    ASSERT_OK(fsccl_work_wait(work, -1));
    gathered.reshard();
    if (self.rank == 0) {
      const Json recording = recording_of(0);
      const Json sums = last_event(recording, "completed", "unit_reduce_grads"),
                 gather = last_event(recording, "completed", "unit_unshard"),
                 begun = last_event(recording, "submitted", "unit_unshard");
      EXPECT_LT(gather["at_ns"], sums["at_ns"]) << gather << sums;
      EXPECT_NE(gather["communicator"], sums["communicator"]) << "sums are made apart";
      for (const Json& event : recording["events"])
        if (event["event"] == "submitted" && event["operation"] == "unit_reduce_grads") {
          EXPECT_LT(event["at_ns"], begun["at_ns"]);
        }
    }
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
  });
}

// A gather wants the slot of gradients that are being reduced, and rank 1 holds the sums. So rank 0
// waits, and its recording says which operation will free the slot.
TEST(SlotWaits, ForASlotThatSumsFree) {
  const Settings settings{{"FSCCL_SUMS_APART_BYTES", "0"}, {"FSCCL_SUM_THREAD", "service"}};
  std::atomic<bool> looked{false};
  run_ranks(2, [&](Rank& self) {
    const PoolScope pool(self.comm, 0, false);
    UnitCase c = two_parameters(1);
    c.sharing = FSCCL_SHARING_PRIVATE;  // private slots lie among those of gradients
    TestUnit reduced(c, self.comm, pool.get()), gathered(c, self.comm, pool.get());
    gathered.write_shards(1);
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    reduced.write_grads(1, self.rank);
    fsccl_reduce_config_t free = FSCCL_REDUCE_CONFIG_INIT, held = free;
    Hold hold(&held);
    fsccl_work_t sums = nullptr, gather = nullptr;
    reduced.reduce(self.rank == 1 ? &held : &free, &sums);
    ASSERT_GE(fsccl_unit_unshard(gathered.get(), FSCCL_UNSHARD_READ, nullptr, &gather), 0);
    if (self.rank == 1) {
      while (!looked) std::this_thread::yield();
    } else {
      EXPECT_EQ(fsccl_work_wait(gather, 50), FSCCL_IN_PROGRESS) << "the slot is not free";
      const Json wait = last_event(recording_of(0), "blocked", "unit_unshard");
      looked = true;
      ASSERT_FALSE(wait.is_null());
      EXPECT_EQ(wait["duty"], "release a slot");
      EXPECT_EQ(wait["peer"], 1);
      const uint64_t number = wait["sequence"];
      EXPECT_EQ(wait["freed_by"], number - 1) << wait;
    }
    hold.let_go();
    ASSERT_OK(fsccl_work_wait(gather, -1));
    ASSERT_OK(fsccl_work_wait(sums, -1));
    gathered.check_params(1);
    gathered.reshard();
    reduced.check_sharded_grads({{1}});
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Ahead, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace fsccl::testing
