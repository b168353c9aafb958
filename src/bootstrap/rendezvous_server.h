// The place where the ranks of a job meet. It gives each rank that arrives its place in the tree
// (the k-th below the ((k - 1) / fan-out)-th), and when all have arrived hands the list of members
// to the first, from where the tree carries it on. It keeps one connection, to that first rank:
// whatever fails before the tree is whole is told there, and to all who still come.
//
// Lives in the process that made it until the tree is whole, or for a while after a failure, so
// that late ranks learn the reason. The process waits a moment for them when it ends before. Runs
// in the service thread.
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
  // `meeting`: the number under which ranks ask for it (Hello::job); `job`: the number that the job
  // shall have. `advice` goes to the ranks when some have not come in time.
  static Status open(const Credentials& credentials, uint64_t meeting, uint64_t job,
                     std::vector<Fd> listeners, std::string advice = {});
  // Refuses a job of `ranks` ranks: tells `why` to all ranks that come, as after a failure. If this
  // process is short of descriptors the caller waits a moment for them, as at the end of the
  // process.
  static void refuse(const Credentials& credentials, uint64_t meeting, int32_t ranks,
                     std::vector<Fd> listeners, const Status& why, Deadline deadline);
  // Ends the one of this process for `job`, if it is still there.
  static void cancel(uint64_t job);
  // The rank `rank` of this process has failed to join `job` for the reason `why`. If the
  // rendezvous of this process has not heard of it yet, ranks that still look for their parent are
  // told before the process ends.
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
  const int64_t linger_ns_;  // after a failure
  std::mutex mutex_;
  std::shared_ptr<Reception> reception_;
  int hook_ = -1;
  State state_ = State::kCollecting;
  Status failure_;
  Status no_memory_;  // made when there was some
  std::string advice_;
  Roll roll_;
  std::shared_ptr<FramedSocket> root_;  // to the first rank
  int64_t give_up_ns_ = INT64_MAX;      // shortly before the first of the ranks does
  int64_t waited_since_ns_ = 0;
  int64_t over_ns_ = INT64_MAX;  // when a failed rendezvous ends
  int64_t failed_ns_ = 0;
  // as many have to learn of a failure; 0: nobody has said how many there are
  int32_t ranks_ = 0;
  std::set<int32_t> told_;  // ranks that have learnt of it here
};

// "3, 5, 8 and 12 more", for messages.
std::string list_ranks(const std::vector<int32_t>& ranks);

}  // namespace fsccl
