// A simulated job of members, and the invariants that it must keep. The members join, watch each
// other, exchange bytes, agree who is left, and leave, all with the real code of src/bootstrap.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bootstrap/job.h"
#include "members_setting.h"

namespace fsccl::sim {

struct MembersOutcome {
  std::optional<std::string> broken;
  uint64_t history = 0;
  std::vector<std::string> trace;
  std::string setting;
  Mishap mishap = Mishap::none;
  int joined = 0, refused = 0, agreed = 0, suspects = 0;
};

class Members {
 public:
  Members(uint64_t seed, bool traced);
  ~Members();
  MembersOutcome run();

 private:
  struct Rank {
    std::shared_ptr<Process> process;
    bool began = false, joined = false, over = false, leaving = false, expelled = false;
    int64_t began_ns = 0, ended_ns = 0;  // when joining began and ended
    std::optional<Error> error;          // error of joining
    uint64_t job = 0;
    std::optional<Error> gather_error;
    int gathered = 0;
    std::map<int, bool> lost;  // by lost rank: whether it has left
    std::weak_ptr<Job> alive;
  };
  struct Answer {  // An answer about the survivors.
    std::vector<int32_t> failed{};
    fsccl_status_t code = FSCCL_OK;
    int refusing = -1;
    std::set<int> by{};
    int first = -1;  // the rank whose answer the others are compared with
  };
  struct Asked {
    int64_t first_ns = 0;
    std::set<int> dead;  // the ranks that were dead when the first rank asked
  };

  // members.cpp has the actions of a rank.
  void main(int r);
  std::shared_ptr<Job> join(int r);
  void gather_all(int r, Job& job);
  void pass_descriptors(int r, Job& job);
  void agree(int r, Job& job, int phase, std::vector<int>* members);
  std::optional<Job::Agreed> ask(int r, Job& job, uint64_t meeting,
                                 const std::vector<int>& members);
  void see_the_dead(int r, Job& job);
  void note_loss(int r, int lost, bool left);
  void farewell(int r, int64_t left_ns, std::set<int> known);
  void knock(int stranger);
  void end_rendezvous();
  const Rank& as_known(int r) const { return ranks_[static_cast<size_t>(r)]; }
  Rank& rank(int r) { return ranks_[static_cast<size_t>(r)]; }

  // members_ends.cpp has the mishaps, and the invariants.
  void plan_mishap();
  void plan_loss_of(int host, int64_t at_ns);
  void stop_chosen(int64_t ns);
  void kill_one(int64_t from_ns, int64_t to_ns);
  void break_down(std::string what);
  void judge();
  void judge_joining(int r);
  void judge_losses(int r);
  void judge_suspicion(int r, int other);
  bool all_run_but(int r) const;
  int64_t runs_since(const Rank& one) const;
  bool spoken_for(int r) const;
  void check_agreed(int r, uint64_t meeting, const Job::Agreed& agreed,
                    const std::vector<int>& members);
  // Returns true if the process is over, the rank leaves, it has not joined, or it counts as dead
  // because it is silent.
  bool gone(int r) const;
  bool silent(int r) const {
    return setting_.mishap == Mishap::silent && r == setting_.chosen &&
           as_known(r).process->was_stopped();
  }
  bool calm() const;  // returns true if the mishap must not break joining or an exchange
  bool may_split() const {
    return setting_.mishap == Mishap::cuts || setting_.mishap == Mishap::garbled;
  }

  World world_;
  MembersSetting setting_;
  std::unique_ptr<Wires> wires_;
  std::vector<Rank> ranks_;
  std::vector<std::shared_ptr<Process>> strangers_;
  fsccl_unique_id_t id_{};
  bool has_id_ = false;
  std::map<uint64_t, Answer> answers_;
  std::map<uint64_t, Asked> asked_;
  std::set<int> dead_;
  int64_t last_death_ns_ = 0, last_leave_ns_ = 0;
  std::vector<int> leaves_after_;  // farewells: when each rank leaves, in ms
  int suspects_ = 0;
  std::optional<std::string> broken_;
};

}  // namespace fsccl::sim
