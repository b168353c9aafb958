// Tests exchanges over UCX between ranks that are threads: all parts arrive, whole and where they
// belong, and errors are reported.
#include "transports/ucx/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <random>
#include <thread>

namespace fsccl::ucx {
namespace {

using Part = Exchange::Part;

class Exchanges : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!ucx_library(&why)) GTEST_SKIP() << why;
  }

  // Runs ranks over memory of the host. `spoil` changes the endpoint addresses before they are
  // shown.
  void run_ranks(int ranks, const std::function<void(int rank, Exchange& exchange)>& body,
                 const std::function<void(std::vector<std::vector<uint8_t>>&)>& spoil = {}) {
    std::vector<std::unique_ptr<Exchange>> all;
    std::vector<std::vector<uint8_t>> endpoints;
    for (int rank = 0; rank < ranks; rank++) {
      Result<std::unique_ptr<Exchange>> made =
          TaggedExchange::create(*ucx_library(nullptr), rank, ranks, false);
      ASSERT_TRUE(made.ok()) << made.status().text();
      all.push_back(made.take());
      endpoints.push_back(all.back()->endpoint());
    }
    if (spoil) spoil(endpoints);
    std::barrier over(ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; rank++)
      threads.emplace_back([&, rank] {
        std::unique_ptr<Exchange>& mine = all[static_cast<size_t>(rank)];
        const Status connected = mine->connect(endpoints);
        ASSERT_TRUE(connected.ok()) << connected.text();
        body(rank, *mine);
        over.arrive_and_wait();
        mine.reset();
      });
    for (std::thread& thread : threads) thread.join();
  }
  static Exchange::Patience patience(int64_t timeout_ms = 30'000) {
    return {timeout_ms, [] { return success(); }};
  }
};

std::byte byte_of(int from, int to, size_t round, size_t at) {
  return static_cast<std::byte>(static_cast<size_t>(from * 59 + to * 17) + round * 7 + at +
                                at / 253);
}

TEST_F(Exchanges, EveryPartArrivesWhereItBelongs) {
  for (const int ranks : {1, 2, 4})
    run_ranks(ranks, [ranks](int rank, Exchange& exchange) {
      std::mt19937 alike(7);  // gives the same numbers on all ranks
      for (size_t round = 0; round < 12; round++) {
        std::vector<std::vector<std::byte>> sent, received;
        std::vector<Part> sends, receives;
        for (int from = 0; from < ranks; from++)
          for (int to = 0; to < ranks; to++)
            for (int part = 0; part < 3; part++) {
              const size_t bytes = size_t{1} << alike() % 21;
              if (from == to) continue;
              if (from == rank) {
                std::vector<std::byte>& memory = sent.emplace_back(bytes);
                for (size_t i = 0; i < bytes; i++) memory[i] = byte_of(from, to, round, i);
                sends.push_back({to, memory.data(), bytes});
              }
              if (to == rank)
                receives.push_back({from, received.emplace_back(bytes).data(), bytes});
            }
        const Status done = exchange.run(sends, receives, patience());
        ASSERT_TRUE(done.ok()) << done.text();
        for (size_t part = 0; part < receives.size(); part++)
          for (size_t i = 0; i < receives[part].bytes; i++)
            ASSERT_EQ(receives[part].memory[i], byte_of(receives[part].peer, rank, round, i))
                << "rank " << rank << " round " << round;
      }
    });
}

// A rank that has all of its own parts leaves at once. Its small part is not lost, and it delays no
// rank that still waits for a part.
TEST_F(Exchanges, ARankThatIsDoneKeepsNobody) {
  run_ranks(3, [](int rank, Exchange& exchange) {
    for (int round = 0; round < 50; round++) {
      std::vector<std::byte> mine(100'000, static_cast<std::byte>(round)), theirs(100'000);
      const Part send{1, mine.data(), mine.size()}, receive{0, theirs.data(), theirs.size()};
      const Status done = rank == 0   ? exchange.run({send}, {}, patience())
                          : rank == 1 ? exchange.run({}, {receive}, patience())
                                      : exchange.run({}, {}, patience());
      ASSERT_TRUE(done.ok()) << done.text();
      ASSERT_TRUE(rank != 1 || theirs == mine);
    }
  });
}

// A rank that has sent all of its parts may leave. The parts arrive, even if the others learn of
// its end before they receive them.
TEST_F(Exchanges, WhatOneThatHasLeftSentIsTaken) {
  std::vector<std::unique_ptr<Exchange>> all;
  std::vector<std::vector<uint8_t>> endpoints;
  for (int rank = 0; rank < 2; rank++) {
    Result<std::unique_ptr<Exchange>> made =
        TaggedExchange::create(*ucx_library(nullptr), rank, 2, false);
    ASSERT_TRUE(made.ok()) << made.status().text();
    all.push_back(made.take());
    endpoints.push_back(all.back()->endpoint());
  }
  std::byte word{7}, there{};
  const auto run = [&](int rank) {
    const auto self = static_cast<size_t>(rank);
    ASSERT_TRUE(all[self]->connect(endpoints).ok());
    std::byte own{1}, other{};
    // This exchange makes the connections.
    ASSERT_TRUE(all[self]->run({{1 - rank, &own, 1}}, {{1 - rank, &other, 1}}, patience()).ok());
    if (rank) return;
    ASSERT_TRUE(all[0]->run({{1, &word, 1}}, {}, patience()).ok());
    all[0].reset();
  };
  std::thread leaving(run, 0);
  run(1);
  leaving.join();
  const Status done = all[1]->run({}, {{0, &there, 1}}, patience());
  EXPECT_TRUE(done.ok()) << done.text();
  EXPECT_EQ(there, word);
  std::byte more{};
  EXPECT_EQ(all[1]->run({}, {{0, &more, 1}}, patience()).code(), FSCCL_ERR_LINK)
      << "nothing more comes";
}

