// Tests which memory the ranks of a channel map.
#include "transports/shm/mapping.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "base/fd.h"
#include "tests/unit/wrapped_channel.h"

namespace fsccl {
namespace {

using shm::Mapping;
using testing::over_channel;
using testing::Wrapped;

constexpr size_t kPage = 4096;

struct Mapped {
  int stretches = 0;
  size_t bytes = 0;
};

// Returns what this process maps of the files of channels.
Mapped mapped() {
  Mapped found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("fsccl-channel") == std::string::npos) continue;
    size_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream(line) >> std::hex >> begin >> dash >> end;
    found.stretches++;
    found.bytes += end - begin;
  }
  return found;
}

TEST(Mapping, AStretchIsMappedOnceAndUnmappedWithItsLastUser) {
  const Fd file(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 4 * kPage), 0);
  const Fd copy(fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
  std::shared_ptr<Mapping> one = Mapping::of(file.get(), 0, 2 * kPage).take(),
                           same = Mapping::of(copy.get(), 0, 2 * kPage).take();
  const std::shared_ptr<Mapping> other = Mapping::of(file.get(), 2 * kPage, 2 * kPage).take();
  EXPECT_EQ(one->base(), same->base());
  EXPECT_NE(one->base(), other->base());
  std::byte* const base = one->base();
  one.reset();
  unsigned char in_core[2];
  EXPECT_EQ(mincore(base, 2 * kPage, in_core), 0);
  same.reset();
  EXPECT_EQ(mincore(base, 2 * kPage, in_core), -1);
  EXPECT_EQ(errno, ENOMEM);
}

TEST(Mapping, RanksOfOneProcessMapTheirChannelOnce) {
  over_channel(8, [](int, Wrapped&, uint32_t) { EXPECT_EQ(mapped().stretches, 1); });
}

// Memory that a pair of ranks needs is mapped by these two alone, when they need it.
TEST(Mapping, GrowsWithTheRanksNotTheirPairs) {
  constexpr int kRanks = 64;
  over_channel(kRanks, [&](int rank, Wrapped& channel, uint32_t) {
    if (rank != 3) return;
    size_t ring_bytes = 0, slot_bytes = 0;
    channel.slots(0, &ring_bytes, &slot_bytes);
    EXPECT_EQ(slot_bytes, shm_slot_bytes(kRanks));
    const size_t before = mapped().bytes;
    EXPECT_LE(before, kRanks * (ring_bytes + kPage) + kPage);
    Result<OpenedChannel> pair = channel.pair(3, 5);
    ASSERT_TRUE(pair.ok()) << pair.status().text();
    EXPECT_EQ(mapped().stretches, 2);
    EXPECT_LT(mapped().bytes - before, 64 * kPage);
    pair.value().channel.reset();
    EXPECT_EQ(mapped().bytes, before);
  });
}

}  // namespace
}  // namespace fsccl
