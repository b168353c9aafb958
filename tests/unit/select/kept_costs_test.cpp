// Tests costs that starts keep for later ones. A later start finds the middle one of each time,
// once enough starts have measured, and takes these costs over instead of measuring.
#include "select/kept_costs.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "select/calibration.h"
#include "tests/unit/wrapped_channel.h"

namespace fsccl::testing {
namespace {

constexpr int kFewSignals = 4;  // a rank signals in three exchanges and at the end
constexpr double kNeverMeasured = 20'000;

class KeptCostsTest : public ::testing::Test {
 protected:
  KeptCostsTest() {
    std::string name = ::testing::TempDir() + "fsccl_costs_XXXXXX";
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ + "/cache/fsccl/costs.json";
  }
  ~KeptCostsTest() override { std::filesystem::remove_all(folder_); }

  KeptCosts kept(topo::LinkClass link = topo::LinkClass::cache) const {
    return {path_, "a machine", "shm", link};
  }
  // Returns the costs that a start finds, with `exchange` ns for an exchange.
  static Costs found(double exchange, bool reads = true) {
    Costs costs;
    costs.exchange = exchange;
    costs.message = exchange / 4;
    costs.slot_cached = {{50, 50000 - exchange, 9000 + exchange}};
    costs.read = {{exchange, 1000, 2000}};
    costs.side_by_side = exchange < 200 ? SideBySide::both : SideBySide::none;
    costs.can_read = reads;
    costs.read_to_slots = std::min(0.4 + exchange / 1000, Costs::kMostToSlots);
    costs.read_written = std::min(1 + exchange / 1000, Costs::kMostWritten);
    return costs;
  }
  void keep(std::initializer_list<double> exchanges, bool reads = true) const {
    for (const double exchange : exchanges) kept().add(found(exchange, reads));
  }
  std::string text() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Lets two ranks measure, the second with the kept costs. Returns the costs that both have.
  Costs calibrated(std::atomic<int>* signals, bool reads_now = true) const {
    std::vector<Costs> costs(2);
    over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
      channel.on_signal = [&](uint32_t) { (*signals)++; };
      channel.on_read = [&](size_t) { return reads_now ? FSCCL_OK : FSCCL_ERR_NOT_AVAILABLE; };
      KeptCosts mine = kept();
      costs[static_cast<size_t>(rank)] =
          calibrate({&channel, rank, 2, now_ns() + kLimitNs, [] { return false; }}, 1, {}, false,
                    &tick, rank == 1 ? &mine : nullptr);
    });
    EXPECT_EQ(costs[0].exchange, costs[1].exchange);
    EXPECT_EQ(costs[0].can_read, costs[1].can_read);
    return costs[0];
  }

  std::string folder_, path_;
};

