// Goes on with the ranks that are left, in rounds. In a round the ranks that are alive agree on
// their list (Job::agree), and make a communicator of these ranks. In the next round they agree
// again, and also tell whether all have made it. If the list is the same and all have made the
// communicator, it is returned. If not, a rank was lost meanwhile, and this round is the first one
// of another try. So either all survivors return a communicator of the same ranks, or none does.
// A rank that could not make it votes at once with its error. The others then stop waiting for it
// in the communicator that they are making (OpeningOfJob::why_cancelled), and return its error.
// Each try has a name and memory of its own, so nothing that a dead rank has left half written is
// read.
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "base/hash.h"
#include "base/thrown.h"
#include "comm/communicator.h"
#include "engine/failure.h"

namespace fsccl {
namespace {

constexpr uint64_t kShrinks = UINT64_MAX - 1;  // no number of a split, nor that of subsets

// Returns true for the errors that may be a loss of which the job has not learned yet.
bool may_be_a_loss(fsccl_status_t code) {
  return code == FSCCL_ERR_PEER_DEAD || code == FSCCL_ERR_LINK || code == FSCCL_ERR_ABORTED;
}

}  // namespace

// Returns the error of a survivor that could not make the next communicator. The others must not
// wait for it there.
Status Communicator::refused() const {
  const Job::Refusal refusal = context_->job().refusal(meeting());
  if (refusal.code == FSCCL_OK) return success();
  return fail(refusal.code, "rank {} of the job: {}", refusal.rank, refusal.text)
      .with_peer(context_->job().rank(), refusal.rank);
}

// Returns the tag under which the survivors meet next.
uint64_t Communicator::meeting() const {
  return mix_hash(mix_hash(tag_, kShrinks), shrinking_.round);
}

// Says that this rank gives the communicator up. Others may already wait for it in the next
// meeting; the job, which lives on, tells them.
void Communicator::will_not_shrink() noexcept {
  try {
    engine_->look_for_failure();
    if (engine_->failed() && size() > 1) context_->job().decline(meeting());
  } catch (const std::bad_alloc&) {  // then they wait to their deadline
  }
}

Result<Job::Agreed> Communicator::agree_who_is_left(Deadline deadline) {
  Job::Question question;
  question.meeting = meeting();
  question.members = members_;
  if (!shrinking_.problem.ok()) {
    question.refusal = context_->job().refusal(question.meeting);
    if (question.refusal.code == FSCCL_OK)
      question.refusal = {context_->job().rank(), shrinking_.problem.code(),
                          shrinking_.problem.text()};
  }
  // A rank that has closed its channel before this rank votes will not take part. (A rank that
  // closes it later may be one that has its answer.) A rank that was left out of the last round
  // does not take part either.
  const auto left_out = [&](int rank) {
    return shrinking_.failed &&
           std::binary_search(shrinking_.failed->begin(), shrinking_.failed->end(), job_rank(rank));
  };
  for (int rank = 0; rank < size(); rank++)
    if (rank != rank_ && (left_out(rank) || engine_->has_left(rank)))
      question.lost.push_back(job_rank(rank));
  Result<Job::Agreed> agreed = context_->job().agree(question, deadline);
  if (!agreed.ok()) return agreed.take_status().with_peer(rank_, rank_);
  if (agreed.value().reached) return agreed;
  std::vector<int> missing;
  for (const int32_t rank : agreed.value().missing) missing.push_back(rank_of(rank));
  if (missing.empty())
    return fail(
        FSCCL_ERR_TIMEOUT,
        "the survivors of '{}' did not agree in time who they are; call fsccl_comm_shrink() again",
        name_);
  return fail(FSCCL_ERR_TIMEOUT,
              "rank(s) {} of '{}' did not come in time, and are not known to be dead: all "
              "survivors call fsccl_comm_shrink(); "
              "those that still wait in an operation are ended by fsccl_comm_abort()",
              fmt::join(missing, ", "), name_)
      .with_peer(rank_, missing.front());
}

// Makes the communicator of the survivors. Fails if one of them cannot make it.
Result<std::unique_ptr<Communicator>> Communicator::gather_survivors(CommunicatorOptions options,
                                                                     Deadline deadline) {
  std::vector<int> members;
  std::copy_if(members_.begin(), members_.end(), std::back_inserter(members), [&](int rank) {
    return !std::binary_search(shrinking_.failed->begin(), shrinking_.failed->end(), rank);
  });
  options.made_by = deadline;
  const uint64_t name = mix_hash(meeting(), kShrinks);
  return open(context_, std::move(members), name, options, this, true);
}

// Tells the other survivors at once if this rank leaves shrink() by an exception, because they wait
// for it while they make the communicator. It casts the vote of the next meeting, and does not wait
// for the answer.
class Communicator::LeavingSurvivors {
 public:
  explicit LeavingSurvivors(Communicator& comm) : comm_(comm) {}
  ~LeavingSurvivors() {
    if (!thrown_) return;
    comm_.shrinking_.returned = true;
    try {
      (void)comm_.agree_who_is_left(Deadline::in_ms(0)).ok();
    } catch (const std::bad_alloc&) {  // then they wait to their deadline
    }
  }
  LeavingSurvivors(const LeavingSurvivors&) = delete;

 private:
  Communicator& comm_;
  const Thrown thrown_;
};

Result<std::unique_ptr<Communicator>> Communicator::shrink(const CommunicatorOptions& options) {
  engine_->look_for_failure();
  if (!engine_->failed())
    return fail(FSCCL_ERR_INVALID_STATE,
                "'{}' has not failed: all its ranks are there, as far as rank {} knows. To go on "
                "without some that live, make a part of "
                "it (fsccl_comm_subset), or abort it first (fsccl_comm_abort)",
                name_, rank_);
  const Deadline deadline = Deadline::in_ms(options.timeout_ms ? options.timeout_ms : timeout_ms_);
  Shrinking& now = shrinking_;
  while (true) {
    Status no_memory(error_without_memory(rank_, name_));
    FSCCL_ASSIGN(Job::Agreed agreed, agree_who_is_left(deadline));
    now.round++;
    const bool same = now.failed == agreed.failed;
    std::unique_ptr<Communicator> made = std::move(now.made);
    Status problem = std::exchange(now.problem, {});
    const bool returned = std::exchange(now.returned, false);
    now.failed.reset();
    const Job::Refusal& refusal = agreed.refusal;
    if (same && refusal.code == FSCCL_OK) return made;
    if (same && !may_be_a_loss(refusal.code)) {
      if (returned) continue;  // the others have come to the next meeting
      if (refusal.rank == context_->job().rank()) return problem;
      const int peer = rank_of(refusal.rank);
      return fail(refusal.code,
                  "rank {} could not make the communicator of the survivors of '{}': {}", peer,
                  name_, refusal.text)
          .with_peer(rank_, peer);
    }
    made.reset();
    now.problem = std::move(no_memory);  // an exception leaves this error here
    now.failed = std::move(agreed.failed);
    const LeavingSurvivors leaving(*this);
    Result<std::unique_ptr<Communicator>> tried = gather_survivors(options, deadline);
    now.problem = tried.take_status();
    if (now.problem.ok()) now.made = tried.take();
    if (!now.problem.ok() && deadline.passed()) return now.problem.clone();
  }
}

}  // namespace fsccl
