// Tests joining by id, by callback and over TCP, and the ways in which it fails: each with a clear
// error on all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <barrier>
#include <cstring>

#include "base/socket.h"
#include "bootstrap/credentials.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/unique_id.h"
#include "ranks.h"

namespace fsccl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::join_all;
using testing::join_all_by_id;
using testing::join_by_id;
using testing::Joined;
using testing::kPatienceMs;
using testing::on_each_rank;
using testing::text_of;

fsccl_unique_id_t make_id() {
  fsccl_unique_id_t id;
  EXPECT_TRUE(create_unique_id(&id).ok());
  return id;
}

void expect_all_joined(const std::vector<Joined>& ranks) {
  for (const Joined& rank : ranks) ASSERT_TRUE(rank.status.ok()) << rank.status.text();
}

class JoinById : public ::testing::TestWithParam<int> {};

TEST_P(JoinById, MembersKnowEachOther) {
  const int ranks = GetParam();
  const std::vector<Joined> joined = join_all_by_id(ranks);
  ASSERT_EQ(joined.size(), static_cast<size_t>(ranks));
  expect_all_joined(joined);
  for (int rank = 0; rank < ranks; ++rank) {
    const Job& job = *joined[static_cast<size_t>(rank)].job;
    EXPECT_EQ(job.rank(), rank);
    EXPECT_EQ(job.size(), ranks);
    EXPECT_EQ(job.id(), joined[0].job->id());
    EXPECT_NE(job.id(), 0u);
    for (int other = 0; other < ranks; ++other) {
      EXPECT_EQ(job.member(other).pid, getpid());
      EXPECT_EQ(job.member(other).uid, geteuid());
      EXPECT_EQ(job.member(other).host, job.member(rank).host);
      EXPECT_GT(job.member(other).start_time, 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, JoinById, ::testing::Values(1, 2, 3, 8, 9, 10, 24, 75));

TEST(Join, OverTcpWhenTheHostsDiffer) {
  const fsccl_unique_id_t bytes = make_id();
  const UniqueId id = decode_unique_id(bytes).take();
  constexpr int kRanks = 11;
  const std::vector<Joined> joined =
      join_all(kRanks, [&](int rank) -> Result<std::shared_ptr<Job>> {
        // Every third rank shares the host of the id; the others say that they have another host.
        const bool here = rank % 3 == 0;
        FSCCL_ASSIGN(const RendezvousPoint place, meeting_place(id, here ? id.host : id.host + 1,
                                                                true, here ? "" : "elsewhere"));
        return join_at(place, rank, kRanks, Deadline::in_ms(kPatienceMs));
      });
  expect_all_joined(joined);
  EXPECT_NE(joined[0].job->member(1).host, joined[0].job->member(0).host);
  EXPECT_EQ(joined[0].job->member(1).host, joined[0].job->member(2).host);
  on_each_rank<int>(kRanks, [&](int rank) {
    EXPECT_TRUE(joined[static_cast<size_t>(rank)].job->barrier(Deadline::in_ms(kPatienceMs)).ok());
    return 0;
  });
  const Result<Fd> far = joined[0].job->fetch_fd(1, 1, Deadline::in_ms(100), {});
  EXPECT_EQ(far.status().code(), FSCCL_ERR_INVALID_ARGUMENT);
}

TEST(Join, SeveralJobsAtOnceInOneProcess) {
  const fsccl_unique_id_t ids[] = {make_id(), make_id(), make_id()};
  const std::vector<Joined> joined =
      join_all(9, [&](int i) { return join_by_id(ids[i % 3], i / 3, 3); });
  expect_all_joined(joined);
  EXPECT_NE(joined[0].job->id(), joined[1].job->id());
}

TEST(Join, SpoiltIdIsRefused) {
  fsccl_unique_id_t id = make_id();
  id.bytes[100] ^= 1;
  EXPECT_EQ(join_by_id(id, 0, 1).status().code(), FSCCL_ERR_INVALID_ARGUMENT);
  std::memset(&id, 0, sizeof(id));
  EXPECT_EQ(join_by_id(id, 0, 1).status().code(), FSCCL_ERR_INVALID_ARGUMENT);
}

// -------------------------------------------------------------------------------------------------
// failures

TEST(JoinFails, DuplicateRankForAll) {
  const fsccl_unique_id_t id = make_id();
  const std::vector<Joined> joined =
      join_all(3, [&](int i) { return join_by_id(id, i == 2 ? 1 : i, 3); });
  for (const Joined& rank : joined) {
    EXPECT_EQ(rank.status.code(), FSCCL_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(text_of(rank.status), HasSubstr("rank 1 joined twice"));
  }
}

TEST(JoinFails, DisagreeingSizesForAll) {
  const fsccl_unique_id_t id = make_id();
  const std::vector<Joined> joined =
      join_all(4, [&](int rank) { return join_by_id(id, rank, rank == 3 ? 5 : 4); });
  for (const Joined& rank : joined) {
    EXPECT_EQ(rank.status.code(), FSCCL_ERR_MISMATCH);
    EXPECT_THAT(text_of(rank.status), AllOf(HasSubstr("5"), HasSubstr("4")));
  }
}

TEST(JoinFails, RankOutOfRangeForAll) {
  for (const int bad : {3, -1}) {
    const fsccl_unique_id_t id = make_id();
    const std::vector<Joined> joined =
        join_all(3, [&](int rank) { return join_by_id(id, rank == 2 ? bad : rank, 3); });
    for (const Joined& rank : joined) {
      EXPECT_EQ(rank.status.code(), FSCCL_ERR_INVALID_ARGUMENT);
      EXPECT_THAT(text_of(rank.status), HasSubstr("outside 0 .. 2"));
    }
  }
}

TEST(JoinFails, WrongSecretAtOnceAndTheOthersAtTheDeadline) {
  const fsccl_unique_id_t id = make_id();
  UniqueId forged = decode_unique_id(id).take();
  forged.secret = SecretKey::random();
  const fsccl_unique_id_t wrong = encode(forged);
  const std::vector<Joined> joined =
      join_all(2, [&](int rank) { return join_by_id(rank == 1 ? wrong : id, rank, 2, 1000); });
  EXPECT_EQ(joined[1].status.code(), FSCCL_ERR_AUTH);
  EXPECT_EQ(joined[0].status.code(), FSCCL_ERR_TIMEOUT);
  EXPECT_THAT(joined[0].status.text(),
              AllOf(HasSubstr("missing: 1"), HasSubstr("without a proof")));
}

TEST(JoinFails, MissingRanksAreNamedToAll) {
  const fsccl_unique_id_t id = make_id();
  const std::vector<Joined> joined =
      join_all(12, [&](int rank) { return join_by_id(id, rank, 14, 1500); });
  for (const Joined& rank : joined) {
    EXPECT_EQ(rank.status.code(), FSCCL_ERR_TIMEOUT);
    EXPECT_THAT(text_of(rank.status),
                AllOf(HasSubstr("12 of 14 ranks"), HasSubstr("missing: 12, 13")));
  }
  // A rank that comes later is told at once.
  EXPECT_THAT(join_by_id(id, 13, 14).status().text(), HasSubstr("missing: 12, 13"));
}

TEST(JoinFails, NobodyListens) {
  UniqueId id = decode_unique_id(make_id()).take();
  random_bytes(id.listener.data(), id.listener.size());
  const Status status = join_by_id(encode(id), 0, 2, 200).take_status();
  EXPECT_EQ(status.code(), FSCCL_ERR_TIMEOUT);
  EXPECT_THAT(status.text(), HasSubstr("Connection refused"));
}

TEST(JoinFails, OtherVersionForAll) {
  const fsccl_unique_id_t bytes = make_id();
  const UniqueId id = decode_unique_id(bytes).take();
  const std::vector<Joined> joined = join_all(2, [&](int rank) -> Result<std::shared_ptr<Job>> {
    if (rank == 0) return join_by_id(bytes, 0, 2);
    FSCCL_ASSIGN(RendezvousPoint place, meeting_place(id, id.host, false, ""));
    place.credentials.version.library = 10203;
    return join_at(place, 1, 2, Deadline::in_ms(kPatienceMs));
  });
  for (const Joined& rank : joined) {
    EXPECT_EQ(rank.status.code(), FSCCL_ERR_VERSION);
    EXPECT_THAT(text_of(rank.status), AllOf(HasSubstr("1.2.3"), HasSubstr("0.1.0")));
  }
}

TEST(JoinFails, WhenARankGivesUpEarly) {
  const fsccl_unique_id_t id = make_id();
  // Rank 2 of 3 never comes. Rank 0 gives up first, and rank 1 hears it although it would wait much
  // longer.
  const std::vector<Joined> joined = join_all(
      2, [&](int rank) { return join_by_id(id, rank, 3, rank == 0 ? 500 : kPatienceMs * 3); });
  for (const Joined& rank : joined) EXPECT_EQ(rank.status.code(), FSCCL_ERR_TIMEOUT);
}

TEST(JoinFails, WhenTheParentIsGone) {
  const fsccl_unique_id_t bytes = make_id();
  const UniqueId id = decode_unique_id(bytes).take();
  const RendezvousPoint place = meeting_place(id, id.host, false, "").take();
  // Rank 0 registers by hand, becomes the root, and listens nowhere; its connection stays open.
  Status versions;
  FramedSocket root = connect_as(place.addresses[0], place.credentials, Purpose::kRegister, id.job,
                                 0, 2, Deadline::in_ms(kPatienceMs), &versions)
                          .take();
  MemberRecord self;
  self.rank = 0;
  ASSERT_TRUE(
      root.send(FrameType::kRegister, encode(Register{self, 60'000}), Deadline::in_ms(kPatienceMs))
          .ok());
  ASSERT_TRUE(root.expect(FrameType::kAssign, Deadline::in_ms(kPatienceMs)).ok());
  const Status child = join_by_id(bytes, 1, 2).take_status();
  EXPECT_EQ(child.code(), FSCCL_ERR_PEER_DEAD);
  EXPECT_THAT(child.text(), HasSubstr("cannot connect to rank 0"));
  // The root hears of the failure through the connection that the rendezvous keeps, after the list
  // of members.
  EXPECT_TRUE(root.expect(FrameType::kMembers, Deadline::in_ms(kPatienceMs)).ok());
  EXPECT_EQ(root.receive(Deadline::in_ms(kPatienceMs)).status().code(), FSCCL_ERR_PEER_DEAD);
}

TEST(JoinFails, WhenTheRootEndsWhileJoining) {
  const fsccl_unique_id_t bytes = make_id();
  const UniqueId id = decode_unique_id(bytes).take();
  const RendezvousPoint place = meeting_place(id, id.host, false, "").take();
  Status versions;
  {
    FramedSocket root = connect_as(place.addresses[0], place.credentials, Purpose::kRegister,
                                   id.job, 0, 2, Deadline::in_ms(kPatienceMs), &versions)
                            .take();
    MemberRecord self;
    ASSERT_TRUE(root.send(FrameType::kRegister, encode(Register{self, 60'000}),
                          Deadline::in_ms(kPatienceMs))
                    .ok());
    ASSERT_TRUE(root.expect(FrameType::kAssign, Deadline::in_ms(kPatienceMs)).ok());
  }
  EXPECT_EQ(join_by_id(bytes, 1, 2).status().code(), FSCCL_ERR_PEER_DEAD);
}

// The process of the rendezvous can learn of a failure before the rendezvous does, and may end
// before the rendezvous can tell anybody. A rank that comes late must hear of the failure all the
// same.
TEST(JoinFails, WhoComesLateHearsWhatTheProcessOfTheRendezvousKnows) {
  const fsccl_unique_id_t bytes = make_id();
  const UniqueId id = decode_unique_id(bytes).take();
  RendezvousServer::hear(
      id.job, 0,
      fail(FSCCL_ERR_PEER_DEAD, "rank 2 ended while the job was being joined").with_peer(0, 2));
  const Status late = join_by_id(bytes, 1, 3).take_status();
  EXPECT_EQ(late.code(), FSCCL_ERR_PEER_DEAD);
  EXPECT_EQ(late.error().peer, 2);
}

// Strangers send bytes that mean nothing, half a message, nothing at all, or a length beyond all
// bounds. They keep no rank out.
TEST(Join, GoesOnAmongStrangers) {
  const fsccl_unique_id_t bytes = make_id();
  const UniqueId id = decode_unique_id(bytes).take();
  const SocketAddress unix_socket = unix_address(listener_name(id.listener));
  const SocketAddress tcp_socket = tcp_address(id.ips.at(0), id.port);
  const Bytes hello = encode_frame(FrameType::kHello, Bytes(kHelloBytes));
  const Bytes endless = ByteWriter()
                            .put(kFrameMagic)
                            .put(uint16_t{1})
                            .put(uint16_t{0})
                            .put(uint32_t{0xffffffff})
                            .take();
  std::vector<Fd> strangers;
  for (int i = 0; i < 600; ++i) {
    Result<Fd> fd = connect_to(i % 2 ? unix_socket : tcp_socket, Deadline::in_ms(kPatienceMs));
    if (!fd.ok()) continue;
    const Bytes noise(100, static_cast<uint8_t>(i));
    const Bytes& sent = i % 5 == 0 ? noise : i % 5 == 1 ? endless : hello;
    const size_t count = i % 5 == 2 ? 7 : i % 5 == 3 ? 0 : sent.size();
    if (count > 0) (void)send_some(fd.value().get(), sent.data(), count).ok();
    strangers.push_back(fd.take());
  }
  expect_all_joined(join_all(16, [&](int rank) { return join_by_id(bytes, rank, 16); }));
}

// A crowd of connections never makes the rendezvous close one that has only just been made.
// Otherwise all ranks would have to connect again without end.
TEST(Join, WhoStandsAtTheDoorHasATurn) {
  constexpr int64_t kTurnNs = 500'000'000;
  for (int tries = 0; tries < 50; ++tries) {  // a slow machine tries again
    const UniqueId id = decode_unique_id(make_id()).take();
    const int64_t begin = now_ns();
    std::vector<Fd> crowd;
    for (int i = 0; i < 600; ++i)
      crowd.push_back(
          connect_to(unix_address(listener_name(id.listener)), Deadline::in_ms(kPatienceMs))
              .take());
    const bool sent_away =
        wait_ready(crowd.front().get(), Direction::kRead, Deadline::in_ms(100)).ok();
    if (now_ns() - begin > kTurnNs) continue;
    EXPECT_FALSE(sent_away);
    return;
  }
  FAIL() << "600 connections never took less than half a second";
}

// -------------------------------------------------------------------------------------------------
// callback

// An all-gather between threads, as a caller with MPI would have one.
class ThreadAllGather {
 public:
  explicit ThreadAllGather(int ranks) : barrier_(ranks), calls(static_cast<size_t>(ranks)) {}
  int gather(int rank, const void* mine, void* all, size_t bytes) {
    ++calls[static_cast<size_t>(rank)];
    if (rank == 0) table_.resize(bytes * calls.size());
    barrier_.arrive_and_wait();
    std::memcpy(table_.data() + static_cast<size_t>(rank) * bytes, mine, bytes);
    barrier_.arrive_and_wait();
    std::memcpy(all, table_.data(), table_.size());
    return rank == failing ? 7 : 0;
  }

 private:
  std::barrier<> barrier_;
  std::vector<uint8_t> table_;

 public:
  std::vector<int> calls;
  int failing = -1;
};

struct CallbackRank {
  ThreadAllGather* gather;
  int rank;
};

Result<std::shared_ptr<Job>> join_by_callback(ThreadAllGather& gather, int place, int rank,
                                              int ranks, int64_t timeout_ms = kPatienceMs) {
  CallbackRank context{&gather, place};
  JoinRequest request;
  request.all_gather = [](void* opaque, const void* mine, void* all, size_t bytes) {
    auto* const self = static_cast<CallbackRank*>(opaque);
    return self->gather->gather(self->rank, mine, all, bytes);
  };
  request.all_gather_context = &context;
  request.rank = rank;
  request.ranks = ranks;
  request.deadline = Deadline::in_ms(timeout_ms);
  return Job::join(request);
}

TEST(JoinByCallback, Works) {
  ThreadAllGather gather(5);
  expect_all_joined(join_all(5, [&](int rank) { return join_by_callback(gather, rank, rank, 5); }));
  EXPECT_THAT(gather.calls, ::testing::Each(1));
}

TEST(JoinByCallback, ABadRankFailsAllAfterTheSameCalls) {
  ThreadAllGather gather(3);
  const std::vector<Joined> joined = join_all(
      3, [&](int rank) { return join_by_callback(gather, rank, rank == 1 ? 9 : rank, 3); });
  for (const Joined& rank : joined) EXPECT_EQ(rank.status.code(), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(joined[2].status.text(), HasSubstr("rank 1: rank 9 is outside 0 .. 2"));
  EXPECT_THAT(gather.calls, ::testing::Each(1));
}

TEST(JoinByCallback, RanksInAnotherOrderAreNoticed) {
  ThreadAllGather gather(2);
  const std::vector<Joined> joined =
      join_all(2, [&](int rank) { return join_by_callback(gather, 1 - rank, rank, 2); });
  for (const Joined& rank : joined) EXPECT_EQ(rank.status.code(), FSCCL_ERR_MISMATCH);
}

TEST(JoinByCallback, AFailingCallbackIsReported) {
  ThreadAllGather gather(2);
  gather.failing = 1;
  const std::vector<Joined> joined =
      join_all(2, [&](int rank) { return join_by_callback(gather, rank, rank, 2, 500); });
  EXPECT_EQ(joined[1].status.code(), FSCCL_ERR_LINK);
  EXPECT_THAT(joined[1].status.text(), HasSubstr("returned 7"));
  EXPECT_EQ(joined[0].status.code(), FSCCL_ERR_TIMEOUT);
  EXPECT_THAT(gather.calls, ::testing::Each(1));
}

}  // namespace
}  // namespace fsccl
