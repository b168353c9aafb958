// The neighbourhood of the ranks of a job: which ranks share a host, which stand beside each other
// there, and which are neighbours in the tree.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bootstrap/job.h"

namespace fsccl {

bool same_process(const Member& a, const Member& b);

// Returns the places in a ring of `ranks` at which the rank at `place` looks when any rank may have
// ended: those 1, 2, 4, .. behind it. All ranks together then look n log n times, not n^2 times. A
// rank's end is missed only while all log n ranks that look at it have ended or stand still.
std::vector<size_t> share_of_looks(size_t place, size_t ranks);

class Neighbourhood {
 public:
  // `members` is indexed by rank and must outlive this object, which refers to it. `arrivals` has
  // the ranks in the order of arrival.
  Neighbourhood(const std::vector<Member>& members, const std::vector<int32_t>& arrivals);

  size_t hosts() const { return hosts_.size(); }
  size_t host_of(int32_t rank) const { return places_[static_cast<size_t>(rank)].host; }
  // Returns the ranks of the host of `rank`, itself included, in ascending order.
  const std::vector<int32_t>& mates(int32_t rank) const { return hosts_[host_of(rank)]; }
  // Returns the place of `rank` in mates(rank).
  size_t line_of(int32_t rank) const { return places_[static_cast<size_t>(rank)].line; }
  bool far(int32_t a, int32_t b) const { return host_of(a) != host_of(b); }

  // The ranks of a host form a ring. Returns the next ranks in either direction, up to and
  // including the first rank of another process.
  std::vector<int32_t> beside(int32_t rank) const;
  // Returns the parent and the children of `rank` in the tree as it was before any loss.
  std::vector<int32_t> in_tree(int32_t rank) const;

 private:
  struct Position {
    size_t host = 0, line = 0;
    int32_t order = 0;
  };
  const std::vector<Member>& members_;
  std::vector<int32_t> arrivals_;
  std::vector<Position> places_;  // by rank
  std::vector<std::vector<int32_t>> hosts_;
};

}  // namespace fsccl
