// Tests errors of NCCL. Either every rank gets in time an error that says the reason, and no stream
// is blocked, or operations go on without NCCL. The tests run over the stand-in for NCCL
// (tests/stand_in/nccl), each in a process of its own, because the stand-in reads its settings
// once.
#include <atomic>
#include <functional>

#include "device_memory.h"
#include "fsccl/insight.h"
#include "support.h"
#include "tests/stand_in/nccl/in_process.h"

namespace fsccl::testing {
namespace {

// Runs the body over the stand-in for NCCL; the test is skipped if the real one is loaded.
template <class Body>
void in_process(std::initializer_list<std::pair<const char*, const char*>> environment, Body body) {
  if (!stand_in_nccl::Control().there()) GTEST_SKIP() << "libnccl.so.2 is not the stand-in";
  stand_in_nccl::in_process(environment, body);
}

// Sums a word of each rank over all ranks.
struct Summing {
  explicit Summing(const Rank& rank) : self(rank), gpu(gpu_of(rank)), stream(*gpu), block(*gpu, 4) {
    put(1);
  }
  static const cuda::Device* gpu_of(const Rank& rank) {
    std::string why;
    return device_of_rank(rank.rank, &why);
  }
  void put(uint32_t value) const { block.put(&value); }
  fsccl_status_t start() const {
    return fsccl_all_reduce(block.get(), block.get(), 1, FSCCL_UINT32, FSCCL_SUM, self.comm,
                            stream.get(), nullptr);
  }
  uint32_t result() const {
    uint32_t value = 0;
    stream.synchronize();
    block.take(&value);
    return value;
  }
  std::string explained() const {
    std::vector<char> text(1 << 16);
    EXPECT_OK(fsccl_explain(self.comm, "all_reduce", 4, text.data(), text.size()));
    return text.data();
  }
  const Rank& self;
  const cuda::Device* gpu;
  DeviceStream stream;
  DeviceBlock block;
};

RanksOptions with_timeout(int64_t timeout_ms, bool abort_at_end) {
  RanksOptions options;
  options.timeout_ms = timeout_ms;
  options.abort_at_end = abort_at_end;
  return options;
}

// Runs two ranks that have summed once, and whose communicators end by an abort.
void two_ranks(int64_t timeout_ms, const std::function<void(const Summing&)>& body) {
  run_ranks(
      2,
      [&](Rank& self) {
        const Summing summing(self);
        ASSERT_OK(summing.start());
        EXPECT_EQ(summing.result(), 2u);
        body(summing);
      },
      with_timeout(timeout_ms, true));
}

TEST(DeviceFaults, AnOperationThatHangsEndsAtTheDeadline) {
  in_process({{"FSCCL_STAND_IN_NCCL_FAIL", "ncclAllReduce:2:hang:1"}}, [] {
    two_ranks(5000, [](const Summing& summing) {
      ASSERT_OK(summing.start());
      summing.stream.synchronize();  // returns, because the watch has ended the operation
      EXPECT_ERROR(summing.start(), FSCCL_ERR_TIMEOUT, "was not over in 5000 ms");
    });
  });
}

TEST(DeviceFaults, ARankThatLeavesEndsTheWaitOfStreams) {
  in_process({}, [] {
    std::atomic<bool> waits{false};
    two_ranks(kPatienceMs, [&](const Summing& summing) {
      if (summing.self.rank == 1) return waits.wait(false);  // its communicator ends on return
      const fsccl_status_t status = summing.start();
      waits = true;
      waits.notify_all();
      ASSERT_OK(status);
      summing.stream.synchronize();
      EXPECT_LT(summing.start(), 0);
    });
  });
}

TEST(DeviceFaults, WhatNcclFindsOutEndsTheCommunicator) {
  in_process({{"FSCCL_STAND_IN_NCCL_FAIL", "ncclAllReduce:2:async:0"}}, [] {
    two_ranks(5000, [](const Summing& summing) {
      const Rank& self = summing.self;
      fsccl_status_t status = summing.start();  // may fail already
      summing.stream.synchronize();
      while (status == FSCCL_OK && self.rank == 0)
        status = fsccl_barrier(self.comm, nullptr, nullptr);
      EXPECT_TRUE(self.rank == 1 || status < 0) << explain(status);
    });
  });
}

TEST(DeviceFaults, ARefusedCallEndsTheWaitOfTheOthersStreams) {
  in_process({{"FSCCL_STAND_IN_NCCL_FAIL", "ncclAllReduce:2:error:1"}}, [] {
    two_ranks(5000, [](const Summing& summing) {
      const fsccl_status_t status = summing.start();
      EXPECT_TRUE(summing.self.rank == 0 || status < 0);
      summing.stream.synchronize();
      EXPECT_ERROR(summing.start(), FSCCL_ERR_SYSTEM, "ncclAllReduce", "injected");
    });
  });
}

// NCCL requires that one thread of a process puts the operations of several communicators on a GPU,
// in one order. So they become one group of NCCL.
TEST(DeviceFaults, AGroupOverCommunicatorsIsOneOfNccl) {
  for (const char* const version : {"21903", "22809"})
    in_process({{"FSCCL_STAND_IN_NCCL_VERSION", version}}, [] {
      run_ranks(2, [](Rank& self) {
        const Summing summing(self);
        fsccl_comm_t other = nullptr;
        ASSERT_OK(fsccl_comm_split(self.comm, 0, self.rank, nullptr, &other));
        const DeviceBlock word(*summing.gpu, 4);
        const auto meet = [&] {
          return fsccl_all_reduce(word.get(), word.get(), 1, FSCCL_UINT32, FSCCL_MAX, other,
                                  summing.stream.get(), nullptr);
        };
        ASSERT_OK(meet());
        for (int turn = 0; turn < 2; turn++) {
          ASSERT_OK(fsccl_group_start());
          ASSERT_OK(self.rank ? meet() : FSCCL_OK);
          ASSERT_OK(summing.start());
          ASSERT_OK(self.rank ? FSCCL_OK : meet());
          ASSERT_OK(fsccl_group_end());
        }
        EXPECT_EQ(summing.result(), 4u);
        EXPECT_OK(fsccl_comm_destroy(other));
      });
      EXPECT_EQ(stand_in_nccl::Control().calls("ncclGroupEnd of several communicators"), 4u);
    });
}

TEST(DeviceFaults, ANcclThatIsToldToBlockIsNotUsed) {
  in_process({{"NCCL_COMM_BLOCKING", "1"}, {"FSCCL_STAND_IN_UCX_WITHOUT_CUDA", "1"}}, [] {
    run_ranks(2, [](Rank& self) {
      const Summing summing(self);
      ASSERT_OK(summing.start());
      EXPECT_EQ(summing.result(), 2u);
      EXPECT_THAT(summing.explained(), ::testing::HasSubstr("rank 0: NCCL_COMM_BLOCKING is 1"));
    });
    EXPECT_EQ(stand_in_nccl::Control().calls("ncclCommInitRankConfig"), 0u);
  });
}

TEST(DeviceFaults, WithoutNcclOnOneRankAllGoThroughTheHost) {
  in_process({{"FSCCL_STAND_IN_NCCL_FAIL", "ncclCommInitRankConfig:1:error:1"},
              {"FSCCL_STAND_IN_UCX_WITHOUT_CUDA", "1"}},
             [] {
               run_ranks(
                   3,
                   [](Rank& self) {
                     const Summing summing(self);
                     ASSERT_OK(summing.start());
                     EXPECT_EQ(summing.result(), 3u);
                     EXPECT_THAT(summing.explained(),
                                 ::testing::HasSubstr(R"("transport":"staged")"));
                   },
                   with_timeout(10'000, false));
             });
}

// The ranks have a UCX that takes memory of GPUs.
TEST(DeviceFaults, WithoutNcclOnOneRankAllGoByUcx) {
  in_process({{"FSCCL_STAND_IN_NCCL_FAIL", "ncclCommInitRankConfig:1:error:1"}}, [] {
    run_ranks(
        3,
        [](Rank& self) {
          const Summing summing(self);
          ASSERT_OK(summing.start());
          EXPECT_EQ(summing.result(), 3u);
          const std::string explained = summing.explained();
          if (explained.find("UCX cannot be loaded") != std::string::npos) return;
          EXPECT_THAT(explained, ::testing::HasSubstr(
                                     R"("transport":"ucx","why":"NCCL did not start on rank )"));
        },
        with_timeout(10'000, false));
  });
}

TEST(DeviceFaults, UcxIsAskedForAndHasNoCuda) {
  in_process({{"FSCCL_STAND_IN_UCX_WITHOUT_CUDA", "1"}, {"FSCCL_DEVICE_TRANSPORT", "ucx"}}, [] {
    run_ranks(2, [](Rank& self) {
      const Summing summing(self);
      EXPECT_ERROR(summing.start(), FSCCL_ERR_NOT_AVAILABLE, "FSCCL_DEVICE_TRANSPORT is ucx",
                   "rank 0: ");
    });
  });
}

TEST(DeviceFaults, AnOldNcclIsNotUsed) {
  in_process({{"FSCCL_STAND_IN_NCCL_VERSION", "21805"}}, [] {
    run_ranks(2, [](Rank& self) {
      const Summing summing(self);
      ASSERT_OK(summing.start());
      EXPECT_EQ(summing.result(), 2u);
      EXPECT_THAT(summing.explained(), ::testing::HasSubstr("NCCL is 2.18.5, this needs 2.19.0"));
    });
    EXPECT_OK(fsccl_transport_list(
        [](void*, const fsccl_transport_info_t* info) {
          if (std::string(info->name) == "nccl") {
            EXPECT_EQ(info->available, 0);
            EXPECT_THAT(info->why, ::testing::HasSubstr("2.18.5"));
          }
        },
        nullptr));
  });
}

TEST(DeviceFaults, WhatIsAskedForAndIsNotThereIsAnError) {
  in_process({{"FSCCL_STAND_IN_NCCL_VERSION", "21805"}, {"FSCCL_DEVICE_TRANSPORT", "nccl"}}, [] {
    run_ranks(2, [](Rank& self) {
      const Summing summing(self);
      EXPECT_ERROR(summing.start(), FSCCL_ERR_NOT_AVAILABLE, "FSCCL_DEVICE_TRANSPORT is nccl",
                   "2.18.5");
    });
  });
}

TEST(DeviceFaults, TwoRanksOnOneGpu) {
  in_process({{"FSCCL_STAND_IN_GPUS", "1"}}, [] {
    run_ranks(2, [](Rank& self) {
      const Summing summing(self);
      ASSERT_OK(summing.start());
      EXPECT_EQ(summing.result(), 2u);
      EXPECT_THAT(summing.explained(), ::testing::HasSubstr("ranks 0 and 1 are on one GPU"));
    });
    EXPECT_EQ(stand_in_nccl::Control().calls("ncclAllReduce"), 0u);
  });
  in_process({{"FSCCL_STAND_IN_GPUS", "1"},
              {"NCCL_MULTI_RANK_GPU_ENABLE", "1"},
              {"FSCCL_STAND_IN_NCCL_VERSION", "23007"}},
             [] {
               run_ranks(2, [](Rank& self) {
                 const Summing summing(self);
                 ASSERT_OK(summing.start());
                 EXPECT_EQ(summing.result(), 2u);
               });
               EXPECT_EQ(stand_in_nccl::Control().calls("ncclAllReduce"), 2u);
               std::string why;
               // The blocks are few enough for two ranks, because a kernel could otherwise wait for
               // one that does not fit the GPU beside it.
               const int most = device_of_rank(0, &why)->multiprocessors() / 4;
               EXPECT_EQ(
                   stand_in_nccl::Control().calls(
                       ("ncclCommInitRankConfig with maxCTAs " + std::to_string(most)).c_str()),
                   2u);
             });
}

}  // namespace
}  // namespace fsccl::testing
