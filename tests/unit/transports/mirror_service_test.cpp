// Tests when the service thread of a node polls it and when it leaves that to other threads, how
// failures are passed on, and what a node does without memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <new>
#include <thread>

#include "still_node.h"
#include "transports/mirror/channel.h"

namespace fsccl::mirror {
namespace {

// A node to which something comes whenever it is moved on, and for which a thread has slept.
class BusyNode final : public StillNode {
 public:
  explicit BusyNode(const fsccl_transport_job_t& job)
      : StillNode("busy", job), events_(eventfd(1, EFD_CLOEXEC)) {
    unflushed_ = true;
    EXPECT_TRUE(start_service().ok());
  }
  ~BusyNode() override {
    stop_service();
    ::close(events_);
  }
  std::atomic<int> turns{0}, longest{0};

 protected:
  bool advance(int) override {
    moves_++;
    woke();
    return true;
  }
  bool flushed() override {  // the service thread calls it once after each of its turns
    if (moves_ > longest) longest = moves_;
    if (moves_) turns++;
    moves_ = 0;
    return turns > 3;
  }
  int events() const override { return events_; }

 private:
  const int events_;
  int moves_ = 0;
};

// A node that gets no memory for incoming messages, nor for outgoing ones.
class StarvedNode final : public StillNode {
 public:
  explicit StarvedNode(const fsccl_transport_job_t& job) : StillNode("starved", job) {}
  std::vector<int> dropped;

 protected:
  void post(int, const Header&, Payload&&, bool) override { throw std::bad_alloc(); }
  void drop(int rank) noexcept override { dropped.push_back(rank); }
  bool advance(int) override { throw std::bad_alloc(); }
};

// A node that records the receivers of messages.
class RecordingNode final : public StillNode {
 public:
  explicit RecordingNode(const fsccl_transport_job_t& job) : StillNode("recording", job) {}
  std::vector<int> sent;
  std::vector<MessageKind> kinds;

 protected:
  void post(int rank, const Header& header, Payload&&, bool) override {
    sent.push_back(rank);
    kinds.push_back(header.kind);
  }
};

// A node that is offered bytes, or gets them, for a channel that is not open.
class EarlyNode final : public StillNode {
 public:
  explicit EarlyNode(const fsccl_transport_job_t& job) : StillNode("early", job) {}
  ~EarlyNode() override { drop_early(); }
  bool deliver_early(void* data, size_t bytes, bool offered) {
    const std::lock_guard lock(mutex());
    Header header{};
    header.channel = 8;
    header.kind = MessageKind::bytes;
    return deliver(1, header, data, bytes, offered);
  }
  bool gone() {
    const std::lock_guard lock(mutex());
    return broken(1);
  }
};

// A node that gets messages for pairs in a channel, which this rank has not opened.
class PairNode final : public StillNode {
 public:
  explicit PairNode(const fsccl_transport_job_t& job) : StillNode("pairs", job) {}
  std::vector<Header> sent;
  int dropped = 0;

  std::unique_ptr<Channel> open_around(uint64_t meeting) {
    Channel::Setup setup;
    setup.node = this;
    setup.meeting = meeting;
    setup.tag = 1'000;
    setup.members = {0, 1};
    setup.board = std::make_shared<Board>();
    return Channel::open(std::move(setup)).take();
  }
  bool deliver_to_pair(uint64_t pair, uint64_t around, size_t bytes, bool offered = false) {
    const std::lock_guard lock(mutex());
    Header header{};
    header.channel = pair;
    header.tag = around;
    header.kind = MessageKind::line;
    data_.resize(bytes);
    return deliver(1, header, data_.data(), bytes, offered);
  }
  std::string why_gone() {
    const std::lock_guard lock(mutex());
    return broken(1) ? problem(1) : "";
  }

 protected:
  void post(int, const Header& header, Payload&&, bool) override { sent.push_back(header); }
  void drop_offer(void*) override { dropped++; }

