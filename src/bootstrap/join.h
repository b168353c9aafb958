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
  uint64_t meeting = 0;                  // the number under which to ask for it
  std::vector<SocketAddress> addresses;  // addresses of the rendezvous, tried in turn
  bool tcp = false;                      // true if this rank can be reached over TCP, too
  // the interface by which link-local addresses of others are reached
  uint32_t link = 0;
  std::string host_id;           // FSCCL_HOST_ID
  std::string who_listens;       // for messages
  int32_t rendezvous_rank = -1;  // the rank whose process listens there, if that is known
};

// Returns how many descriptors a rank of a job takes until it has its first communicators.
// `meets_here`: the ranks meet in its process.
int descriptors_to_join(int ranks, bool meets_here);

Result<std::shared_ptr<Job>> join_at(const RendezvousPoint& place, int32_t rank, int32_t ranks,
                                     Deadline deadline);

// The only rank of a job.
Result<std::shared_ptr<Job>> join_alone(const std::string& host_id);

// Lets the others know that this rank will not come, if they can be reached soon. Returns why the
// job fails, `why` or what came before it.
Status report_failure(const RendezvousPoint& place, int32_t rank, int32_t ranks, Status why,
                      Deadline deadline);

}  // namespace fsccl
