// A rank's way into a job: from the place where the ranks meet to its links in the tree.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/socket.h"
#include "base/status.h"
#include "bootstrap/job.h"
#include "wire/handshake.h"

namespace fsccl {

struct RendezvousPoint {
  Credentials credentials;
  uint64_t meeting = 0;                  // the rendezvous's number, for Hello::job
  std::vector<SocketAddress> addresses;  // addresses of the rendezvous, tried in turn
  bool tcp = false;                      // true if this rank can be reached over TCP, too
  // the interface by which link-local addresses of others are reached
  uint32_t link = 0;
  std::string host_id;           // FSCCL_HOST_ID
  std::string who_listens;       // for messages
  int32_t rendezvous_rank = -1;  // the rank whose process listens there, if that is known
};

// Returns how many descriptors a rank of a job takes until it has its first communicators.
// `meets_here` says whether the ranks meet in its process.
int descriptors_to_join(int ranks, bool meets_here);

// Registers this rank at `place` and links it to its parent. Returns when all ranks have joined.
Result<std::shared_ptr<Job>> join_at(const RendezvousPoint& place, int32_t rank, int32_t ranks,
                                     Deadline deadline);

// Makes a job of one rank, which needs no rendezvous.
Result<std::shared_ptr<Job>> join_alone(const std::string& host_id);

// Tells the rendezvous that this rank will not join, if it can be reached within a second; the
// other ranks learn it from there. Returns why the job fails: `why`, or the failure that caused it
// as far as that is known.
Status report_failure(const RendezvousPoint& place, int32_t rank, int32_t ranks, Status why,
                      Deadline deadline);

}  // namespace fsccl
