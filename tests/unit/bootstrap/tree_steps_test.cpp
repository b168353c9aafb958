// Tests the rules of the tree with simulated ranks, and counts what a large job costs each rank and
// all ranks together.
#include "bootstrap/tree_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include "bootstrap/job.h"

namespace fsccl {
namespace {

// Every connection begins with Hello, Challenge and Proof.
constexpr uint64_t kHandshake = 3;

// Simulates a job whose messages arrive in any order, except that those of one link stay in order.
class Simulation {
 public:
  struct Rank {
    explicit Rank(int32_t order, int32_t ranks) : steps(order, ranks) {}
    TreeSteps steps;
    int32_t parent = -1;
    int32_t links = 0;
    size_t parts = 0;                            // how many children have given their parts
    uint64_t subtree = 1;                        // ranks of its subtree whose parts it has
    uint64_t sent = 0, received = 0, bytes = 0;  // numbers of messages; bytes received
    bool gathered = false;
  };

  Simulation(int32_t count, uint64_t seed) : random_(seed), ranks_count_(count) {}

  void join() {
    std::vector<int32_t> arrivals(static_cast<size_t>(ranks_count_));
    std::iota(arrivals.begin(), arrivals.end(), 0);
    std::shuffle(arrivals.begin(), arrivals.end(), random_);
    for (const int32_t rank : arrivals) {
      MemberRecord member;
      member.rank = rank;
      const Result<int32_t> order = roll.enter(member, ranks_count_);
      ASSERT_TRUE(order.ok()) << order.status().text();
      count(FrameType::kRegister, kHandshake + 2);  // handshake, Register and Assign
      by_rank_[rank] = order.value();
      ranks.push_back(std::make_unique<Rank>(order.value(), ranks_count_));
      if (order.value() > 0) link(order.value(), by_rank_.at(roll.parent_of(order.value()).rank));
      deliver_some();
    }
    ASSERT_TRUE(roll.complete());
    for (const MemberRecord& member : roll.members()) by_order_.push_back(member.rank);
    count(FrameType::kMembers, 1);
    perform(0, ranks[0]->steps.members_came(by_order_));
    deliver_all();
  }

  // Gathers `bytes` of each rank.
  void all_gather(uint64_t bytes) {
    bytes_ = bytes;
    std::vector<int32_t> callers(ranks.size());
    std::iota(callers.begin(), callers.end(), 0);
    std::shuffle(callers.begin(), callers.end(), random_);
    for (const int32_t order : callers) {
      called_.insert(order);
      give(order);
      deliver_some();
    }
    deliver_all();
  }

  std::map<FrameType, uint64_t> messages;
  uint64_t all_messages() const {
    uint64_t all = 0;
    for (const auto& [type, count] : messages) all += count;
    return all;
  }
  Roll roll;
  std::vector<std::unique_ptr<Rank>> ranks;  // by order

 private:
  struct Message {
    int32_t from, to;
    FrameType type;
  };

  void count(FrameType type, uint64_t number) { messages[type] += number; }
  void link(int32_t child, int32_t parent) {
    ranks[static_cast<size_t>(child)]->parent = parent;
    ranks[static_cast<size_t>(child)]->links++;
    ranks[static_cast<size_t>(parent)]->links++;
    count(FrameType::kLinked, kHandshake);
    perform(parent, ranks[static_cast<size_t>(parent)]->steps.child_linked(
                        roll.members()[static_cast<size_t>(child)].rank));
  }
  void perform(int32_t from, const TreeSteps::Sends& sends) {
    for (const TreeSteps::Send& send : sends) {
      count(send.type, 1);
      Rank& sender = *ranks[static_cast<size_t>(from)];
      sender.sent++;
      if (send.to == TreeSteps::To::kRendezvous) continue;
      const int32_t to =
          send.to == TreeSteps::To::kParent ? sender.parent : by_rank_.at(send.child);
      links_[{from, to}].push_back(send.type);
      waiting_.push_back({from, to});
    }
  }
  void deliver_some() {
    for (int i = 0; i < 2 && !waiting_.empty(); ++i) deliver();
  }
  void deliver_all() {
    while (!waiting_.empty()) deliver();
  }
  void deliver() {
    std::swap(waiting_[random_() % waiting_.size()], waiting_.back());
    const auto [from, to] = waiting_.back();
    waiting_.pop_back();
    const auto queue = links_.find({from, to});
    const FrameType type = queue->second.front();
    queue->second.pop_front();
    if (queue->second.empty()) links_.erase(queue);
    receive(from, to, type);
  }
  void receive(int32_t from, int32_t to, FrameType type) {
    Rank& rank = *ranks[static_cast<size_t>(to)];
    const int32_t sender = roll.members()[static_cast<size_t>(from)].rank;
    const auto all = static_cast<uint64_t>(ranks_count_);
    rank.received++;
    switch (type) {
      case FrameType::kLinked:
        return;
      case FrameType::kMembers:
        rank.bytes += all * kMemberRecordBytes;
        return perform(to, rank.steps.members_came(by_order_));
      case FrameType::kReady:
        return perform(to, rank.steps.child_ready(sender));
      case FrameType::kGo:
        return perform(to, rank.steps.may_go());
      case FrameType::kGather:
        rank.parts++;
        rank.subtree += ranks[static_cast<size_t>(from)]->subtree;
        rank.bytes += ranks[static_cast<size_t>(from)]->subtree * (bytes_ + 4);
        return give(to);
      case FrameType::kGathered:
        rank.bytes += all * bytes_;
        rank.gathered = true;
        return perform(to, rank.steps.gathered());
      default:
        FAIL() << "message of type " << static_cast<int>(type);
    }
  }
  void give(int32_t order) {
    Rank& rank = *ranks[static_cast<size_t>(order)];
    if (!called_.contains(order)) return;
    const TreeSteps::Sends sends = rank.steps.gave(rank.parts);
    if (order == 0 && !sends.empty()) rank.gathered = true;
    perform(order, sends);
  }

