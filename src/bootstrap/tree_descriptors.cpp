// Descriptors between the ranks of one host: publishing them under a name, and fetching what
// another rank has published (tree.h).
#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "base/descriptors.h"
#include "base/reactor.h"
#include "base/undo.h"
#include "bootstrap/credentials.h"
#include "bootstrap/tree.h"

namespace fsccl {

namespace {

constexpr size_t kMaxWaitingFetches = 4096;
// The news of a loss takes far less, unless the rank that would pass it on has gone, too.
constexpr int64_t kNewsMs = 2000;

Result<Fd> duplicate(int fd) {
  Fd copy = make_fd([&] { return fcntl(fd, F_DUPFD_CLOEXEC, 0); });
  if (!copy.valid()) return fail_errno(errno, "duplicating a descriptor");
  return copy;
}

}  // namespace

// Turns FSCCL_ERR_LINK, which a connection to `rank` has given, into an error that names the rank
// and says whether it left or died. Waits until the links have told which, because the caller may
// leave the job after this error, and this rank's neighbours must learn of the loss from this rank
// before. Other errors stay as they are.
Status TreeJob::owner_lost(const Status& status, int rank) {
  if (status.code() != FSCCL_ERR_LINK) return status.clone();
  std::unique_lock lock(mutex_);
  const auto known = [&] {
    return phase_ == Phase::kLeft || lost_.contains(rank) || links_.empty();
  };
  wait_until(known, Deadline::in_ms(kNewsMs), kNothingBreaks, UntilNotified{lock, changed_});
  const auto lost = lost_.find(rank);
  if (lost == lost_.end())
    return fail(FSCCL_ERR_PEER_DEAD, "rank {} does not answer any more: {}", rank, status.text())
        .with_peer(config_.rank, rank);
  return fail(FSCCL_ERR_PEER_DEAD, "rank {} {}", rank, lost->second ? "has left" : "is dead")
      .with_peer(config_.rank, rank);
}

Status TreeJob::publish_fd(uint64_t tag, int fd) {
  FSCCL_ASSIGN(Fd copy, duplicate(fd));
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kLeft) return fail(FSCCL_ERR_INVALID_STATE, "this rank has left the job");
  const auto [entry, added] = published_.try_emplace(tag);
  if (!added) return fail(FSCCL_ERR_INTERNAL, "descriptor {} is published twice", tag);
  entry->second = std::move(copy);
  for (const auto& [connection, fetch] : fetches_) {
    if (fetch.tag != tag) continue;
    // After the shutdown the service thread removes the entry of the connection.
    (void)fetch.channel
        ->send_descriptor(FrameType::kDescriptor, encode_tag(tag), entry->second.get())
        .ok();
    fetch.channel->shutdown();
  }
  changed_.notify_all();
  return success();
}

void TreeJob::withdraw_fd(uint64_t tag) {
  const std::lock_guard lock(mutex_);
  published_.erase(tag);
}

// Answers a rank that asks for a descriptor: at once, or when the descriptor is published, if the
// rank keeps its connection until then.
void TreeJob::answer_fetch(Guest& guest) {
  const Result<uint64_t> tag = decode_tag(guest.request.payload);
  if (guest.request.type != FrameType::kFetch || !tag.ok()) return;
  const auto published = published_.find(tag.value());
  if (published != published_.end()) {
    (void)guest.channel
        ->send_descriptor(FrameType::kDescriptor, encode_tag(tag.value()), published->second.get())
        .ok();
    return;
  }
  if (fetches_.size() >= kMaxWaitingFetches) return;
  const int fd = guest.channel->fd();
  fetches_[fd] = {tag.value(), guest.channel};
  Undo undo([&] { fetches_.erase(fd); });
  const Status watched = Reactor::instance().watch(fd, [weak = weak_from_this(), fd] {
    if (const auto job = weak.lock()) job->on_fetch_readable(fd);
  });
  if (watched.ok()) undo.keep();
}

// A rank that fetches sends nothing after its request. So its connection becomes readable only when
// the rank has gone, or after the answer, when publish_fd() has shut the connection down.
void TreeJob::on_fetch_readable(int fd) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kLeft) return;  // leave() cleans up
  Reactor::instance().unwatch(fd);
  fetches_.erase(fd);
}

