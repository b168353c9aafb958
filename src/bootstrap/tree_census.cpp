// What ranks say about the survivors of a group, over the links of the tree (census.h has the
// rules). Each stand goes over each link once, before the loss of whoever said it.
#include <utility>

#include "base/reactor.h"
#include "bootstrap/tree.h"

namespace fsccl {

Status TreeJob::hear_stands(const Link& from, ByteView payload) {
  FSCCL_ASSIGN(std::vector<Stand> stands, decode_stands(payload, place_.ranks));
  std::erase_if(stands, [this](const Stand& stand) {
    return stand.rank == place_.rank ||
           !censuses_.try_emplace(stand.meeting, stand.meeting).first->second.hear(stand);
  });
  if (!stands.empty()) send_all(FrameType::kStands, encode_stands(stands), &from);
  advance_censuses();
  return success();
}

void TreeJob::advance_censuses() {
  for (auto& [meeting, census] : censuses_)
    if (const std::optional<Stand> stand = census.advance(lost_))
      send_all(FrameType::kStands, encode_stands({*stand}), nullptr);
  if (!censuses_.empty()) changed_.notify_all();
}

void TreeJob::decline(uint64_t meeting) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kJoined) return;
  censuses_.try_emplace(meeting, meeting).first->second.decline(place_.rank);
  advance_censuses();
}

Result<Job::Agreed> TreeJob::agree(const Question& question, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::kJoining || phase_ == Phase::kFailed)
    return fail(FSCCL_ERR_INVALID_STATE, "the job has not been joined");
  Census& census = censuses_.try_emplace(question.meeting, question.meeting).first->second;
  census.begin({question.members.begin(), question.members.end()}, place_.rank, question.gone,
               question.code);
  advance_censuses();
  if (!lost_.empty()) {
    mend_due_ns_ = 0;
    Reactor::instance().kick();
  }
  const auto broken = [&]() -> Status {
    if (phase_ == Phase::kLeft) return fail(FSCCL_ERR_ABORTED, "this rank has left the job");
    if (!expelled_ && !census.expelled()) return success();
    return fail(FSCCL_ERR_PEER_DEAD,
                "the other ranks hold this one for dead: its links broke, or it was silent for too "
                "long. It can only join a new "
                "job")
        .with_peer(place_.rank, place_.rank);
  };
  FSCCL_ASSIGN(const bool decided, wait_unless(
                                       broken, [&] { return census.decided(); }, deadline,
                                       UntilNotified{lock, changed_}));
  if (!decided) return Agreed{.missing = census.missing()};
  const Stand& stand = census.stand();
  return Agreed{true, stand.failed, {}, static_cast<fsccl_status_t>(stand.code)};
}

}  // namespace fsccl
