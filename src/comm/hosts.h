// The parts of a communicator of several hosts: the ranks of each host, and the *lanes* between
// hosts. There are as many lanes as the smallest host has ranks. Each lane joins the ranks with the
// same place on their hosts, one of each host. The bytes of a rank without a lane are carried by a
// rank of its host that has one.
#pragma once
#include <memory>
#include <vector>

#include "base/status.h"

namespace fsccl {

class Communicator;

class Hosts {
 public:
  struct Position {
    size_t host = 0, place = 0;
  };

  // Collective over the ranks of `whole`, which lie on several hosts.
  static Result<std::unique_ptr<Hosts>> create(Communicator& whole);
  ~Hosts();

  size_t count() const { return hosts_; }  // in the order of their first ranks
  size_t lanes() const { return lanes_; }
  size_t host_size() const { return host_size_; }                // ranks of this host
  const std::vector<Position>& seats() const { return seats_; }  // by rank
  Position seat() const { return seat_; }                        // seat of this rank
  size_t lane_of(size_t rank) const { return seats_[rank].place % lanes_; }
  Communicator& host() const { return *host_; }  // communicator of the ranks of this host
  // The lane of this rank, or null; the whole communicator where every host has one rank. The ranks
  // of a lane are numbered by host.
  Communicator* lane() const { return lane_; }

 private:
  Hosts() = default;

  std::vector<Position> seats_;
  Position seat_;
  size_t hosts_ = 0, lanes_ = 0, host_size_ = 0;
  Communicator* lane_ = nullptr;
  std::unique_ptr<Communicator> host_, made_lane_;
};

}  // namespace fsccl
