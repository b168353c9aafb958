// The place where the ranks of a job meet. The server gives each rank that arrives its place in the
// tree (the k-th below the ((k - 1) / fan-out)-th). When all ranks have arrived, it hands the list
// of members to the first rank, and the tree passes it on from there. The server keeps one
// connection, to that first rank. If something fails before the tree is whole, the server tells the
// first rank and every rank that still comes.
//
// The server lives in the process that opened it until the tree is whole, or for a while after a
// failure, so that late ranks learn the reason. If the process ends within a second of a failure,
// it waits until all ranks know or this second is over. The service thread runs all callbacks.
#pragma once
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "bootstrap/reception.h"
#include "bootstrap/tree_steps.h"

namespace fsccl {

class RendezvousServer : public std::enable_shared_from_this<RendezvousServer> {
 public:
  // `meeting` is the number by which ranks ask for this server (Hello::job), and `job` is the
  // number that the job gets. `advice` is added to the error if some ranks do not come in time.
  static Status open(const Credentials& credentials, uint64_t meeting, uint64_t job,
                     std::vector<Fd> listeners, std::string advice = {});
  // Refuses a job of `ranks` ranks: opens a server that tells `why` to all ranks that come, as
  // after a failure. If this process is short of descriptors, the call waits until the ranks have
  // come, for at most a second.
  static void refuse(const Credentials& credentials, uint64_t meeting, int32_t ranks,
                     std::vector<Fd> listeners, const Status& why, Deadline deadline);
  // Ends the server of this process for `job`, if it is still there.
  static void cancel(uint64_t job);
  // Records that rank `rank` of this process has failed to join `job` for the reason `why`. If the
  // server of the job is in this process, it fails the job, unless it has done so already; the
  // other ranks then learn the reason even if this process ends now.
  static void hear(uint64_t job, int32_t rank, const Status& why);
  ~RendezvousServer();

 private:
  enum class State { kCollecting, kComplete, kFailed, kOver };
  explicit RendezvousServer(uint64_t job);
  Status begin(const Credentials& credentials, uint64_t meeting, std::vector<Fd> listeners);
  static std::shared_ptr<RendezvousServer> of(uint64_t job);
  static void retire(const std::shared_ptr<RendezvousServer>& self);

  void admit(Guest guest);
  void admit_locked(Guest& guest);
  Status place(Guest& guest, const Register& request);
  void keep_root(Guest& guest);
  void on_root_readable();
  void finish_if_complete();
  void fail_all(const Status& why);
  void give_up();
  int64_t on_timer();
  bool has_told_all(int64_t now);
  static void tell_all(const std::shared_ptr<RendezvousServer>& self, Deadline deadline);
  static void tell_before_exit();

  const uint64_t job_;
  const int64_t linger_ns_;  // how long the server stays after a failure
  std::mutex mutex_;
  std::shared_ptr<Reception> reception_;
  int hook_ = -1;
  State state_ = State::kCollecting;
  Status failure_;
  Status no_memory_;  // made in advance, while there is memory
  std::string advice_;
  Roll roll_;
  std::shared_ptr<FramedSocket> root_;  // the connection to the first rank
  int64_t give_up_ns_ = INT64_MAX;      // shortly before any rank gives up
  int64_t waited_since_ns_ = 0;
  int64_t over_ns_ = INT64_MAX;  // when a failed rendezvous ends
  int64_t failed_ns_ = 0;
  int32_t ranks_ = 0;       // how many ranks have to learn of a failure; 0: unknown
  std::set<int32_t> told_;  // ranks that know of the failure already
};

// Returns a list like "3, 5, 8 and 12 more", for messages.
std::string list_ranks(const std::vector<int32_t>& ranks);

}  // namespace fsccl
