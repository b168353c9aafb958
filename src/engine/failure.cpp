// How an engine fails: by itself, by what another rank has written to the board, or by a loss; what
// is still complete then, and who still drives it.
#include <algorithm>
#include <cstring>

#include "base/wait.h"
#include "engine/executor.h"
#include "engine/progress.h"
#include "record/metrics.h"

namespace fsccl {
namespace {

constexpr int64_t kTakeOverNapNs = 50'000;
constexpr int64_t kDriversMs = 2'000;  // longer than any step takes

}  // namespace

void Engine::fail_all(const Error& error) noexcept {
  try {
    Error copy = error;
    fail_with(copy);
  } catch (const std::bad_alloc&) {
    fail_without_memory();
  }
}

// The reason may then be another: that of the first who could not say his.
void Engine::fail_without_memory() noexcept { fail_with(no_memory_); }

// Takes no memory: what has failed must always be able to say so.
void Engine::fail_with(Error& error) noexcept {
  {
    const std::lock_guard lock(failure_mutex_);
    if (failed_.load(std::memory_order_relaxed)) return;
    error_ = std::move(error);
    // Before anybody can hear of it: what it leads to comes behind it in the recording.
    if (options_.recorder) options_.recorder->failed(options_.recorded_as, error_, completed() + 1);
    // Boards first: from then on transports write to no buffer, and whoever sees that we failed
    // will want its own back.
    write_board(error_);
    const std::lock_guard bound_lock(bound_mutex_);
    for (const auto* others : {&bound_, &heirs_})
      for (Engine* other : *others) other->write_board(error_);
    count_failure(error_.code);  // before anybody sees it, and looks for its number
    failed_.store(true, std::memory_order_release);
  }
  if (notifications_.all_due()) Progress::instance().attend(this);
  if (options_.inside) options_.inside->look_for_failure();
  const std::lock_guard lock(bound_mutex_);
  for (const auto* others : {&bound_, &heirs_})
    for (Engine* other : *others) other->fail_all(error_);
}

void Engine::write_board(const Error& error) {
  fsccl_transport_failure_t board{};
  board.code = error.code;
  board.rank = known_as(rank_);
  board.peer = error.peer;
  std::memcpy(board.text, error.text.data(), std::min(error.text.size(), sizeof board.text - 1));
  transport_.fail(channel_, &board);
}

void Engine::look_for_failure() noexcept {
  const fsccl_transport_failure_t* board = transport_.failure(channel_);
  if (!board || failed()) return;
  Error error;
  error.rank = known_as(rank_);
  error.code = board->code < 0 ? static_cast<fsccl_status_t>(board->code) : FSCCL_ERR_PROTOCOL;
  error.peer = board->peer == error.rank || board->peer < 0 ? board->rank : board->peer;
  try {
    error.text.assign(board->text, strnlen(board->text, sizeof board->text));
  } catch (const std::bad_alloc&) {
    error.text = "another failed";  // fits into the string itself
  }
  fail_with(error);
}

// Who drives meanwhile learns of a death from the failure alone: all say of it what is said here.
void Engine::lost(int rank, bool left, const std::string& silence) noexcept {
  if (left) {
    departed_[static_cast<size_t>(rank)].store(true, std::memory_order_release);
  } else {  // it may have ended because another died, of which it was the first to tell
    if (transport_.hear_out) transport_.hear_out(channel_);
    look_for_failure();
  }
  // Behind that failure, so that it does not look like the cause.
  record(left ? recording::Event::left : recording::Event::lost, {},
         options_.members[static_cast<size_t>(rank)]);
  if (left) return;
  if (failed()) return;
  Error error;
  error.code = FSCCL_ERR_PEER_DEAD;
  error.rank = known_as(rank_);
  error.peer = known_as(rank);
  try {
    error.text = fmt::format("rank {} of '{}' {}{}", error.peer, options_.name,
                             silence.empty() ? "died" : "is dead: ", silence);
  } catch (const std::bad_alloc&) {
    error.text = "a rank died";  // fits into the string itself
  }
  fail_all(error);
}

Status Engine::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return Status(error_);
}

Status Engine::intact() {
  look_for_failure();
  return failed() ? failure() : success();
}

fsccl_status_t Engine::failure_code() const {
  const std::lock_guard lock(failure_mutex_);
  return error_.code;
}

bool Engine::being_driven() {
  const auto driven = [](const Engine& engine) {
    return engine.driving_.load(std::memory_order_acquire);
  };
  if (driven(*this)) return true;
  const std::lock_guard lock(bound_mutex_);
  return std::any_of(bound_.begin(), bound_.end(),
                     [&](const Engine* other) { return driven(*other); });
}

// They leave after their present step, or when they next look up from their sleep.
void Engine::await_drivers() {
  wait_until([this] { return look_back(); }, Deadline::in_ms(kDriversMs), kNothingBreaks,
             Naps(kTakeOverNapNs));
}

// The engine has failed or has nothing under way, so whoever drives it leaves soon.
void Engine::retire() {
  wait_until([this] { return try_drive(); }, Deadline::never(), kNothingBreaks,
             Naps(kTakeOverNapNs));
  // else the next to drive looks at an operation
  looked_back_.store(true, std::memory_order_release);
  driving_.store(false, std::memory_order_release);
}

bool Engine::look_back() noexcept {
  if (being_driven()) return false;
  if (looked_back_.load(std::memory_order_acquire)) return true;
  if (!try_drive()) return false;
  try {
    while (!looked_back_.load(std::memory_order_relaxed) && under_way() &&
           Executor(*this, at_head()).has_come())
      complete(at_head().fingerprint);
  } catch (const std::bad_alloc&) {  // then it has failed, as it was
  }
  looked_back_.store(true, std::memory_order_release);
  driving_.store(false, std::memory_order_release);
  return true;
}

void Engine::bind(Engine& part) {
  part.sites_.set(sites_.key());
  for (Engine* one : {this, &part}) {
    const std::lock_guard lock(one->bound_mutex_);
    one->bound_.push_back(one == this ? &part : this);
  }
  if (failed()) part.fail_all(failure().error());
}

void Engine::set_site(uint64_t key) {
  sites_.set(key);
  const std::lock_guard lock(bound_mutex_);
  for (Engine* part : bound_) part->sites_.set(key);
}

void Engine::make_heir(Engine& heir) {
  {
    const std::lock_guard lock(bound_mutex_);
    heirs_.push_back(&heir);
  }
  if (failed()) heir.fail_all(failure().error());
}

void Engine::disinherit(const Engine& heir) {
  const std::lock_guard lock(bound_mutex_);
  const auto found = std::find(heirs_.begin(), heirs_.end(), &heir);
  if (found != heirs_.end()) heirs_.erase(found);
}

void Engine::unbind() {
  std::vector<Engine*> parts;
  {
    const std::lock_guard lock(bound_mutex_);
    parts.swap(bound_);
  }
  for (Engine* part : parts) {
    const std::lock_guard lock(part->bound_mutex_);
    std::erase(part->bound_, this);
  }
}

}  // namespace fsccl
