#include "comm/consensus.h"

#include <gmock/gmock.h>

#include "api/objects.h"
#include "support.h"

namespace fsccl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Runs `body` on the communicator of each of `ranks` ranks.
void on_comm(int ranks, const std::function<void(Communicator&)>& body) {
  run_ranks(ranks, [&](Rank& self) {
    const Result<Ref<Communicator>> comm = comm_of(self.comm);
    ASSERT_TRUE(comm.ok());
    body(*comm.value());
  });
}

TEST(Consensus, AllRanksGatherAllValuesInRankOrder) {
  on_comm(3, [](Communicator& comm) {
    const Result<std::vector<int>> all = all_gather(comm, 10 * comm.rank());
    ASSERT_TRUE(all.ok());
    EXPECT_THAT(all.value(), ElementsAre(0, 10, 20));
    const Result<std::vector<char>> rows =
        all_gather_rows(comm, std::vector<char>(2, static_cast<char>('a' + comm.rank())));
    ASSERT_TRUE(rows.ok());
    EXPECT_THAT(rows.value(), ElementsAre('a', 'a', 'b', 'b', 'c', 'c'));
    const Result<std::vector<int>> none = all_gather_rows(comm, std::vector<int>());
    EXPECT_TRUE(none.ok() && none.value().empty());
  });
}

TEST(Consensus, ARankTellsAllOthers) {
  on_comm(3, [](Communicator& comm) {
    const Result<int> told = from_rank(comm, 1, 7 + comm.rank());
    ASSERT_TRUE(told.ok());
    EXPECT_EQ(told.value(), 8);
  });
}

TEST(Consensus, AllAreWellOrEveryRankReadsTheFirstErrorsOwnText) {
  on_comm(4, [](Communicator& comm) {
    EXPECT_TRUE(all_ok(comm, success(), "eat").ok());
    Status mine = success();
    if (comm.rank() == 1) mine = fail(FSCCL_ERR_LIMIT, "no more than {} plates", 3);
    if (comm.rank() == 3) mine = fail(FSCCL_ERR_INVALID_ARGUMENT, "a fork is missing");
    const Status answer = all_ok(comm, std::move(mine), "eat");
    const bool own = comm.rank() == 1 || comm.rank() == 3;
    EXPECT_EQ(answer.code(), comm.rank() == 3 ? FSCCL_ERR_INVALID_ARGUMENT : FSCCL_ERR_LIMIT);
    EXPECT_EQ(answer.text(), comm.rank() == 3 ? "a fork is missing"
                             : own            ? "no more than 3 plates"
                                              : "rank 1 could not eat: no more than 3 plates");
    EXPECT_EQ(answer.error().peer, own ? -1 : 1);
    EXPECT_TRUE(all_ok(comm, success(), "eat").ok()) << "the communicator goes on";
  });
}

TEST(Consensus, ALongTextIsCut) {
  on_comm(2, [](Communicator& comm) {
    Status mine = success();
    if (comm.rank() == 0) mine = fail(FSCCL_ERR_SYSTEM, "{}", std::string(5000, 'x'));
    const Status answer = all_ok(comm, std::move(mine), "stop");
    EXPECT_EQ(answer.code(), FSCCL_ERR_SYSTEM);
    if (comm.rank() == 1) {
      EXPECT_THAT(std::string(answer.text()), HasSubstr(std::string(500, 'x')));
      EXPECT_LT(answer.text().size(), 600u);
    }
  });
}

TEST(Consensus, TheFirstRankThatDiffersIsFound) {
  on_comm(3, [](Communicator& comm) {
    EXPECT_EQ(first_that_differs(comm, 5).value(), -1);
    EXPECT_EQ(first_that_differs(comm, comm.rank() == 2 ? 6 : 5).value(), comm.rank() == 2 ? 0 : 2);
  });
}

}  // namespace
}  // namespace fsccl::testing