TEST_F(KeptCostsTest, EnoughStartsGiveTheMiddleOfEachTime) {
  keep({300, 100});
  EXPECT_EQ(kept().enough(), nullptr);
  keep({200});
  const KeptCosts all = kept();
  ASSERT_NE(all.enough(), nullptr);
  EXPECT_EQ(all.enough()->exchange, 200);
  EXPECT_EQ(all.enough()->message, 50);
  EXPECT_EQ(all.enough()->slot_cached.ns, (std::array<double, 3>{50, 49800, 9200}));
  EXPECT_EQ(all.enough()->read.ns[0], 200);
  EXPECT_EQ(all.enough()->read_to_slots, found(200).read_to_slots);
  EXPECT_EQ(all.enough()->read_written, found(200).read_written);
  EXPECT_EQ(all.enough()->side_by_side, SideBySide::none);  // one of three starts found another way
  EXPECT_TRUE(all.enough()->can_read);
  struct stat facts{};
  ASSERT_EQ(::stat(path_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
}

TEST_F(KeptCostsTest, EverySizeOfASlotHasItsOwn) {
  const char* const before = ::getenv("XDG_CACHE_HOME");
  const std::string folder = before ? before : "";
  ::setenv("XDG_CACHE_HOME", (folder_ + "/cache").c_str(), 1);
  const auto of_slots = [](size_t bytes) {
    return KeptCosts("shm", topo::LinkClass::cache, bytes);
  };
  for (const double exchange : {100, 200, 300}) of_slots(65536).add(found(exchange));
  EXPECT_NE(of_slots(65536).enough(), nullptr);
  EXPECT_EQ(of_slots(32768).enough(), nullptr);
  if (before)
    ::setenv("XDG_CACHE_HOME", folder.c_str(), 1);
  else
    ::unsetenv("XDG_CACHE_HOME");
}

TEST_F(KeptCostsTest, EachLinkHasItsOwn) {
  keep({300, 200, 100});
  KeptCosts other = kept(topo::LinkClass::numa);
  EXPECT_EQ(other.enough(), nullptr);
  other.add(found(1000));
  ASSERT_NE(kept().enough(), nullptr);
  EXPECT_EQ(kept().enough()->exchange, 200);
  keep({50});  // replaces the oldest, because only three are kept
  EXPECT_EQ(kept().enough()->exchange, 100);
  EXPECT_EQ(text().find("300.0"), std::string::npos) << text();
}

TEST_F(KeptCostsTest, WhatIsWrongIsAsGoodAsNoFile) {
  keep({300, 200, 100});
  const std::string good = text();
  for (const std::string& wrong :
       {std::string(), good.substr(0, good.size() / 2), std::string(100'000, '['),
        std::string("{\"fsccl_tuning\": 1, \"costs\": 3}")}) {
    std::ofstream(path_) << wrong;
    EXPECT_EQ(kept().enough(), nullptr) << wrong.substr(0, 100);
  }
  keep({300, 200, 100});
  EXPECT_NE(kept().enough(), nullptr);
  ::chmod(path_.c_str(), 0666);
  EXPECT_EQ(kept().enough(), nullptr);
  KeptCosts nowhere("", "a machine", "shm", topo::LinkClass::cache);
  nowhere.add(found(100));
  EXPECT_EQ(nowhere.enough(), nullptr);
}

TEST_F(KeptCostsTest, AStartTakesThemOverAndOnlyTriesToRead) {
  keep({300, 200, 100});
  const std::string before = text();
  for (const bool reads_now : {true, false}) {
    std::atomic<int> signals{0};
    const Costs costs = calibrated(&signals, reads_now);
    EXPECT_EQ(costs.exchange, 200);
    EXPECT_EQ(costs.slot_cached.ns, (std::array<double, 3>{50, 49800, 9200}));
    EXPECT_EQ(costs.origin, CostsOrigin::calibration);
    EXPECT_EQ(costs.can_read, reads_now);
    EXPECT_LE(signals, 2 * kFewSignals);
  }
  EXPECT_EQ(text(), before);
}

TEST_F(KeptCostsTest, AStartMeasuresAndAddsWhereTooFewHave) {
  for (const bool may_read : {false, true}) {
    std::filesystem::remove(path_);
    keep({kNeverMeasured}, may_read);
    for (int start = 0; start < 2; start++) {
      const std::string before = text();
      std::atomic<int> signals{0};
      const Costs costs = calibrated(&signals, may_read);
      const bool added = text() != before, measured = costs.origin == CostsOrigin::calibration;
      EXPECT_NE(costs.exchange, kNeverMeasured);
      // The file changes only if the ranks could measure, which they cannot if they do not run at
      // once. Large reads are measured last; a start that was cut short there is not kept.
      EXPECT_TRUE(may_read ? measured || !added : measured == added);
    }
  }
}

// Reading by the system was not allowed when the kept costs were measured, so a start that may read
// measures again.
TEST_F(KeptCostsTest, AStartThatMayReadNowMeasures) {
  keep({kNeverMeasured, kNeverMeasured, kNeverMeasured}, false);
  ASSERT_NE(kept().enough(), nullptr);
  std::atomic<int> signals{0};
  EXPECT_NE(calibrated(&signals).exchange, kNeverMeasured);
}

}  // namespace
}  // namespace fsccl::testing
