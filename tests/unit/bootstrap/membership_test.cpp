// Plays the rules of the membership and of a mended tree without sockets. Ranks die at any moment,
// and news arrive in any order that links allow, but living ranks never have two answers.
#include "bootstrap/membership.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <set>
#include <tuple>

#include "bootstrap/tree_steps.h"

namespace fsccl {
namespace {

using Answer = std::tuple<std::vector<int32_t>, int32_t, int32_t>;

// A group of ranks and the messages between them. Messages from one rank to another arrive in the
// order in which they were sent. Like TreeJob, each rank passes on what is news to it. Messages
// that a dead rank sent before its end may or may not arrive.
class Play {
 public:
  Play(int ranks, unsigned seed)
      : random_(seed), ranks_(ranks), nodes_(static_cast<size_t>(ranks)) {
    for (int rank = 0; rank < ranks; rank++) members_.push_back(rank);
    links_.resize(nodes_.size(), std::vector<std::deque<Message>>(nodes_.size()));
  }

  // Every rank comes at some time, except ranks that decline before. `deaths` ranks die at some
  // time, or leave if they have decided. Returns true when all living ranks that have not declined
  // have decided.
  bool run(int deaths, int declines) {
    for (int steps = 0; steps < 200'000; steps++) {
      const int rank = below(ranks_);
      Node& node = nodes_[static_cast<size_t>(rank)];
      if (!node.alive) continue;
      const int what = below(40);
      if (what == 0 && deaths > 0 && living() > 1) {
        deaths--;
        die(rank);
      } else if (what == 1 && declines > 0 && living() > 1 && !node.declined &&
                 !node.membership.decided()) {
        declines--;
        node.declined = true;
        node.membership.decline(rank);
        advance(rank);
      } else if (what < 4 && !node.membership.begun() && !node.declined) {
        Vote::Refusal refusal;
        if (rank % 3) refusal = {-(rank % 3), rank, "its text"};
        node.membership.begin(members_, rank, {}, refusal);
        advance(rank);
      } else {
        receive(rank);
      }
      if ((deaths == 0 || living() == 1) && over()) return true;
    }
    return false;
  }

  std::set<Answer> answers() const {
    std::set<Answer> answers;
    for (const Node& node : nodes_)
      if (node.alive && !node.declined && node.membership.decided())
        answers.insert({node.membership.vote().failed, node.membership.vote().refusal.code,
                        node.membership.vote().refusal.rank});
    return answers;
  }
  bool alive(int32_t rank) const { return nodes_[static_cast<size_t>(rank)].alive; }
  bool declined(int32_t rank) const { return nodes_[static_cast<size_t>(rank)].declined; }

 private:
  struct Message {
    std::optional<Vote> vote;
    int lost = -1;
    bool left = false;
  };
  struct Node {
    Membership membership{7};
    std::map<int32_t, bool> lost;
    bool alive = true, declined = false;
  };
  int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }
  int living() const {
    return static_cast<int>(std::count_if(nodes_.begin(), nodes_.end(), [](const Node& node) {
      return node.alive && !node.declined;
    }));
  }
  bool over() const {
    return std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
      return !node.alive || node.declined || node.membership.decided();
    });
  }
  std::deque<Message>& link(int from, int to) {
    return links_[static_cast<size_t>(from)][static_cast<size_t>(to)];
  }
  void send_all(int from, const Message& message) {
    for (int to = 0; to < ranks_; to++)
      if (to != from && alive(to)) link(from, to).push_back(message);
  }
  void advance(int rank) {
    Node& node = nodes_[static_cast<size_t>(rank)];
    if (const auto vote = node.membership.advance(node.lost)) send_all(rank, {vote, -1, false});
    EXPECT_EQ(node.membership.expelled(), node.declined);
  }
  // A killed rank dies, and some of what it sent last does not arrive. A rank that leaves has an
  // answer, and everything that it sent arrives before the news of its end.
  void die(int rank) {
    Node& node = nodes_[static_cast<size_t>(rank)];
    node.alive = false;
    const bool left = node.membership.decided() && below(2);
    for (int to = 0; to < ranks_; to++) {
      std::deque<Message>& out = link(rank, to);
      if (!left)
        for (int drop = below(static_cast<int>(out.size()) + 1); drop > 0; drop--) out.pop_back();
      out.push_back({std::nullopt, rank, left});
    }
  }
  void lose(int rank, int lost, bool left) {
    Node& node = nodes_[static_cast<size_t>(rank)];
    if (!node.lost.emplace(lost, left).second) return;
    send_all(rank, {std::nullopt, lost, left});
    advance(rank);
  }
  void receive(int rank) {
    std::deque<Message>& in = link(below(ranks_), rank);
    if (in.empty()) return;
    const Message message = in.front();
    in.pop_front();
    if (message.lost >= 0) return lose(rank, message.lost, message.left);
    if (!nodes_[static_cast<size_t>(rank)].membership.hear(*message.vote)) return;
    send_all(rank, message);
    advance(rank);
  }

  std::mt19937 random_;
  const int ranks_;
  std::vector<int32_t> members_;
  std::vector<Node> nodes_;
  std::vector<std::vector<std::deque<Message>>> links_;
};

