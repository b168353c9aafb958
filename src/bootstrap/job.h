// A job is the control side of a communicator. It knows the members, connects them by a tree of
// authenticated links, and watches whether they live. It transports small things that are rare
// (addresses, descriptors, failures), and never payload.
//
// Joining. Every rank connects to the rendezvous, which listens at the address in the id, and
// proves that it knows the job's secret (on one host without a secret, that it has the same user).
// The rendezvous answers with a parent in the tree. The parent is a rank that arrived earlier, so
// no rank waits for another to start. The rendezvous closes each connection after its answer,
// except that of the first rank, the root of the tree: until the tree is complete, a failure
// reaches all ranks through it. Links on one host are Unix sockets, and links between hosts are
// TCP. The tree has a fixed fan-out, so no rank has more than O(fan-out) links until ranks are
// lost; then a rank may also get the children of lost ones.
//
// Service. The process's service thread (base/reactor.h) answers peers that ask for descriptors
// which this rank has published, and handles the loss of a link.
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
  uint64_t host = 0;  // equal for ranks that share a host: host_number() (member_info.h)
  int32_t pid = 0;
  uint32_t uid = 0;
  uint64_t start_time = 0;  // start time of the process: with the pid, its identity
};

// This rank's knowledge of another rank's life.
struct PeerLife {
  fsccl_peer_state_t state = FSCCL_PEER_ALIVE;
  // For a suspect, the silence until now. For a dead rank, the silence before it counted as dead,
  // or 0 if it ended without a silence.
  int64_t silent_ms = 0;
  bool stopped = false;    // its host says that its process is stopped
  bool host_lost = false;  // the rank is dead because its host is lost
};
// Describes the silence of a rank: "silent for 520 ms, its process is stopped".
std::string describe(const PeerLife& life);

struct HeartbeatTimes;

struct JoinRequest {
  const fsccl_unique_id_t* unique_id = nullptr;  // null: use all_gather
  fsccl_all_gather_fn all_gather = nullptr;      // null, too: use the environment
  void* all_gather_context = nullptr;
  int rank = -1;  // -1: take it from the environment
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
  // Returns a key that is derived from the job's secret, if it has one, and from `with`, which must
  // be the same on all ranks.
  virtual SecretKey derive_key(std::string_view label, ByteView with) const = 0;

  // Gathers `bytes` of each rank over the tree. Collective: all members call it in the same order
  // with the same size. It blocks, and a rank must not call it on two threads at once.
  virtual Status all_gather(const void* mine, void* all, size_t bytes, Deadline deadline) = 0;
  virtual Status barrier(Deadline deadline) = 0;

  // Publishes a descriptor under a name to the other ranks of this host. The job keeps a duplicate
  // until the descriptor is withdrawn or the job ends.
  virtual Status publish_fd(uint64_t tag, int fd) = 0;
  virtual void withdraw_fd(uint64_t tag) = 0;
  // Fetches the descriptor that `rank`, a rank of this host, has published. It waits until the
  // descriptor is there, the deadline passes, or `broken` returns an error, which it then returns.
  // A rank that is alive may never publish it because its communicator has failed, so `broken` must
  // report that.
  virtual Result<Fd> fetch_fd(int rank, uint64_t tag, Deadline deadline,
                              const BreakCheck& broken) = 0;

  // The service thread calls the handler once for each rank that is lost, with `left` if that rank
  // said goodbye, or noted in the table of heartbeats that it leaves. If this rank is its neighbour
  // in the tree, the link itself shows the loss. Otherwise the neighbours report it along what
  // remains of the tree.
  using LossHandler = std::function<void(int rank, bool left)>;
  virtual void on_loss(LossHandler handler) = 0;

  // The question which ranks of a group are left. agree() asks it and gives all survivors the same
  // answer. It is collective over them: it blocks until each member has asked the question with the
  // same number (`meeting`) or is known to be lost, or until the deadline passes. After that, the
  // question can be asked again. A member that survives in the answer may be lost later.
  struct Refusal {  // the error of a rank that could not carry out the previous decision
    int rank = -1;
    fsccl_status_t code = FSCCL_OK;  // there is no refusal
    std::string text;
  };
  struct Question {
    uint64_t meeting = 0;
    std::vector<int> members;
    // members that have left the group for good before this rank asked for the first time
    std::vector<int32_t> lost;
    Refusal refusal;  // the worst refusal of the ranks that are left is part of the answer
  };
  struct Agreed {
    bool reached = false;          // false: not all members came in time
    std::vector<int32_t> failed;   // members that are lost
    std::vector<int32_t> missing;  // members that did not come and are not lost
    Refusal refusal;
  };
  // Returns FSCCL_ERR_PEER_DEAD if other ranks have declared this rank dead.
  virtual Result<Agreed> agree(const Question& question, Deadline deadline) = 0;
  // Returns the refusal of another rank that has come to that meeting already, or has declined it.
  // A rank that has not come yet need not wait for what that rank will not do. Any thread may call
  // it.
  virtual Refusal refusal(uint64_t meeting) const = 0;
  // Says that this rank will not come to that meeting, so that nobody waits for it there. It does
  // not block.
  virtual void decline(uint64_t meeting) = 0;

  // After this call the rank tells the others that its process runs, and watches the ranks next to
  // it (heartbeat.h). Collective, with the same times on all ranks, and called once. The service
  // thread calls the handler for each rank that becomes a suspect, or that is alive again after
  // `silent_ms`. If all ranks are threads of one process, there are no beats, because the ranks can
  // only end together.
  using LifeHandler = std::function<void(int rank, const PeerLife& life)>;
  virtual Status begin_beats(const HeartbeatTimes& times, LifeHandler handler,
                             Deadline deadline) = 0;
  virtual PeerLife life(int rank) const = 0;
  // Asks the system of the rank's host. Returns true if nobody listens at the rank's address any
  // more, which means that its process has ended or has left. Blocks for at most 0.3 s. Any thread
  // may call it.
  virtual bool nobody_listens(int rank) const = 0;

  // Tells the other ranks that this rank ends although they need it: they hold it for dead at once,
  // while a rank that leaves in order is missed by nobody. leave() comes next.
  virtual void abandon() noexcept = 0;
  // Says goodbye to the neighbours and closes the links. No handler runs any more when the first
  // call returns, unless a handler itself makes it. Further calls do nothing.
  virtual void leave() = 0;
};

// Implements fsccl_unique_id_create(): makes an id, and begins to listen in this process.
Status create_unique_id(fsccl_unique_id_t* id);

}  // namespace fsccl
