#include "engine/failure.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "base/short_text.h"
#include "bootstrap/job.h"
#include "engine/engine.h"
#include "record/metrics.h"
#include "wire/told.h"

namespace fsccl {

Error error_without_memory(int rank, const std::string& name) {
  Error error;
  error.code = FSCCL_ERR_OUT_OF_MEMORY;
  error.rank = error.peer = rank;
  error.text = fmt::format(
      "rank {} of '{}' got no memory from the system for the library's own data, in the middle of "
      "a call; free some, or raise the limit of the container",
      rank, name);
  return error;
}

void write_board(Channel& channel, int rank, const Error& error) {
  fsccl_transport_failure_t board{};
  board.code = error.code;
  board.rank = rank;
  board.peer = error.peer;
  std::memcpy(board.text, error.text.data(), std::min(error.text.size(), sizeof board.text - 1));
  channel.fail(board);
}

EngineFailure::EngineFailure(const EngineOptions& options, Engine& engine, Queue& queue)
    : options_(options),
      engine_(engine),
      queue_(queue),
      no_memory_(error_without_memory(known_as(options.rank), options.name)),
      left_(static_cast<size_t>(options.ranks)) {}

Status EngineFailure::status() const {
  const std::lock_guard lock(mutex_);
  return Status(error_);
}

fsccl_status_t EngineFailure::code() const {
  const std::lock_guard lock(mutex_);
  return error_.code;
}

Status EngineFailure::intact() {
  look();
  return failed() ? status() : success();
}

void EngineFailure::fail_all(const Error& error) noexcept {
  try {
    Error copy = error;
    fail_with(copy);
  } catch (const std::bad_alloc&) {
    fail_without_memory();
  }
}

// Fails with an error that was made in advance, in place of the caller's, for which there may be no
// memory.
void EngineFailure::fail_without_memory() noexcept { fail_with(no_memory_); }

void EngineFailure::broken(const char* rule, const char* file, int line) noexcept {
  try {
    Error error;
    error.code = FSCCL_ERR_INTERNAL;
    error.rank = error.peer = known_as(options_.rank);
    error.text = fmt::format(
        "a defect of FSCCL on rank {} of '{}': the rule `{}` does not hold ({}:{}). The "
        "communicator cannot be used any more; please report it with the recordings of "
        "FSCCL_TRACE_DIR",
        error.rank, options_.name, rule, file, line);
    FSCCL_LOG(kError, "{}", error.text);
    fail_with(error);
  } catch (const std::bad_alloc&) {
    fail_without_memory();
  }
}

// Takes no memory, so it works in every state of the process.
void EngineFailure::fail_with(Error& error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failed_.load(std::memory_order_relaxed)) return;
    error_ = std::move(error);
    // The failure is recorded before any thread can see it, so that its consequences come after it
    // in the recording.
    if (options_.recorder)
      options_.recorder->failed(options_.recorded_as, error_, queue_.completed() + 1);
    // The boards are written next. From then on transports begin to write to no buffer. A caller
    // gets its buffers back when Engine::look_back() has waited for what had begun before.
    tell_others(error_);
    const std::lock_guard bound_lock(bound_mutex_);
    for (const auto* others : {&bound_, &heirs_})
      for (EngineFailure* other : *others) other->tell_others(error_);
    // The counter is incremented before any thread can see the failure and ask for the number.
    count_failure(error_.code);
    // This store pairs with the load in failed().
    failed_.store(true, std::memory_order_release);
  }
  if (queue_.notifications.all_due()) Progress::instance().attend(&engine_);
  if (options_.inside) options_.inside->look_for_failure();
  const std::lock_guard lock(bound_mutex_);
  for (const auto* others : {&bound_, &heirs_})
    for (EngineFailure* other : *others) other->fail_all(error_);
}

void EngineFailure::tell_others(const Error& error) {
  write_board(*options_.channel, known_as(options_.rank), error);
}

