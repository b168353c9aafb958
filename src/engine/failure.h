// The failure of an engine. An engine fails by an error of its own, by an error that another rank
// has written to the failure board of the channel, by the loss of a rank, or because an invariant
// does not hold. The first error stays, and every wait of the engine ends with it.
//
// Failure propagation. Two engines that are bound fail together. An engine may also have children,
// its heirs: a heir fails when its parent fails, but the parent does not fail when a heir does. In
// both cases the board of the other channel is written before any thread can see that this engine
// has failed. So a thread that sees the failure also finds the other engines failed.
#pragma once
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "base/invariant.h"
#include "base/status.h"
#include "engine/engine_options.h"

namespace fsccl {

class Engine;
class Queue;

// Returns the error of a rank that gets no memory in the middle of an operation or of a call.
Error error_without_memory(int rank, const std::string& name);
// Writes an error of rank `rank` to the board of the channel. Allocates nothing.
void write_board(Channel& channel, int rank, const Error& error);

class EngineFailure final : public InvariantGuard {
 public:
  // `queue` is the engine's. Threads that are to be notified of its operations are told of a
  // failure.
  EngineFailure(const EngineOptions& options, Engine& engine, Queue& queue);

  // The acquire pairs with the release in fail_with(): a reader that sees the failure sees the
  // error.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Status status() const;
  fsccl_status_t code() const;  // the code of status(); allocates nothing
  // Returns the failure of this engine, its own or one that another rank has published. Returns
  // success while there is none. Any thread.
  Status intact();

  // Ends this communicator on all ranks with this error. Any thread.
  void fail_all(const Error& error) noexcept;
  // Does the same for lack of memory, and allocates nothing.
  void fail_without_memory() noexcept;
  void broken(const char* rule, const char* file, int line) noexcept override;
  // Takes over a failure that another rank has written to the board. Any thread.
  void look() noexcept;
  // Notes that rank `rank` was lost. Either it died, or it left, which is an error only for an
  // operation that waits for it. `silence` is a text for the error about its silence.
  void lost(int rank, bool left, const std::string& silence) noexcept;
  // Returns true if the job has said that the rank left.
  bool has_left(int rank) const {
    // This load pairs with the store in lost().
    return left_[static_cast<size_t>(rank)].load(std::memory_order_acquire);
  }

  // Binds two engines until unbind().
  void bind(EngineFailure& part);
  void unbind();
  // Makes an heir, until disinherit() has been called as often.
  void make_heir(EngineFailure& heir);
  void disinherit(const EngineFailure& heir);
  // Calls visit(engine) for each engine that is bound to this one.
  template <class Visit>
  void each_bound(const Visit& visit) {
    const std::lock_guard lock(bound_mutex_);
    for (EngineFailure* one : bound_) visit(one->engine_);
  }
  // Returns true if a thread drives this engine or one that is bound to it. Such a thread may still
  // touch buffers of operations that have failed.
  bool being_driven();

 private:
  void fail_with(Error& error) noexcept;  // takes the error over
  void tell_others(const Error& error);
  void explain_by_death(Error& error) const;
  int known_as(int rank) const { return options_.known_as(rank); }

  const EngineOptions& options_;
  Engine& engine_;
  Queue& queue_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // protects the error
  Error error_;
  Error no_memory_;                      // made in advance, when there was memory
  std::vector<std::atomic<bool>> left_;  // by rank
  std::mutex bound_mutex_;
  std::vector<EngineFailure*> bound_, heirs_;
};

}  // namespace fsccl