TEST_F(Exchanges, PartsOfOtherLengthsAreAMismatch) {
  for (const size_t sent : {size_t{100}, size_t{300}, size_t{2'000'000}})
    run_ranks(2, [sent](int rank, Exchange& exchange) {
      std::vector<std::byte> memory(2'000'000);
      const Status done = rank ? exchange.run({}, {{0, memory.data(), 200}}, patience())
                               : exchange.run({{1, memory.data(), sent}}, {}, patience(2000));
      if (rank == 0) return;
      EXPECT_EQ(done.code(), FSCCL_ERR_MISMATCH) << done.text();
      EXPECT_THAT(done.text(), ::testing::HasSubstr("rank 0 sent another number of bytes"));
      EXPECT_EQ(exchange.run({}, {}, patience()).code(), FSCCL_ERR_MISMATCH)
          << "once wrong, always";
    });
}

TEST_F(Exchanges, WhoDoesNotComeIsNamed) {
  run_ranks(3, [](int rank, Exchange& exchange) {
    if (rank) return;
    std::byte word{};
    const Status done = exchange.run({}, {{1, &word, 1}, {2, &word, 1}}, patience(50));
    EXPECT_EQ(done.code(), FSCCL_ERR_TIMEOUT);
    EXPECT_THAT(done.text(), ::testing::HasSubstr("50 ms: ranks 1, 2 are missing"));
  });
}

TEST_F(Exchanges, ALossEndsTheWait) {
  run_ranks(2, [](int rank, Exchange& exchange) {
    if (rank) return;
    std::byte word{};
    const Status done = exchange.run(
        {}, {{1, &word, 1}}, {60'000, [] { return fail(FSCCL_ERR_PEER_DEAD, "rank 1 died"); }});
    EXPECT_EQ(done.text(), "rank 1 died");
  });
}

// A stranger can connect, but does not know the nonce.
TEST_F(Exchanges, WithoutItsTagNothingIsTaken) {
  run_ranks(
      2,
      [](int rank, Exchange& exchange) {
        std::byte word{1};
        if (rank == 1) return (void)exchange.run({{0, &word, 1}}, {}, patience(2000));
        const Status done = exchange.run({}, {{1, &word, 1}}, patience(300));
        EXPECT_EQ(done.code(), FSCCL_ERR_TIMEOUT) << done.text();
      },
      [](std::vector<std::vector<uint8_t>>& endpoints) { endpoints[0][8]++; });
}

TEST_F(Exchanges, AnAddressThatMakesNoSenseIsRefused) {
  const auto made = TaggedExchange::create(*ucx_library(nullptr), 0, 2, false);
  ASSERT_TRUE(made.ok()) << made.status().text();
  const std::vector<uint8_t>& good = made.value()->endpoint();
  for (const size_t bytes : {size_t{0}, size_t{10}, good.size() - 1, good.size() + 1}) {
    std::vector<uint8_t> bad = good;
    bad.resize(bytes);
    const Status connected = made.value()->connect({good, bad});
    EXPECT_EQ(connected.code(), FSCCL_ERR_PROTOCOL);
    EXPECT_THAT(connected.text(), ::testing::HasSubstr("rank 1 sent an endpoint address of " +
                                                       std::to_string(bytes) + " bytes"));
  }
}

TEST_F(Exchanges, WhatUcxLacksForGpusIsSaid) {
  UcxLibrary ucx = *ucx_library(nullptr);
  ucx.get_version = [](unsigned* major, unsigned* minor, unsigned* release) {
    *major = 1, *minor = 17, *release = 3;
  };
  EXPECT_THAT(why_not_device_memory(ucx),
              ::testing::HasSubstr("UCX is 1.17.3, and memory of GPUs needs 1.18"));
  ucx.get_version = [](unsigned* major, unsigned* minor, unsigned* release) {
    *major = 1, *minor = 18, *release = 0;
  };
  ucx.context_query = [](ucp_context_h, ucp_context_attr_t* attributes) {
    attributes->memory_types = UCS_BIT(UCS_MEMORY_TYPE_HOST);
    return UCS_OK;
  };
  EXPECT_THAT(why_not_device_memory(ucx), ::testing::HasSubstr("this UCX has no CUDA"));
  ucx.context_query = [](ucp_context_h, ucp_context_attr_t* attributes) {
    attributes->memory_types = UCS_BIT(UCS_MEMORY_TYPE_HOST) | UCS_BIT(UCS_MEMORY_TYPE_CUDA);
    return UCS_OK;
  };
  EXPECT_EQ(why_not_device_memory(ucx), "");
}

}  // namespace
}  // namespace fsccl::ucx
