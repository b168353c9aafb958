// The neighbourhood of the ranks of a job: which ranks share a host, which stand beside each other
// there, and which are neighbours in the tree.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bootstrap/job.h"

namespace fsccl {

bool same_process(const Member& a, const Member& b);

class Neighbourhood {
 public:
  // `members` by rank, which this keeps a reference to; `arrivals`: ranks in the order of arrival.
  Neighbourhood(const std::vector<Member>& members, const std::vector<int32_t>& arrivals);

  size_t hosts() const { return hosts_.size(); }
  size_t host_of(int32_t rank) const { return places_[static_cast<size_t>(rank)].host; }
  // with it, in order
  const std::vector<int32_t>& mates(int32_t rank) const { return hosts_[host_of(rank)]; }
  // its place among them
  size_t line_of(int32_t rank) const { return places_[static_cast<size_t>(rank)].line; }
  bool far(int32_t a, int32_t b) const { return host_of(a) != host_of(b); }

  // The ranks of a host stand in a ring. In either direction: all up to the first of another
  // process, with that.
  std::vector<int32_t> beside(int32_t rank) const;
  // Above and below it, as the tree was at first.
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
