// The communicators inside a communicator of several hosts: one of the ranks of this host, and the
// *lanes* between hosts. There are as many lanes as the smallest host has ranks. A lane has one
// rank of each host, the rank with the same index on its host. A rank without a lane exchanges its
// bytes with other hosts through a rank of its host that has one.
#pragma once
#include <memory>
#include <vector>

#include "base/status.h"

namespace fsccl {

class Communicator;

class Hosts {
 public:
  // A rank's place: its host, and its index among the ranks of that host.
  struct Place {
    size_t host = 0, index = 0;
  };

  // Collective over the ranks of `whole`. If all are on one host, each rank is a lane of its own.
  static Result<std::unique_ptr<Hosts>> create(Communicator& whole);
  ~Hosts();

  size_t count() const { return hosts_; }  // hosts are numbered in the order of their first ranks
  size_t lanes() const { return lanes_; }
  size_t host_size() const { return host_size_; }               // ranks of this host
  const std::vector<Place>& places() const { return places_; }  // by rank
  Place own_place() const { return own_place_; }
  size_t lane_of(size_t rank) const { return places_[rank].index % lanes_; }
  Communicator& host() const { return *host_; }  // communicator of the ranks of this host
  // Returns the lane of this rank, or null if it has none. If every host has one rank, the lane is
  // the whole communicator. The ranks of a lane are numbered by host.
  Communicator* lane() const { return lane_; }

 private:
  Hosts() = default;

  std::vector<Place> places_;
  Place own_place_;
  size_t hosts_ = 0, lanes_ = 0, host_size_ = 0;
  Communicator* lane_ = nullptr;
  std::unique_ptr<Communicator> host_, made_lane_;
};

}  // namespace fsccl