  std::mt19937_64 random_;
  const int32_t ranks_count_;
  uint64_t bytes_ = 0;
  std::map<int32_t, int32_t> by_rank_;  // the order of each rank
  std::vector<int32_t> by_order_;       // the rank of each order
  std::map<std::pair<int32_t, int32_t>, std::deque<FrameType>> links_;
  std::vector<std::pair<int32_t, int32_t>> waiting_;  // a link for each message on its way
  std::set<int32_t> called_;
};

TEST(TreeSteps, EveryOrderOfMessagesJoinsAndGathers) {
  for (int32_t ranks = 2; ranks < 100; ++ranks)
    for (uint64_t seed = 0; seed < 10; ++seed) {
      Simulation job(ranks, seed);
      ASSERT_NO_FATAL_FAILURE(job.join());
      for (const auto& rank : job.ranks)
        ASSERT_TRUE(rank->steps.joined()) << ranks << " ranks, seed " << seed;
      job.all_gather(8);
      for (const auto& rank : job.ranks)
        ASSERT_TRUE(rank->gathered) << ranks << " ranks, seed " << seed;
    }
}

// Counts the messages of a start: those of joining, and those of the exchange in which each rank
// tells its cores (136 bytes).
TEST(TreeSteps, AHundredThousandRanks) {
  constexpr int32_t kRanks = 100'000;
  constexpr auto kCount = static_cast<uint64_t>(kRanks);
  Simulation job(kRanks, 1);
  job.join();
  const uint64_t joining = job.all_messages();
  job.all_gather(136);
  const uint64_t links = kCount - 1;
  // Each rank has a handshake, Register and Assign; each link has a handshake, Linked, Members,
  // Ready and Go; the root gets Members and sends Done.
  EXPECT_EQ(joining, (kHandshake + 2) * kCount + (kHandshake + 4) * links + 2);
  EXPECT_EQ(job.all_messages() - joining, 2 * links);
  int32_t most_links = 0;
  uint64_t most_messages = 0, most_bytes = 0;
  for (const auto& rank : job.ranks) {
    ASSERT_TRUE(rank->steps.joined() && rank->gathered);
    most_links = std::max(most_links, rank->links);
    most_messages = std::max(most_messages, rank->sent + rank->received);
    most_bytes = std::max(most_bytes, rank->bytes);
  }
  // Besides its links a rank has one or two listeners, and one more connection while it registers
  // or fetches a descriptor.
  EXPECT_EQ(most_links, kFanOut + 1);
  EXPECT_LE(most_messages, 6u * (kFanOut + 1));
  // A rank gets the list of members and the gathered bytes once each, and at most all gathered
  // bytes once more on their way up.
  EXPECT_LE(most_bytes, kCount * (kMemberRecordBytes + 2 * 136 + 4));
  // The expression is the memory that a rank keeps for each other rank.
  EXPECT_LE(sizeof(Member) + sizeof(MemberRecord) + sizeof(int32_t), 160u);
}

TEST(Roll, APlaceIsBelowSomebodyWhoCameBefore) {
  for (int32_t order = 1; order < 10'000; ++order) {
    ASSERT_LT(parent_order(order), order);
    ASSERT_GE(parent_order(order), 0);
  }
}

}  // namespace
}  // namespace fsccl
