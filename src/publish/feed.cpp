#include "publish/feed.h"

#include <algorithm>

#include "base/socket.h"
#include "base/undo.h"

namespace fsccl::publish {

namespace {

// The most bytes of answers that one call of write() sends, so that other callbacks of the service
// thread have their turn.
constexpr size_t kAtOnce = size_t{1} << 20;
// A subscriber that takes fewer bytes than this before its timeout counts as one that takes none:
// blocks that are kept for its whole copy would take the place of others' copies.
constexpr size_t kLeastTaken = size_t{256} << 10;

}  // namespace

Status Feed::read(History& history) {
  const Status pumped = channel_->pump_in();
  Frame frame;
  for (;;) {
    FSCCL_ASSIGN(const bool complete, channel_->next(frame));
    if (!complete) break;
    if (frame.type == FrameType::kWant) {
      FSCCL_ASSIGN(want_, decode_want(frame.payload));
    } else if (frame.type == FrameType::kHave) {
      FSCCL_ASSIGN(have_, decode_version(frame.payload, "Have"));
      if (have_ > history.version()) return bad_payload("Have");
    } else {
      return bad_payload("subscriber's");
    }
  }
  return pumped.clone();
}

// Runs between two answers: queues News if there is any, and begins the answer to the subscriber's
// request if the history has it.
void Feed::start(History& history) {
  if (news_due_ || told_ != history.version()) {
    told_ = history.version();
    news_due_ = false;
    channel_->queue(FrameType::kNews, encode_version(told_));
  }
  if (!want_) return;
  const History::Answer answer = history.answer(*want_, sending_);
  if (answer == History::Answer::later) return;
  // The subscriber's request stays until its answer is queued: without memory for the answer, the
  // next call begins it anew.
  Undo again([&] { history.stop(sending_); });
  if (answer == History::Answer::gone)
    channel_->queue(FrameType::kGone, encode(Gone{want_->version, history.version()}));
  else
    channel_->queue(FrameType::kVersion, encode(sending_.head()));
  again.keep();
  whole_copies_ += answer != History::Answer::gone && sending_.head().base == 0 ? 1 : 0;
  want_.reset();
}

Result<bool> Feed::write(History& history, int64_t now_ns) {
  size_t budget = kAtOnce;
  if (!stuck_) moved_ns_ = now_ns, taken_ = 0;  // the socket has taken all that was offered so far
  for (;;) {
    if (sending_.cut())
      return fail(
          FSCCL_ERR_LIMIT,
          "what it was being sent was given up, to keep the limit or because memory was short");
    // Nothing new is queued before the socket has taken all earlier messages, so nothing piles up.
    if (channel_->flushed() && !sending_.active() && unsent_.empty()) start(history);
    FSCCL_ASSIGN(const bool flushed, channel_->pump_out());
    if (!flushed) return stuck_ = true;
    if (unsent_.empty()) {
      if (!sending_.active()) return stuck_ = false;
      unsent_ = history.next(sending_, room_);
      if (unsent_.empty()) continue;  // the answer is complete
    }
    if (budget == 0) return true;
    FSCCL_ASSIGN(const size_t count,
                 send_some(fd(), unsent_.data(), std::min(unsent_.size(), budget)));
    if (count == 0) return stuck_ = true;
    stuck_ = false;
    taken_ += count;
    if (taken_ >= kLeastTaken) moved_ns_ = now_ns, taken_ = 0;
    sent_bytes_ += count;
    budget -= count;
    unsent_ = unsent_.subspan(count);
  }
}

int64_t Feed::stuck_for_ns(int64_t now_ns) const {
  return std::max(stuck_ ? now_ns - moved_ns_ : 0, owed_for_ns(fd()));
}

void Feed::say_goodbye() {
  // Within an answer a Goodbye would count as bytes of the answer, so the subscriber sees the end
  // of the connection alone.
  if (sending_.active() || !unsent_.empty()) return;
  channel_->queue(FrameType::kGoodbye, {});
  (void)channel_->pump_out().ok();
}

}  // namespace fsccl::publish
