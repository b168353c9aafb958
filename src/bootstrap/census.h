// Who of a group is still there: the rules by which its survivors agree on the same answer. No
// input or output: TreeJob (tree.h) carries what ranks say, a test plays it with deaths at every
// moment.
//
// Each rank says which members it holds for dead or gone (its stand), and says it anew when it
// learns of more; everybody hears everything. A rank decides when all members that it does not hold
// for gone say the same as it does. Who is not there yet has said nothing, so the others wait.
//
// Invariant: no two ranks that live have decided differently. Stands of a rank only grow, and it is
// silent once it has decided. Had r decided S and z another set Z, both would have said both; but
// each said its own last, so one of the two sets held the other, and whoever decided the smaller
// number of failed had gone on to say the larger. A rank that sees another's decision takes it over
// if its own stands have never held that one for gone: so nobody waits for a rank that has decided
// and is silent, also when a member of what was decided dies just then. For that, a decision must
// be heard before the news that its maker has left. Who declines never decides, so what the others
// then hold of it is true.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "wire/messages.h"

namespace fsccl {

class Census {
 public:
  explicit Census(uint64_t meeting) { mine_.meeting = meeting; }

  // This rank takes part. `failed`: members that it knows to be gone; `code`: its own, see Stand.
  // Again: nothing.
  void begin(std::vector<int32_t> members, int32_t self, const std::vector<int32_t>& failed,
             int32_t code);
  // This rank will never take part, which it says to whoever asks: its stand holds itself for gone.
  void decline(int32_t self);
  // Another rank's stand; whether it is news, to be passed on.
  bool hear(const Stand& stand);
  // After each of the above, and whenever a rank was lost: what this rank says now, if that is new.
  // `lost`: ranks of the job.
  std::optional<Stand> advance(const std::map<int32_t, bool>& lost);

  bool begun() const { return !members_.empty(); }
  bool decided() const { return mine_.decided; }
  bool expelled() const { return expelled_; }  // others hold this rank for dead
  const Stand& stand() const { return mine_; }
  // Everything that was said, for a rank that has heard nothing yet.
  std::vector<Stand> all() const;
  // Members that are awaited.
  std::vector<int32_t> missing() const;

 private:
  bool gone(int32_t rank) const;
  bool grow(const std::map<int32_t, bool>& lost);
  bool take_over();
  bool unanimous() const;

  std::vector<int32_t> members_;  // ascending; empty: not begun
  Stand mine_, said_;             // said_: as the others know it
  bool expelled_ = false, declined_ = false;
  std::map<int32_t, Stand> others_;
};

}  // namespace fsccl
