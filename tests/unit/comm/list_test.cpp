// Tests calls on lists of tensors over engines, without communicators.
#include "comm/list.h"

#include <gmock/gmock.h>

#include <array>
#include <vector>

#include "tests/unit/wrapped_channel.h"

namespace fsccl::testing {
namespace {

constexpr size_t kCount = 1 << 18;  // too many elements for a slot

// An engine may belong to a part of a communicator. Its errors then name ranks by their numbers in
// the whole communicator.
TEST(Lists, APlaceThatCannotBeReachedIsToldWithTheNumbersOfMessages) {
  over_channel(2, [](int rank, Wrapped& channel, uint32_t tick) {
    std::vector<float> sent(kCount), received(2 * kCount);
    // Rank 1 names an arena that rank 0 has not mapped.
    ArenaTable arenas;
    if (rank == 1) {
      auto* const base = reinterpret_cast<std::byte*>(sent.data());
      ASSERT_TRUE(arenas.add(kFirstArena, base, sent.size() * sizeof sent[0], {0, 1}).ok());
    }
    EngineOptions options = options_over(channel, rank, 2, tick);
    options.arenas = &arenas;
    options.numbers = {4, 6};
    Engine engine(std::move(options));
    Collectives collectives(engine, {});
    Lists lists;
    const std::array<size_t, 2> counts{kCount, kCount};
    const fsccl_tensor_t tensor{sent.data(), received.data(), counts.data(), FSCCL_FLOAT32};
    fsccl_status_t state;
    const Status status = lists.run(collectives, {&tensor, 1, ListKind::all_gather}, true, &state);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), FSCCL_ERR_PROTOCOL);
    EXPECT_THAT(status.text(),
                ::testing::HasSubstr("rank 6 named a place for tensor 0 that rank 4 cannot reach"));
    EXPECT_EQ(status.error().peer, rank == 0 ? 6 : 4);
  });
}

}  // namespace
}  // namespace fsccl::testing
