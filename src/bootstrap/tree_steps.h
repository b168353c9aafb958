// The rules of a job's tree: which rank belongs below which, and what a rank sends when a message
// arrives. There is no input or output here: TreeJob (tree.h) follows the rules over sockets, and a
// test follows them for more ranks than a host has. A rank is entered at the rendezvous (Roll), has
// links to its parent and its children alone until a loss, and sends each message of joining once
// over each. An exchange goes up the tree and down again.
#pragma once
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "wire/frame.h"
#include "wire/messages.h"

namespace fsccl {

inline constexpr int32_t kFanOut = 8;
constexpr int32_t parent_order(int32_t order) { return (order - 1) / kFanOut; }

// Returns the parent of a rank in a tree that has lost some ranks, all by order of arrival: its
// nearest ancestor that is there, or else the first rank that is there. Returns -1 if that is the
// rank itself. The parent is always less than `order`, so the links that ranks make by this
// function form a tree.
int32_t mended_parent(int32_t order, const std::vector<bool>& lost);

// The ranks that have come to a job, in the order of arrival, which is that of the tree.
class Roll {
 public:
  // Checks a new member against the members that have come, and returns its place in the order. A
  // rank that asks again gets its place again.
  Result<int32_t> enter(const MemberRecord& member, int32_t ranks);
  const MemberRecord& parent_of(int32_t order) const {
    return members_[static_cast<size_t>(parent_order(order))];
  }
  bool complete() const {
    return !members_.empty() && static_cast<int32_t>(members_.size()) == ranks_;
  }
  int32_t ranks() const { return ranks_; }  // the number of ranks, as the first rank said
  const std::vector<MemberRecord>& members() const { return members_; }
  std::vector<int32_t> missing() const;

 private:
  int32_t ranks_ = 0;
  std::vector<MemberRecord> members_;
  std::vector<int32_t> order_of_rank_;  // -1: not here yet
};

// The steps of one rank. Children are known by their ranks.
class TreeSteps {
 public:
  enum class To : uint8_t { kRendezvous, kParent, kChild };
  struct Send {
    FrameType type{};
    To to{};
    int32_t child = -1;
    bool carries = false;  // true: with the list of members, or with what was gathered
  };
  using Sends = std::vector<Send>;

  TreeSteps(int32_t order, int32_t ranks) : order_(order), ranks_(ranks) {}

  // Joining: the list of members comes down the tree, the news that a subtree is whole goes up, and
  // the permission to begin comes down. Each function takes an event and returns what to send then.
  Sends child_linked(int32_t rank);
  void child_dropped(int32_t rank);
  Sends members_came(const std::vector<int32_t>& ranks_by_order);
  Sends child_ready(int32_t rank);
  Sends may_go();
  bool has_members() const { return has_members_; }
  bool subtree_joined() const { return subtree_joined_; }
  bool joined() const { return joined_; }
  std::vector<int32_t> missing() const;  // children that have not said that their subtree is whole

  // An exchange. gave() says what to send when this rank's own part and those of so many children
  // are there: nothing while the part of a child is missing.
  Sends gave(size_t children) const;
  Sends gathered() const { return to_children(FrameType::kGathered, true); }

 private:
  struct Child {
    int32_t rank = -1;
    bool ready = false;
  };
  Sends advance();
  Sends to_children(FrameType type, bool carries) const;

  const int32_t order_, ranks_;
  bool has_members_ = false, subtree_joined_ = false, joined_ = false;
  std::vector<int32_t> expected_;  // children, once the members are known
  std::vector<Child> linked_;
};

}  // namespace fsccl