TEST(MembershipRules, OneAnswerWhateverDiesWhen) {
  size_t with_deaths = 0, with_declines = 0;
  for (unsigned seed = 0; seed < 6000; seed++) {
    const int ranks = 2 + static_cast<int>(seed % 6),
              deaths = static_cast<int>(seed / 7 % static_cast<unsigned>(ranks));
    Play play(ranks, seed);
    ASSERT_TRUE(play.run(deaths, seed < 3000 ? 0 : 2))
        << "seed " << seed << ": somebody waits for ever";
    const std::set<Answer> answers = play.answers();
    ASSERT_EQ(answers.size(), 1u) << "seed " << seed;
    for (const int32_t failed : std::get<0>(*answers.begin())) {
      ASSERT_TRUE(!play.alive(failed) || play.declined(failed)) << "seed " << seed;
      with_declines += play.declined(failed);
    }
    with_deaths += !std::get<0>(*answers.begin()).empty();
  }
  EXPECT_GT(with_deaths, 500u);
  EXPECT_GT(with_declines, 500u);
}

// A rank that declines says so once it is asked; one that has not been asked says nothing.
TEST(MembershipRules, WhoDeclinesSaysSoWhenAsked) {
  Membership membership(1);
  membership.decline(2);
  EXPECT_FALSE(membership.advance({}));
  EXPECT_TRUE(membership.hear({1, 0, {}, false, {}}));
  const std::optional<Vote> vote = membership.advance({});
  ASSERT_TRUE(vote);
  EXPECT_EQ(*vote, (Vote{1, 2, {}, false, {2}}));
  EXPECT_FALSE(membership.advance({}));
  Membership other(1);
  other.begin({0, 1, 2}, 0, {1}, {});
  EXPECT_TRUE(other.hear(*vote));
  EXPECT_EQ(other.advance({}), (Vote{1, 0, {}, true, {1, 2}}));
}

TEST(MembershipRules, TheWorstCodeHoldsWithItsText) {
  Membership membership(1);
  membership.begin({4, 2, 9}, 2, {}, {-3, 2, "no room\nhere"});
  EXPECT_TRUE(membership.advance({}));
  EXPECT_EQ(membership.missing(), (std::vector<int32_t>{4, 9}));
  // Rank 9 holds rank 4 for gone, so rank 2 does, too.
  EXPECT_TRUE(membership.hear({1, 9, {}, false, {4}}));
  const std::optional<Vote> vote = membership.advance({});
  ASSERT_TRUE(vote);
  EXPECT_EQ(*vote, (Vote{1, 2, {-3, 2, "no room?here"}, true, {4}}));
  EXPECT_FALSE(membership.hear({1, 9, {}, false, {4}}));
  Membership other(1);  // takes the worse error of another rank, and then tells it
  other.begin({4, 2, 9}, 9, {4}, {-1, 9, "mine"});
  EXPECT_TRUE(other.hear({1, 2, {-3, 2, "no room?here"}, false, {4}}));
  EXPECT_EQ(other.refusal(), (Vote::Refusal{-3, 2, "no room?here"}));
  EXPECT_EQ(other.advance({}), (Vote{1, 9, {-3, 2, "no room?here"}, true, {4}}));
}

TEST(MembershipRules, WhoIsHeldForDeadLearnsIt) {
  Membership membership(1);
  membership.begin({0, 1, 2}, 1, {}, {});
  membership.hear({1, 0, {}, false, {1}});
  EXPECT_FALSE(membership.advance({}));
  EXPECT_TRUE(membership.expelled());
}

TEST(MendedTree, IsOneTreeOfAllThatLive) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; round++) {
    std::vector<bool> lost(1 + random() % 200);
    for (size_t order = 0; order < lost.size(); order++) lost[order] = random() % 3 == 0;
    int roots = 0;
    for (size_t order = 0; order < lost.size(); order++) {
      if (lost[order]) continue;
      const int32_t parent = mended_parent(static_cast<int32_t>(order), lost);
      roots += parent < 0;
      if (parent < 0) continue;
      ASSERT_LT(parent, static_cast<int32_t>(order));
      ASSERT_FALSE(lost[static_cast<size_t>(parent)]);
    }
    EXPECT_EQ(roots, std::count(lost.begin(), lost.end(), false) > 0);
  }
  const std::vector<bool> whole(20);
  for (int32_t order = 1; order < 20; order++)
    EXPECT_EQ(mended_parent(order, whole), parent_order(order));
}

}  // namespace
}  // namespace fsccl
