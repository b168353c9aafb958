#include "publish/feed.h"

#include <algorithm>

#include "base/socket.h"

namespace fsccl::publish {

namespace {

constexpr size_t kAtOnce = size_t{1} << 20;  // bytes, so that other callbacks have their turn

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
      FSCCL_ASSIGN(have_, decode_version(frame.payload));
      if (have_ > history.version()) return bad_payload("Have");
    } else {
      return bad_payload("subscriber's");
    }
  }
  return pumped.clone();
}

// Between two answers: says what is new, and begins with the next answer.
void Feed::start(History& history) {
  if (news_due_ || told_ != history.version()) {
    told_ = history.version();
    news_due_ = false;
    channel_->queue(FrameType::kNews, encode_version(told_));
  }
  if (!want_) return;
  const History::Answer answer = history.answer(*want_, sending_);
  if (answer == History::Answer::later) return;
  want_.reset();
  if (answer == History::Answer::gone) {
    channel_->queue(FrameType::kGone, encode_version(history.version()));
    return;
  }
  if (sending_.head().base == 0) whole_copies_++;
  channel_->queue(FrameType::kVersion, encode(sending_.head()));
}

Result<bool> Feed::write(History& history, int64_t now_ns) {
  size_t budget = kAtOnce;
  if (!stuck_) moved_ns_ = now_ns;  // it had nothing to take
  for (;;) {
    if (sending_.cut())
      return fail(FSCCL_ERR_LIMIT, "what it was being sent was given up to keep the limit");
    // Nothing is said while what was said before is not taken, so that nothing piles up.
    if (channel_->flushed() && !sending_.active() && unsent_.empty()) start(history);
    FSCCL_ASSIGN(const bool flushed, channel_->pump_out());
    if (!flushed) return stuck_ = true;
    if (unsent_.empty()) {
      if (!sending_.active()) return stuck_ = false;
      unsent_ = history.next(sending_, room_);
      if (unsent_.empty()) continue;  // that was all
    }
    if (budget == 0) return true;
    FSCCL_ASSIGN(const size_t count,
                 send_some(fd(), unsent_.data(), std::min(unsent_.size(), budget)));
    if (count == 0) return stuck_ = true;
    stuck_ = false;
    moved_ns_ = now_ns;
    sent_bytes_ += count;
    budget -= count;
    unsent_ = unsent_.subspan(count);
  }
}

int64_t Feed::stuck_for_ns(int64_t now_ns) const {
  return std::max(stuck_ ? now_ns - moved_ns_ : 0, owed_for_ns(fd()));
}

void Feed::say_goodbye() {
  if (sending_.active() || !unsent_.empty()) return;  // it sees the end of the connection
  channel_->queue(FrameType::kGoodbye, {});
  (void)channel_->pump_out().ok();
}

}  // namespace fsccl::publish