 private:
  std::vector<std::byte> data_;
};

class Pairs : public ::testing::Test {
 protected:
  const unsigned char key_[32] = {};
  PairNode node_{fsccl_transport_job_t{sizeof(fsccl_transport_job_t), 0, 2, key_, 0, nullptr}};
};

// All these messages take more than the limit for channels that are not open. They belong to an
// open channel, and the rank has only not received from these pairs yet.
TEST_F(Pairs, OfAnOpenChannelMayAllHaveMessages) {
  const std::unique_ptr<Channel> around = node_.open_around(7);
  const size_t each = around->pair_ring_bytes();
  for (uint64_t pair = 0; pair * each <= 300u << 20; pair++)
    node_.deliver_to_pair(100 + pair, 7, each);
  EXPECT_EQ(node_.why_gone(), "");
  node_.deliver_to_pair(100, 7, each);
  EXPECT_THAT(node_.why_gone(), ::testing::HasSubstr("than the ring of two ranks holds"));
}

TEST_F(Pairs, EndWithTheChannelThatTheyAreIn) {
  std::unique_ptr<Channel> around = node_.open_around(7);
  EXPECT_TRUE(node_.deliver_to_pair(100, 7, 8, true));
  EXPECT_TRUE(node_.deliver_to_pair(101, 7, 8, true));
  around.reset();
  EXPECT_EQ(node_.dropped, 2);
  EXPECT_FALSE(node_.deliver_to_pair(102, 7, 8, true)) << "it is not kept";
}

// A rank that calls another one in a channel which that one has closed may never have heard from
// it before.
TEST_F(Pairs, AndChannelsThatAreClosedAnswerThatThisRankHasLeft) {
  node_.open_around(7).reset();
  node_.sent.clear();
  for (const uint64_t channel : {7, 100}) {
    for (int i = 0; i < 3; i++) node_.deliver_to_pair(channel, 7, 8);  // one answer is enough
    ASSERT_EQ(node_.sent.size(), 1u);
    EXPECT_EQ(node_.sent[0].kind, MessageKind::left);
    EXPECT_EQ(node_.sent[0].channel, channel);
    EXPECT_EQ(node_.sent[0].sent, 0u);
    node_.sent.clear();
  }
}

// A node whose service thread sleeps, because nobody needs it.
class DozingNode final : public StillNode {
 public:
  explicit DozingNode(const fsccl_transport_job_t& job) : StillNode("dozing", job) {
    EXPECT_TRUE(start_service().ok());
  }
  ~DozingNode() override { stop_service(); }
  std::atomic<int> moves{0};