// Waits until another thread of this rank has published the descriptor. `lock` holds mutex_.
Result<Fd> TreeJob::own_fd(uint64_t tag, Deadline deadline, std::unique_lock<std::mutex>& lock) {
  const WaitEnd end =
      wait_until([&] { return published_.contains(tag); }, deadline,
                 [this] { return phase_ == Phase::kLeft; }, UntilNotified{lock, changed_});
  if (end == WaitEnd::broken) return fail(FSCCL_ERR_ABORTED, "this rank has left the job");
  if (end == WaitEnd::late)
    return fail(FSCCL_ERR_TIMEOUT, "descriptor {} of this rank was not published in time", tag);
  return duplicate(published_.at(tag).get());
}

Result<Fd> TreeJob::fetch_fd(int rank, uint64_t tag, Deadline deadline, const BreakCheck& broken) {
  if (rank < 0 || rank >= config_.ranks)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "rank {} is outside 0 .. {}", rank, config_.ranks - 1);
  std::string name;
  {
    std::unique_lock lock(mutex_);
    const MemberRecord& record = records_[static_cast<size_t>(rank)];
    if (record.host != config_.self.host)
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "rank {} is on another host: no descriptor can come from there", rank);
    if (rank == config_.rank) return own_fd(tag, deadline, lock);
    if (const auto lost = lost_.find(rank); lost != lost_.end())
      return fail(FSCCL_ERR_PEER_DEAD, "rank {} {}", rank, lost->second ? "has left" : "is dead")
          .with_peer(config_.rank, rank);
    name = listener_name(record.listener);
  }
  // If a crowd is at the owner's door, the owner closes the connection, and another attempt may
  // succeed. If nobody listens, the owner is lost.
  Result<Fd> fetched = Fd();
  const auto decided = [&] {
    Result<Fd> connected = connect_to(unix_address(name), deadline, broken);
    if (!connected.ok()) {
      fetched = owner_lost(connected.status(), rank);
      return true;
    }
    fetched = fetch_over(connected.take(), rank, tag, deadline, broken);
    return fetched.ok() || fetched.status().code() != FSCCL_ERR_LINK;
  };
  FSCCL_ASSIGN(const bool in_time, wait_unless(broken, decided, deadline, between_attempts()));
  if (!in_time)
    fetched = fail(FSCCL_ERR_TIMEOUT,
                   "rank {} closed every connection before it gave descriptor {}", rank, tag);
  if (fetched.ok() || fetched.status().error().peer >= 0) return fetched;
  return fetched.take_status().with_peer(config_.rank, rank);
}

// Fails with FSCCL_ERR_LINK if the connection was closed before there was an answer.
Result<Fd> TreeJob::fetch_over(Fd connected, int rank, uint64_t tag, Deadline deadline,
                               const BreakCheck& broken) const {
  Status versions;
  FSCCL_ASSIGN(FramedSocket channel,
               introduce_as(std::move(connected), config_.credentials, Purpose::kFetch, config_.job,
                            config_.rank, config_.ranks, deadline, &versions, broken));
  FSCCL_TRY(channel.send(FrameType::kFetch, encode_tag(tag), deadline, broken));
  Fd passed;
  const Result<Bytes> answer = channel.expect(FrameType::kDescriptor, deadline, &passed, broken);
  if (!answer.ok() && answer.status().code() == FSCCL_ERR_TIMEOUT && deadline.passed())
    return fail(FSCCL_ERR_TIMEOUT, "rank {} did not publish descriptor {} in time", rank, tag);
  if (!answer.ok()) return answer.status().clone();
  const Result<uint64_t> answered = decode_tag(answer.value());
  if (!answered.ok() || answered.value() != tag || !passed.valid()) {
    FSCCL_TRY(check_descriptors(1, "receive one of another rank"));
    return fail(FSCCL_ERR_PROTOCOL, "rank {} answered without the descriptor {}", rank, tag);
  }
  return passed;
}

}  // namespace fsccl
