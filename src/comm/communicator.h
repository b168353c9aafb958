// A communicator on this rank: its job, which knows the ranks and their hosts, its channel and
// engine, and its collectives. Communicators that are made from it share the job.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/collective.h"
#include "comm/hierarchy.h"
#include "comm/job_context.h"
#include "comm/list.h"
#include "engine/engine.h"
#include "fsccl/insight.h"
#include "record/metrics.h"
#include "select/paths.h"

namespace fsccl {

struct CommunicatorOptions {
  int64_t timeout_ms = 0;     // 0: that of the settings
  std::string name;           // empty: "comm" and a number
  std::vector<int> known_as;  // the ranks' numbers in messages; empty: their numbers here
  // Another engine with which this communicator fails, and which fails with this communicator.
  Engine* works_for = nullptr;
  Deadline made_by = Deadline::never();  // making it ends then, if its timeout does not end before
};

class DeviceCollectives;
struct KeptInboxes;

class Communicator {
 public:
  // Collective, blocking.
  static Result<std::unique_ptr<Communicator>> create(const JoinRequest& request,
                                                      const CommunicatorOptions& options);
  // Returns null if this rank has no color.
  Result<std::unique_ptr<Communicator>> split(int color, int key,
                                              const CommunicatorOptions& options);
  // Makes a communicator of these ranks of this communicator, in this order. This rank is one of
  // them. Only these ranks call it, from any thread.
  Result<std::unique_ptr<Communicator>> subset(const std::vector<int>& ranks, uint64_t tag,
                                               const CommunicatorOptions& options);
  // Makes a communicator of the ranks that are left after this communicator has failed, in the
  // order of their ranks. This rank is one of them. Collective over them, blocking; one thread at a
  // time.
  Result<std::unique_ptr<Communicator>> shrink(const CommunicatorOptions& options);
  // Makes a communicator of ranks that work for this communicator, as subset() does. Each of the
  // two fails with the other, and messages of the part use the rank numbers of this communicator.
  // The part is destroyed before this communicator.
  Result<std::unique_ptr<Communicator>> part(const std::vector<int>& ranks, uint64_t tag,
                                             const char* what);
  // Returns the engine of this rank alone that makes sums apart (engine/sums_apart.h). The first
  // call makes it. Does not wait for other ranks.
  Result<Engine*> sums();
  // Returns true if the service thread begins sums apart, and false if the calling thread does.
  bool sums_later() const;
  // Returns how many operations are under way, or 0 after a failure.
  uint64_t unfinished() const;
  bool one_host() const;
  bool is_here(int rank) const;  // true if the rank is on this host
  std::vector<int> ranks_here() const;
  // Returns the hosts; there are several. The first call is collective over all ranks, blocking.
  Result<Hosts*> hosts();
  fsccl_peer_state_t peer_state(int rank) const;
  // Makes the communicator on which `from` (its rank 0) sends messages to `to`. This rank is one of
  // the two. Does not wait for the other rank. It must be destroyed before this communicator.
  Result<std::unique_ptr<Communicator>> pair(int from, int to);
  ~Communicator();

  // Checks a call and submits it. See Engine::submit for `wait` and `state`.
  Status run(const CollectiveCall& call, bool wait, fsccl_status_t* state) {
    return collectives_->run(call, wait, state);
  }
  Status run(const ListCall& call, bool wait, fsccl_status_t* state) {
    return lists_.run(*collectives_, call, wait, state);
  }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  int job_rank(int rank) const { return members_[static_cast<size_t>(rank)]; }
  const std::vector<int>& members() const { return members_; }
  int64_t timeout_ms() const { return timeout_ms_; }
  Deadline deadline() const { return Deadline::in_ms(timeout_ms_); }
  const std::string& name() const { return name_; }
  // Returns a number that is the same on all members, and different for every communicator of the
  // job.
  uint64_t tag() const { return tag_; }
  JobContext& context() { return *context_; }
  Engine& engine() { return *engine_; }
  Collectives& collectives() { return *collectives_; }
  // Returns the rank in this communicator of a rank of the job, or -1 if it is not a member.
  int rank_of(int job_rank) const;

