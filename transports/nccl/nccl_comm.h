// A communicator of NCCL on one GPU. NCCL makes it without blocking, and this class waits until
// NCCL is done, so that the caller's deadline and the loss of a rank end the wait. The same holds
// for every later call that NCCL answers with ncclInProgress.
//
// A communicator ends in one of two ways: by its destructor, when all its work is done, or by
// end(), at once, even if NCCL hangs. After end() every call fails. Neither of the two waits
// without a bound: work that NCCL cannot end (such as a gather by copy engines that waits for a
// dead rank) is left behind with its communicator, in a thread that waits for it. Calls of NCCL
// hold `mutex_`, so that the communicator is not freed during a call.
#pragma once
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cuda/device.h"
#include "transports/nccl/nccl_features.h"
#include "transports/nccl/nccl_library.h"

namespace fsccl::nccl {

class Communicator {
 public:
  struct Request {
    const Library* library = nullptr;
    const cuda::Device* device = nullptr;
    ncclUniqueId id{};  // the id that rank 0 made
    int rank = 0, ranks = 1;
    bool copy_engines = false;  // prefer copy engines to kernels
    bool can_revoke = false;
    // The most blocks, and so multiprocessors, that a kernel of NCCL may take.
    int most_ctas = kConfigUndefined;
    int64_t timeout_ms = 0, start_ms = 0;  // `start_ms`: timeout of the wait in create()
    // Returns an error if the other ranks need not be waited for any more. Any thread may call it.
    std::function<Status()> broken;
    // Is called if a group has failed and thereby ended the communicator, because the other ranks
    // may wait for this one.
    std::function<void(const Status&)> refused;
  };
  static Result<ncclUniqueId> make_id(const Library& library);
  // Makes a communicator. All ranks of the id must call it; it waits for them.
  static Result<std::unique_ptr<Communicator>> create(Request request);
  ~Communicator();
  // Does the work of the destructor earlier. Returns false if NCCL has not come back in time;
  // streams may then still use memory.
  bool finish();
  Communicator(const Communicator&) = delete;

  const Library& library() const { return *request_.library; }
  const cuda::Device& device() const { return *request_.device; }
  int rank() const { return request_.rank; }
  int ranks() const { return request_.ranks; }
  ncclComm_t handle() const { return comm_; }

  // Runs issue(), which calls collectives of NCCL, as one group under the lock, and waits until
  // NCCL has enqueued it. The caller holds a Current. After an error of NCCL the communicator has
  // ended.
  Status group(const std::function<Status()>& issue);
  // The share of one communicator in a group of several communicators. This thread issues the
  // shares in their order, which must be the same on all ranks, because NCCL before 2.26 needs one
  // order of all work that a process puts on a GPU. After an error of one communicator all of them
  // have ended.
  struct Share {
    Communicator* comm;
    std::function<Status()> issue;  // makes the device current by itself
    Status outcome;
  };
  static void group(std::span<Share> shares);
  Status check(const char* operation, ncclResult_t code) const;  // checks a call inside issue()

  // Registers memory as a window, so that NCCL may use its symmetric kernels for buffers in it. All
  // ranks must call this with the same `bytes`; it waits for them. A buffer must have the same
  // offset in the window on all ranks. The memory must be one piece of physical memory, because
  // NCCL before 2.30.7 takes the first piece for the whole. Returns FSCCL_ERR_NOT_AVAILABLE if NCCL
  // makes no windows here; everything works as before then. After any other error this communicator
  // takes no further calls, because NCCL keeps an error of a communicator for good; work that is
  // already on streams still ends.
  Status register_window(void* memory, size_t bytes);
  // Closes a window. It is not collective. Work of this rank that uses the window must be over.
  void close_window(void* memory);
  bool in_window(const void* memory, size_t bytes) const;       // true if all of it is
  bool touches_window(const void* memory, size_t bytes) const;  // true if any of it is

  // Returns an error that NCCL has found by itself in the meantime, or why the communicator has
  // ended.
  Status look();
  // Ends the communicator at once, even if NCCL hangs. Every later call returns `why`. Any thread
  // may call it, and it does not block.
  void end(const Status& why) noexcept;
  // This load pairs with the stores in give_up() and end(): a thread that sees true may call
  // why_ended().
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  Status why_ended() const;

 private:
  explicit Communicator(Request request) : request_(std::move(request)) {}
  static void enqueue(std::span<Share> shares);
  Status wait_over(const char* operation, ncclResult_t code, int64_t timeout_ms);
  ncclResult_t state() const;
  void join() const;
  void give_up(const Status& why) noexcept;
  void close();
  void stop();
  void free_comm();
  int64_t patience_ms() const;
  bool in_time(const std::shared_future<void>& over) const;
  struct Registered {
    const char* base;
    size_t bytes;
    ncclWindow_t window;
  };

  Request request_;
  ncclComm_t comm_ = nullptr;
  std::mutex mutex_;  // guards calls on comm_
  mutable std::mutex why_mutex_;
  Status why_;
  std::atomic<bool> ended_{false};
  bool refused_ = false;  // NCCL has refused a window, so every later call fails
  std::vector<Registered> windows_;
  ncclWindow_t new_window_ = nullptr;  // the window of a registration in flight
  std::shared_future<void> freed_;
  std::thread ender_;  // the thread in which end() waits for a call in flight
};

}  // namespace fsccl::nccl
