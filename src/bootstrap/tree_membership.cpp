// Votes on the survivors of a group, over the links of the tree (membership.h has the rules). Each
// vote goes over each link once, before the news that its voter is lost.
#include <new>
#include <utility>

#include "base/reactor.h"
#include "bootstrap/tree.h"

namespace fsccl {
namespace {

Job::Refusal refusal_of(const Vote::Refusal& told) {
  return {told.rank, static_cast<fsccl_status_t>(told.code), told.text};
}

}  // namespace

Status TreeJob::hear_votes(const Link& from, ByteView payload) {
  FSCCL_ASSIGN(std::vector<Vote> votes, decode_votes(payload, config_.ranks));
  std::erase_if(votes, [this](const Vote& vote) {
    return vote.rank == config_.rank ||
           !memberships_.try_emplace(vote.meeting, vote.meeting).first->second.hear(vote);
  });
  if (!votes.empty()) send_all(FrameType::kVotes, encode_votes(votes), &from);
  advance_memberships();
  return success();
}

void TreeJob::advance_memberships() {
  for (auto& [meeting, membership] : memberships_) {
    const std::optional<Vote> vote = membership.advance(lost_);
    if (!vote) continue;
    try {
      send_all(FrameType::kVotes, encode_votes({*vote}), nullptr);
    } catch (const std::bad_alloc&) {
      membership.unsaid();  // the next call sends it, and who has it already ignores it
      throw;
    }
  }
  if (!memberships_.empty()) changed_.notify_all();
}

void TreeJob::decline(uint64_t meeting) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kJoined) return;
  memberships_.try_emplace(meeting, meeting).first->second.decline(config_.rank);
  advance_memberships();
}

Job::Refusal TreeJob::refusal(uint64_t meeting) const {
  const std::lock_guard lock(mutex_);
  const auto found = memberships_.find(meeting);
  return found == memberships_.end() ? Refusal{} : refusal_of(found->second.refusal());
}

Result<Job::Agreed> TreeJob::agree(const Question& question, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::kJoining || phase_ == Phase::kFailed)
    return fail(FSCCL_ERR_INVALID_STATE, "the job has not been joined");
  Membership& membership =
      memberships_.try_emplace(question.meeting, question.meeting).first->second;
  const Refusal& refusal = question.refusal;
  membership.begin({question.members.begin(), question.members.end()}, config_.rank, question.lost,
                   {refusal.code, refusal.rank, refusal.text});
  advance_memberships();
  if (!lost_.empty()) {
    mend_due_ns_ = 0;
    Reactor::instance().kick();
  }
  const auto broken = [&]() -> Status {
    if (phase_ == Phase::kLeft) return fail(FSCCL_ERR_ABORTED, "this rank has left the job");
    if (!expelled_ && !membership.expelled()) return success();
    return fail(FSCCL_ERR_PEER_DEAD,
                "the other ranks hold this one for dead: its links broke, or it was silent for too "
                "long. It can only join a new "
                "job")
        .with_peer(config_.rank, config_.rank);
  };
  FSCCL_ASSIGN(const bool decided, wait_unless(
                                       broken, [&] { return membership.decided(); }, deadline,
                                       UntilNotified{lock, changed_}));
  if (!decided) return Agreed{.missing = membership.missing()};
  const Vote& vote = membership.vote();
  return Agreed{true, vote.failed, {}, refusal_of(vote.refusal)};
}

}  // namespace fsccl
