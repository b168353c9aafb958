// The membership of a group after a loss: the rules by which its survivors agree on who is left.
// There is no input or output here: TreeJob (tree.h) carries the votes, and a test plays the rules
// with deaths at every moment.
//
// Each rank votes on which members are lost, and votes anew when it learns of more. Every
// vote reaches every rank. A rank decides when all members that it does not hold for lost have cast
// the same vote. A member that has not come yet has cast no vote, so the others wait for it.
//
// Invariant: no two living ranks, neither of which holds the other for lost, decide differently.
// The votes that a rank casts by itself only grow, and it casts no vote after its decision. (A rank
// that takes over another's decision may go back to a smaller set. It only repeats that decision,
// so it suffices to look at ranks that decided by their own votes.) Suppose that r decided S and z
// decided another set Z. Then both have cast both votes, each its own set last. So r voted Z before
// S, and S contains Z; z voted S before Z, and Z contains S. So the sets are equal.
//
// A vote may carry a refusal: the error of a rank that could not carry out the previous decision.
// The worst refusal of the ranks that are left is part of the decision.
//
// A rank that sees another rank's decision takes it over, if its own votes have never held that
// rank for lost: so no rank waits for one that has decided and is silent, even if a member of the
// decision dies just then. For this, a decision must arrive before the news that its maker has
// left. A rank that declines never decides, so the others are right to hold it for lost.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "wire/messages.h"

namespace fsccl {

class Membership {
 public:
  explicit Membership(uint64_t meeting) { mine_.meeting = meeting; }

  // Begins this rank's part. `failed` are the members that it knows to be lost, and `refusal` is
  // part of its vote. Further calls do nothing.
  void begin(std::vector<int32_t> members, int32_t self, const std::vector<int32_t>& failed,
             const Vote::Refusal& refusal);
  // Declares that this rank will never take part: its vote holds this rank itself for lost.
  void decline(int32_t self);
  // Takes another rank's vote. Returns true if it is news that must be passed on.
  bool hear(const Vote& vote);
  // Must be called after each of the functions above, and whenever a rank was lost. Returns this
  // rank's vote if it is new, so that all others must hear it. `lost` has the lost ranks of the
  // job, each with whether it has left.
  std::optional<Vote> advance(const std::map<int32_t, bool>& lost);

  // Says that the vote which advance() returned was not sent, so that it returns it again.
  void unsaid() noexcept { said_.rank = -1; }

  bool begun() const { return !members_.empty(); }
  bool decided() const { return mine_.decided; }
  // True if others hold this rank for dead, or if it has declined.
  bool expelled() const { return expelled_; }
  const Vote& vote() const { return mine_; }
  // Returns all votes that this rank knows, for a rank that has heard none yet.
  std::vector<Vote> all() const;
  // Returns the refusal of another rank, if one has voted with a refusal or has declined.
  Vote::Refusal refusal() const;
  // Returns the members for whose votes this rank waits.
  std::vector<int32_t> missing() const;

 private:
  bool holds_lost(int32_t rank) const;
  bool grow(const std::map<int32_t, bool>& lost);
  bool take_over();
  void decide(const std::map<int32_t, bool>& lost);
  bool unanimous() const;

  std::vector<int32_t> members_;  // ascending; empty: not begun
  Vote mine_, said_;              // said_: this rank's vote as the others know it
  bool expelled_ = false, declined_ = false;
  std::map<int32_t, Vote> others_;
};

}  // namespace fsccl