 protected:
  bool advance(int) override {
    moves++;
    return false;
  }
};

// The other rank may call this one later, and this rank may call nothing any more.
TEST(MirrorService, LooksForWhoDoesNotKnowThatAChannelIsClosed) {
  constexpr unsigned char key[32] = {};
  DozingNode node({sizeof(fsccl_transport_job_t), 0, 2, key, 0, nullptr});
  Channel::Setup setup;
  setup.node = &node;
  setup.meeting = 7;
  setup.tag = 8;
  setup.members = {0, 1};
  setup.board = std::make_shared<Board>();
  std::unique_ptr<Channel> channel = Channel::open(std::move(setup)).take();
  channel.reset();
  const int before = node.moves;
  while (node.moves == before) std::this_thread::yield();
}

// A channel of rank 3 of 16.
class News : public ::testing::Test {
 protected:
  News() : node_({sizeof(fsccl_transport_job_t), 3, 16, key_, 0, nullptr}) {
    Channel::Setup setup;
    setup.node = &node_;
    setup.meeting = setup.tag = 7;
    setup.rank = 3;
    for (int rank = 0; rank < 16; rank++) setup.members.push_back(rank);
    setup.board = std::make_shared<Board>();
    channel_ = Channel::open(std::move(setup)).take();
  }
  static fsccl_transport_failure_t failure(fsccl_status_t code) {
    fsccl_transport_failure_t made{};
    made.code = code;
    return made;
  }
  const unsigned char key_[32] = {};
  RecordingNode node_;
  std::unique_ptr<Channel> channel_;
};

TEST_F(News, AtFirstHandAreToldToAll) {
  channel_->fail(failure(FSCCL_ERR_ABORTED));
  channel_->fail(failure(FSCCL_ERR_ABORTED));  // the channel has failed already
  EXPECT_EQ(node_.sent.size(), 15u);
  EXPECT_THAT(node_.sent, ::testing::Not(::testing::Contains(3)));
}

TEST_F(News, WhichTheJobTellsAllArePassedOnToAFew) {
  channel_->fail(failure(FSCCL_ERR_PEER_DEAD));
  EXPECT_THAT(node_.sent, ::testing::ElementsAre(4, 5, 7, 11));
}

TEST_F(News, ThatAreHeardArePassedOnToAFew) {
  Header header{};
  header.kind = MessageKind::failure;
  const fsccl_transport_failure_t news = failure(FSCCL_ERR_ABORTED);
  {
    const std::lock_guard lock(node_.mutex());
    for (int from = 0; from < 2; from++) channel_->hear(from, header, &news, sizeof news);
  }
  EXPECT_THAT(node_.sent, ::testing::ElementsAre(4, 5, 7, 11));
}

// A failure changes the words of the channel and of all its pairs. So a thread that sleeps on such
// a word wakes up and looks at the board.
TEST_F(News, ChangeTheWordsOfTheChannelAndOfAllItsPairs) {
  const auto from = channel_->pair(3, 5).take().channel, to = channel_->pair(7, 3).take().channel;
  channel_->pair(3, 6).take().channel.reset();  // a pair that is gone has no word
  fsccl_transport_word_t words[3];
  channel_->word(5, 1, &words[0]);
  from->word(1, 1, &words[1]);
  to->word(0, 1, &words[2]);
  to->fail(failure(FSCCL_ERR_ABORTED));
  for (const fsccl_transport_word_t& word : words) EXPECT_NE(*word.word, word.value);
}

// A rank that leaves after a failure reports the failure first. Otherwise it would seem to have
// left for no reason.
TEST_F(News, AreToldBeforeThisRankLeavesToAllWhomItKnows) {
  {
    const std::lock_guard lock(node_.mutex());
    channel_->hear(9, {}, nullptr, 0);
    channel_->hear(12, {}, nullptr, 0);
  }
  channel_->fail(failure(FSCCL_ERR_PEER_DEAD));
  node_.sent.clear();
  node_.kinds.clear();
  channel_.reset();
  EXPECT_THAT(node_.sent, ::testing::ElementsAre(9, 9, 12, 12));
  EXPECT_THAT(node_.kinds, ::testing::ElementsAre(MessageKind::failure, MessageKind::left,
                                                  MessageKind::failure, MessageKind::left));
}

class Starved : public ::testing::Test {
 protected:
  Starved() : node_({sizeof(fsccl_transport_job_t), 0, 3, key_, 0, nullptr}) {
    Channel::Setup setup;
    setup.node = &node_;
    setup.meeting = setup.tag = 7;
    setup.members = {0, 1, 2};
    setup.board = std::make_shared<Board>();
    channel_ = Channel::open(std::move(setup)).take();
  }
  const unsigned char key_[32] = {};
  StarvedNode node_;
  std::unique_ptr<Channel> channel_;
};

TEST_F(Starved, WhatCannotBeReceivedEndsAllConnectionsAndIsTold) {
  EXPECT_EQ(channel_->poll(1, 1), nullptr);
  EXPECT_THAT(node_.dropped, ::testing::ElementsAre(1, 2));
  const fsccl_transport_failure_t* const failure = channel_->failure();
  ASSERT_NE(failure, nullptr);  // at once, because no rank has died that the job could report
  EXPECT_EQ(failure->code, FSCCL_ERR_OUT_OF_MEMORY);
  EXPECT_THAT(failure->text, ::testing::HasSubstr("rank 0 got no memory"));
}

TEST_F(Starved, WhatCannotBeSentEndsItsConnection) {
  {
    const std::lock_guard lock(node_.mutex());
    node_.send(2, {}, {});
    EXPECT_TRUE(node_.starved(2) && node_.broken(2));
    EXPECT_FALSE(node_.broken(1));
  }
  EXPECT_THAT(node_.dropped, ::testing::ElementsAre(2));
  fsccl_transport_failure_t failure{};
  failure.code = FSCCL_ERR_ABORTED;
  channel_->fail(failure);  // works, although no message can be sent
  EXPECT_EQ(channel_->failure()->code, FSCCL_ERR_ABORTED);
}

// The bytes of an offer stay with the sender, but the node must remember the offer.
TEST(EarlyMessages, OffersTakeOfTheLimitToo) {
  constexpr unsigned char key[32] = {};
  constexpr size_t kBytes = 255u << 20, kOffers = 20'000;
  EarlyNode node({sizeof(fsccl_transport_job_t), 0, 2, key, 0, nullptr});
  const std::unique_ptr<std::byte[]> data = std::make_unique_for_overwrite<std::byte[]>(kBytes);
  node.deliver_early(data.get(), kBytes, false);
  ASSERT_FALSE(node.gone());
  size_t kept = 0;
  while (kept < kOffers && node.deliver_early(data.get(), 1, true)) kept++;
  EXPECT_GT(kept, 0u);
  EXPECT_LT(kept, kOffers);
  EXPECT_TRUE(node.gone());
}

// When the service thread has woken another thread, it stops polling, because that thread polls the
// node itself, perhaps on the same core.
TEST(MirrorService, LeavesTheRestToWhomItWoke) {
  constexpr unsigned char key[32] = {};
  BusyNode node({sizeof(fsccl_transport_job_t), 0, 2, key, 0, nullptr});
  node.rest();
  while (node.turns <= 3) std::this_thread::yield();
  EXPECT_EQ(node.longest, 1);
}

}  // namespace
}  // namespace fsccl::mirror
