// A job is the control side of a communicator: who its members are, an authenticated tree of links
// between them, and the watch on their lives. It moves small things rarely (addresses, descriptors,
// failures); no payload ever passes here.
//
// Joining. Every rank proves the job's secret (or, on one host without a secret, its user) to the
// rendezvous, which listens at the id's address and answers with a parent: the k-th to arrive hangs
// below an earlier one, so no rank waits for another to come up, and no socket of the rendezvous
// outlives its answer but the first one's, the tree's root, through which a failure reaches all
// until the tree is whole. Links on one host are Unix sockets, between hosts TCP. The tree has a
// fixed fan-out; nobody holds more than O(fan-out) links.
//
// Service. The process's service thread (base/reactor.h) answers requests of peers: descriptors
// that this rank has published, and the loss of a link.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "base/wait.h"
#include "fsccl/insight.h"
#include "wire/authentication.h"

namespace fsccl {

struct Member {
  uint64_t host = 0;  // equal for ranks that share a host (boot id, or FSCCL_HOST_ID)
  int32_t pid = 0;
  uint32_t uid = 0;
  uint64_t start_time = 0;  // start time of the process: with the pid, its identity
};

// This rank's knowledge of another rank's life.
struct PeerLife {
  fsccl_peer_state_t state = FSCCL_PEER_ALIVE;
  // a suspect: until now; a dead rank: before it counted as dead, 0: it ended without that
  int64_t silent_ms = 0;
  bool stopped = false;    // its host says that its process is stopped
  bool host_lost = false;  // dead with its host
};
// Describes its silence: "silent for 520 ms, its process is stopped".
std::string describe(const PeerLife& life);

struct HeartbeatTimes;

struct JoinRequest {
  const fsccl_unique_id_t* unique_id = nullptr;  // else
  fsccl_all_gather_fn all_gather = nullptr;      // else the environment
  void* all_gather_context = nullptr;
  int rank = -1;  // from the environment: -1
  int ranks = 0;
  Deadline deadline = Deadline::never();
};

class Job {
 public:
  // Blocks until all ranks have joined and know each other. Collective.
  static Result<std::shared_ptr<Job>> join(const JoinRequest& request);
  virtual ~Job() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual uint64_t id() const = 0;  // random, the same on all ranks, not secret
  virtual const Member& member(int rank) const = 0;
  // A key that follows from the job's secret, if it has one, and from `with`, which all ranks give
  // alike.
  virtual SecretKey derive_key(std::string_view label, ByteView with) const = 0;

  // Over the tree. Collective: all members, same order, same size. Blocking; not thread safe
  // against itself.
  virtual Status all_gather(const void* mine, void* all, size_t bytes, Deadline deadline) = 0;
  virtual Status barrier(Deadline deadline) = 0;

  // Publishes a descriptor to the other ranks of this host under a name; the job keeps a duplicate
  // until withdrawn or the job ends.
  virtual Status publish_fd(uint64_t tag, int fd) = 0;
  virtual void withdraw_fd(uint64_t tag) = 0;
  // Fetches what `rank` (of this host) has published; waits until it is there, the deadline passes,
  // or `broken` gives an error, which is returned. A rank that lives may never publish it, because
  // its communicator has failed: `broken` asks for that.
  virtual Result<Fd> fetch_fd(int rank, uint64_t tag, Deadline deadline,
                              const BreakCheck& broken) = 0;

  // Called once for each rank that is lost, from the service thread: with `left` when it said
  // goodbye. A loss is learnt from the link itself when this rank is its neighbour in the tree,
  // else from those who are, forwarded along what remains of the tree.
  using LossHandler = std::function<void(int rank, bool left)>;
  virtual void on_loss(LossHandler handler) = 0;

  // The question which ranks of a group are left: all survivors get the same answer. The call is
  // collective over them. It blocks until all have asked the same question (by its number) or are
  // known to be lost, or until the deadline passes; then the question can be asked again. The
  // answer may contain a member that is lost after it was given.
  struct Question {
    uint64_t meeting = 0;
    std::vector<int> members;
    // members that have left the group for good before this rank asked for the first time
    std::vector<int32_t> lost;
    // status of each rank; the worst status of the ranks that are left is part of the answer
    fsccl_status_t code = FSCCL_OK;
  };
  struct Agreed {
    bool reached = false;          // else not all came in time
    std::vector<int32_t> failed;   // members that are lost
    std::vector<int32_t> missing;  // members that did not come, nor are lost
    fsccl_status_t code = FSCCL_OK;
  };
  // FSCCL_ERR_PEER_DEAD: others hold this rank for dead.
  virtual Result<Agreed> agree(const Question& question, Deadline deadline) = 0;
  // This rank will not come to that meeting: nobody waits for it there. Does not block.
  virtual void decline(uint64_t meeting) = 0;

  // From now on tells the others that this process runs, and watches those next to it
  // (heartbeat.h). Collective, with the same times; once. The handler is called from the service
  // thread for each rank that becomes a suspect, or is alive again after `silent_ms`. Where all
  // ranks are threads of one process nobody beats: that runs, or nobody is there to ask.
  using LifeHandler = std::function<void(int rank, const PeerLife& life)>;
  virtual Status begin_beats(const HeartbeatTimes& times, LifeHandler handler,
                             Deadline deadline) = 0;
  virtual PeerLife life(int rank) const = 0;
  // Asks the system of the rank's host: true if nobody listens at the rank's door any more, so that
  // its process has ended or has left. Blocks for 0.3 s at most. Any thread.
  virtual bool nobody_listens(int rank) const = 0;

  // Says goodbye to the neighbours and closes the links. Idempotent.
  virtual void leave() = 0;
};

// fsccl_unique_id_create: begins to listen in this process.
Status create_unique_id(fsccl_unique_id_t* id);

}  // namespace fsccl