  std::atomic<int> dependents{0};  // the number of pools and units made on it
  // The first collective on device memory makes it (comm/device/collectives.h). It is destroyed
  // before everything else of this communicator.
  std::shared_ptr<DeviceCollectives> device_collectives;
  // The first unit on device memory makes them (unit/device/inboxes.h).
  std::shared_ptr<KeptInboxes> inboxes;

 private:
  Communicator() = default;
  // Returns a communicator that has its members, its name and its deadline, but no channel yet.
  static std::unique_ptr<Communicator> unopened(std::shared_ptr<JobContext> context,
                                                std::vector<int> members, uint64_t name,
                                                const CommunicatorOptions& options,
                                                const Communicator* parent);
  // Makes a communicator: the ranks meet, and measure unless they have a parent that has measured.
  // `survives` says that the parent has failed.
  static Result<std::unique_ptr<Communicator>> open(std::shared_ptr<JobContext> context,
                                                    std::vector<int> members, uint64_t name,
                                                    const CommunicatorOptions& options,
                                                    Communicator* parent, bool survives = false);
  // These are for shrink() (shrink.cpp).
  uint64_t meeting() const;
  class LeavingSurvivors;
  Status refused() const;
  void will_not_shrink() noexcept;
  Result<Job::Agreed> agree_who_is_left(Deadline deadline);
  Result<std::unique_ptr<Communicator>> gather_survivors(CommunicatorOptions options,
                                                         Deadline deadline);
  struct OpeningOfJob;
  std::vector<int32_t> find_processes(EngineOptions* engine) const;
  ChannelRequest request(OpeningOfJob& opening, const CommunicatorOptions& options,
                         const std::vector<int32_t>& pids, bool reads, bool known) const;
  Status form_hosts();
  void start(EngineOptions engine, const Costs& costs,
             std::shared_ptr<const std::vector<Rule>> rules, Engine* works_for = nullptr);
  void tell(MetricSamples& samples, std::string_view id) const;
  Costs typical_costs_of(int farthest) const;
  Paths find_paths(const Startup& startup, uint32_t* tick) const;

  std::shared_ptr<JobContext> context_;
  std::vector<int> members_;  // job ranks, by rank
  int rank_ = 0;
  uint64_t tag_ = 0;
  bool oversubscribed() const { return ranks_per_core_ > 1; }
  // The largest number of ranks per core on any host, here or in the communicator from which this
  // one was made.
  double ranks_per_core_ = 0;
  Paths paths_{};  // found here, or by the communicator from which this one was made
  uint64_t splits_ = 0;
  std::mutex subsets_mutex_;
  std::map<uint64_t, uint64_t> subsets_;  // calls of subset(), by first rank and tag
  // The progress of shrink(): the decision of the last round, and what this rank has made of it. It
  // is kept when the deadline passes, because other ranks may go on with it.
  struct Shrinking {
    uint64_t round = 0;
    // The ranks of the job without which it was tried. It has no value before the first try.
    std::optional<std::vector<int32_t>> failed;
    std::unique_ptr<Communicator> made;
    Status problem;         // why nothing was made
    bool returned = false;  // the program has an error already, because an exception ended a call
  } shrinking_;
  int64_t timeout_ms_ = 0;
  std::string name_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Collectives> collectives_;
  std::unique_ptr<Communicator> sums_;    // has this rank alone; made when it is first needed
  std::unique_ptr<Hosts> hosts_;          // made when it is first needed
  std::unique_ptr<Hierarchy> hierarchy_;  // on several hosts only
  Lists lists_;
  std::unique_ptr<MetricsSource> metrics_;  // metrics of the engine
};

}  // namespace fsccl
