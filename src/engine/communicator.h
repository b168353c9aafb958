// A communicator on this rank: its job (who, where), its channel and engine, and its collectives. Splits share the job.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bootstrap/job.h"
#include "engine/collective.h"
#include "engine/engine.h"
#include "engine/list.h"

namespace fsccl {

class Communicator;

// What the communicators of one job share on this rank.
class JobContext {
 public:
  static Result<std::shared_ptr<JobContext>> join(const JoinRequest& request);
  ~JobContext();

  Job& job() { return *job_; }
  ArenaTable& arenas() { return arenas_; }
  void add(Communicator* comm);
  void remove(Communicator* comm);
  bool anybody_lost() const { return lost_.load(std::memory_order_acquire); }
  // Usable cores of each rank (affinity), and how many distinct ones a set of ranks has together.
  int cores_of(const std::vector<int>& ranks) const;
  uint32_t next_arena_number() { return arena_numbers_++; }

 private:
  struct Cores {
    uint64_t words[16];  // 1024 processors
  };
  Status exchange_cores(Deadline deadline);
  void on_loss(int rank, bool left);

  std::shared_ptr<Job> job_;
  ArenaTable arenas_;
  std::vector<Cores> cores_;
  std::atomic<uint32_t> arena_numbers_{0};
  std::atomic<bool> lost_{false};
  std::mutex mutex_;
  std::vector<Communicator*> communicators_;
  std::vector<uint8_t> lost_ranks_;  // 0, 1 died, 2 left
};

struct CommunicatorOptions {
  int64_t timeout_ms = 0;  // 0: configured
  std::string name;        // empty: numbered
};

class Communicator {
 public:
  // Collective, blocking.
  static Result<std::unique_ptr<Communicator>> create(const JoinRequest& request, const CommunicatorOptions& options);
  // Null when this rank has no color.
  Result<std::unique_ptr<Communicator>> split(int color, int key, const CommunicatorOptions& options);
  // The communicator of two on which `from` (its rank 0) sends to `to`; this rank is one of them. Blocks for nobody; must be
  // destroyed before this one.
  Result<std::unique_ptr<Communicator>> pair(int from, int to);
  ~Communicator();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  int job_rank(int rank) const { return members_[static_cast<size_t>(rank)]; }
  const std::vector<int>& members() const { return members_; }
  int64_t timeout_ms() const { return timeout_ms_; }
  Deadline deadline() const { return Deadline::in_ms(timeout_ms_); }
  const std::string& name() const { return name_; }
  uint64_t tag() const { return tag_; }  // the same on all members, another for every communicator of the job
  JobContext& context() { return *context_; }
  Engine& engine() { return *engine_; }
  Collectives& collectives() { return *collectives_; }
  Lists& lists() { return lists_; }
  // Rank in this communicator of a rank of the job, -1 if it is not a member.
  int rank_of(int job_rank) const;

  int dependents = 0;  // pools and units made on it

 private:
  Communicator() = default;
  static Result<std::unique_ptr<Communicator>> open(std::shared_ptr<JobContext> context, std::vector<int> members, uint64_t tag,
                                                    const CommunicatorOptions& options);
  bool oversubscribed() const { return context_->cores_of(members_) < size(); }  // more ranks than cores
  void start(EngineOptions engine, const Costs& costs);

  std::shared_ptr<JobContext> context_;
  std::vector<int> members_;  // job ranks, by rank
  int rank_ = 0;
  uint64_t tag_ = 0;
  uint64_t splits_ = 0;
  int64_t timeout_ms_ = 0;
  std::string name_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Collectives> collectives_;
  Lists lists_;
};

}  // namespace fsccl