void EngineFailure::look() noexcept {
  const fsccl_transport_failure_t* board = options_.channel->failure();
  if (!board || failed()) return;
  Error error;
  error.rank = known_as(options_.rank);
  error.code = told_code(board->code);
  error.peer = board->peer == error.rank || board->peer < 0 ? board->rank : board->peer;
  try {
    error.text = told_text({board->text, sizeof board->text});
    if (error.code == FSCCL_ERR_LINK) explain_by_death(error);
  } catch (const std::bad_alloc&) {
    error.text = short_text("a rank failed");
  }
  fail_with(error);
}

// Explains a broken connection by the death of a rank, if it died. A connection breaks without a
// goodbye when the process at the other end dies, and also when the network fails. The job may not
// know of the death yet, because the rank that would have reported it has left.
void EngineFailure::explain_by_death(Error& error) const {
  for (int rank = 0; rank < options_.ranks; rank++) {
    if (known_as(rank) != error.peer || rank == options_.rank) continue;
    if (!options_.job || !options_.job->nobody_listens(options_.members[static_cast<size_t>(rank)]))
      return;
    error.code = FSCCL_ERR_PEER_DEAD;
    error.text = fmt::format("rank {} of '{}' died: {}", error.peer, options_.name, error.text);
    return;
  }
}

// Handles the loss of a rank. A thread that drives meanwhile learns of a death from the failure
// alone, so all threads report the death with the text that is made in this function.
void EngineFailure::lost(int rank, bool left, const std::string& silence) noexcept {
  if (left) {
    // This store pairs with the load in has_left().
    left_[static_cast<size_t>(rank)].store(true, std::memory_order_release);
  } else {
    // The rank may have ended because another one died, and have been the first to report that
    // death, so its report is looked for first.
    options_.channel->hear_out();
    look();
  }
  // The loss is recorded after that failure, so that it does not look like its cause.
  if (options_.recorder)
    options_.recorder->record(left ? recording::Event::left : recording::Event::lost,
                              options_.recorded_as, {},
                              options_.members[static_cast<size_t>(rank)]);
  if (left || failed()) return;
  Error error;
  error.code = FSCCL_ERR_PEER_DEAD;
  error.rank = known_as(options_.rank);
  error.peer = known_as(rank);
  try {
    error.text = fmt::format("rank {} of '{}' {}{}", error.peer, options_.name,
                             silence.empty() ? "died" : "is dead: ", silence);
  } catch (const std::bad_alloc&) {
    error.text = short_text("a rank died");
  }
  fail_all(error);
}

bool EngineFailure::being_driven() {
  if (queue_.driven()) return true;
  const std::lock_guard lock(bound_mutex_);
  return std::any_of(bound_.begin(), bound_.end(),
                     [](const EngineFailure* other) { return other->queue_.driven(); });
}

// The part's list comes first. If there is no memory for an entry of this engine's list, no other
// engine knows the part, and the part ends.
void EngineFailure::bind(EngineFailure& part) {
  for (EngineFailure* one : {&part, this}) {
    const std::lock_guard lock(one->bound_mutex_);
    one->bound_.push_back(one == this ? &part : this);
  }
  if (failed()) part.fail_all(status().error());
}

void EngineFailure::make_heir(EngineFailure& heir) {
  {
    const std::lock_guard lock(bound_mutex_);
    heirs_.push_back(&heir);
  }
  if (failed()) heir.fail_all(status().error());
}

void EngineFailure::disinherit(const EngineFailure& heir) {
  const std::lock_guard lock(bound_mutex_);
  const auto found = std::find(heirs_.begin(), heirs_.end(), &heir);
  if (found != heirs_.end()) heirs_.erase(found);
}

void EngineFailure::unbind() {
  std::vector<EngineFailure*> parts;
  {
    const std::lock_guard lock(bound_mutex_);
    parts.swap(bound_);
  }
  for (EngineFailure* part : parts) {
    const std::lock_guard lock(part->bound_mutex_);
    std::erase(part->bound_, this);
  }
}

}  // namespace fsccl
