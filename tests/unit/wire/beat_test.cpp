// Tests heartbeats as datagrams: a datagram without a valid proof does not count.
#include "wire/beat.h"

#include <gtest/gtest.h>

namespace fsccl {
namespace {

constexpr uint64_t kJob = 77;

MemberRecord member_of(int32_t rank, uint8_t drawn) {
  MemberRecord member;
  member.rank = rank;
  member.listener.fill(drawn);
  return member;
}

const SecretKey kSecret = SecretKey::derive("a job", {});
const MemberRecord kHere = member_of(1, 10), kThere = member_of(2, 20);
SecretKey key() { return beat_key(kSecret, kJob, kHere, kThere); }

TEST(Beat, IsAsDocumented) {
  const BeatDatagram datagram = seal_beat(key(), 1, 0x1234);
  ASSERT_EQ(datagram.size(), 48u);
  EXPECT_EQ(Bytes(datagram.begin(), datagram.begin() + 16),
            (Bytes{'F', 'S', 'C', 'b', 1, 0, 0, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(claimed_rank(datagram), 1);
  EXPECT_EQ(open_beat(key(), datagram, 0), 0x1234u);
}

TEST(Beat, IsTakenOnceAndInOrder) {
  const BeatDatagram fifth = seal_beat(key(), 1, 5), sixth = seal_beat(key(), 1, 6);
  EXPECT_EQ(open_beat(key(), fifth, 4), 5u);
  EXPECT_EQ(open_beat(key(), fifth, 5), 0u);
  EXPECT_EQ(open_beat(key(), sixth, 5), 6u);
  EXPECT_EQ(open_beat(key(), fifth, 6), 0u);
}

TEST(Beat, WithAnotherBitOrLengthProvesNothing) {
  const BeatDatagram datagram = seal_beat(key(), 1, 5);
  for (size_t bit = 0; bit < 8 * kBeatBytes; bit++) {
    BeatDatagram wrong = datagram;
    wrong[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_EQ(open_beat(key(), wrong, 0), 0u) << bit;
  }
  Bytes longer(datagram.begin(), datagram.end());
  longer.push_back(0);
  EXPECT_EQ(claimed_rank(longer), -1);
  EXPECT_EQ(open_beat(key(), longer, 0), 0u);
  for (size_t bytes = 0; bytes < kBeatBytes; bytes++) {
    EXPECT_EQ(claimed_rank(ByteView(datagram).first(bytes)), -1);
    EXPECT_EQ(open_beat(key(), ByteView(datagram).first(bytes), 0), 0u);
  }
}

// The proof of a datagram is made with another secret, or for another job, direction or receiver,
// or for the same ranks of the next start.
TEST(Beat, OfAnotherPairOrJobProvesNothing) {
  const SecretKey others[] = {
      beat_key(SecretKey::derive("another", {}), kJob, kHere, kThere),
      beat_key(kSecret, kJob + 1, kHere, kThere),
      beat_key(kSecret, kJob, kThere, kHere),
      beat_key(kSecret, kJob, kHere, member_of(3, 20)),
      beat_key(kSecret, kJob, member_of(3, 10), kThere),
      beat_key(kSecret, kJob, member_of(1, 11), kThere),
      beat_key(kSecret, kJob, kHere, member_of(2, 21)),
  };
  for (const SecretKey& other : others) EXPECT_EQ(open_beat(key(), seal_beat(other, 1, 5), 0), 0u);
}

TEST(Beat, OfNoRankIsNotOurs) {
  for (const int32_t rank : {-1, -2, INT32_MIN})
    EXPECT_EQ(claimed_rank(seal_beat(key(), rank, 5)), -1);
}

}  // namespace
}  // namespace fsccl
