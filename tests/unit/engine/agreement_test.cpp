// Whether all ranks can begin: what one says, all hear.
#include "engine/agreement.h"

#include <gmock/gmock.h>

#include "wrapped_channel.h"

namespace fsccl {
namespace {

using namespace testing;
using ::testing::HasSubstr;

constexpr int kNumbers[] = {4, 6, 9};  // of the ranks in messages

Meeting meeting_of(int rank, Wrapped& wrapped) {
  return {shm_transport(), wrapped.channel, rank, 3, now_ns() + kLimitNs, [](void*) { return 0; }, nullptr, kNumbers};
}

TEST(Agreement, OneThatCannotBeginEndsAll) {
  over_channel(3, [](int rank, Wrapped& channel, uint32_t tick) {
    const uint32_t first = tick;
    Status mine = rank == 1 ? fail(FSCCL_ERR_LIMIT, "no room here") : success();
    const Status status = agree_to_begin(meeting_of(rank, channel), *config(), std::move(mine), &tick);
    EXPECT_EQ(tick, first + 1);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), rank == 1 ? FSCCL_ERR_LIMIT : FSCCL_ERR_OUT_OF_MEMORY);
    EXPECT_THAT(status.text(), HasSubstr(rank == 1 ? "no room here" : "rank 6 could not begin"));
    EXPECT_EQ(status.error().peer, rank == 1 ? -1 : 6);
  });
}

TEST(Agreement, SettingsThatDifferAreNamedByTheNumbersOfMessages) {
  over_channel(3, [](int rank, Wrapped& channel, uint32_t tick) {
    Config settings = *config();
    settings.eager_bytes = rank == 2 ? 64 : 128;
    const Status status = agree_to_begin(meeting_of(rank, channel), settings, success(), &tick);
    EXPECT_EQ(status.code(), FSCCL_ERR_MISMATCH);
    EXPECT_THAT(status.text(),
                HasSubstr(rank == 2 ? "rank 4 has FSCCL_EAGER_BYTES 128, rank 9 has 64" : "rank 9 has FSCCL_EAGER_BYTES 64, rank"));
  });
}

}  // namespace
}  // namespace fsccl
