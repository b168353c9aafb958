// A communicator of NCCL, on one GPU. It is made without blocking, so that the caller's deadline
// and the loss of a rank end the wait; the same holds for every call after it: what NCCL says it is
// still doing is waited for here.
//
// It ends in one of two ways: by its destructor, when all its work is done, or by end(), at once,
// whatever hangs. After end() it takes nothing more. Neither waits without a bound: what NCCL
// cannot end (gathers by copy engines wait for a rank that has died) is left behind with its
// communicator, in a thread that waits for it. Calls hold the lock of `use()`, so that nothing is
// freed under them.
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
    ncclUniqueId id{};  // rank 0's
    int rank = 0, ranks = 1;
    bool copy_engines = false;  // prefer them to kernels
    bool can_revoke = false;
    // blocks of a kernel: as many multiprocessors as it may take
    int most_ctas = kConfigUndefined;
    int64_t timeout_ms = 0, start_ms = 0;  // timeout of every wait, and of the wait in create()
    // an error when the others need not be waited for any more; any thread
    std::function<Status()> broken;
    // told of a group that has ended the communicator: the others may wait for it
    std::function<void(const Status&)> refused;
  };
  static Result<ncclUniqueId> make_id(const Library& library);
  // Collective over the ranks of the id, blocking.
  static Result<std::unique_ptr<Communicator>> create(Request request);
  ~Communicator();
  // Does the work of the destructor before it. Returns false if NCCL has not come back, and streams
  // may still use memory.
  bool finish();
  Communicator(const Communicator&) = delete;

  const Library& library() const { return *request_.library; }
  const cuda::Device& device() const { return *request_.device; }
  int rank() const { return request_.rank; }
  int ranks() const { return request_.ranks; }
  ncclComm_t handle() const { return comm_; }

  // Runs issue(), which enqueues, as one group of NCCL under the lock, and waits until NCCL has
  // taken it. The caller holds a Current. After an error of NCCL's the communicator has ended.
  Status group(const std::function<Status()>& issue);
  // The share of one communicator in a group of several, issued from this thread in this order,
  // which must be the same on all ranks: NCCL before 2.26 wants one order of all work that a
  // process puts on a GPU. After an error of one communicator all of them have ended.
  struct Share {
    Communicator* comm;
    std::function<Status()> issue;  // sees to its Current
    Status outcome;
  };
  static void group(std::span<Share> shares);
  Status check(const char* operation, ncclResult_t code) const;  // checks a call inside issue()

  // The memory's offset is then the same on all ranks, and NCCL may use windows for what lies in
  // it. It is one piece of physical memory: NCCL before 2.30.7 takes the first one for the whole.
  // Collective, blocking; `bytes` is the same on all ranks. FSCCL_ERR_NOT_AVAILABLE: NCCL has taken
  // the call for nothing, and everything works as before. After any other error it takes nothing
  // more, for NCCL keeps an error of a communicator for good; what is on streams ends.
  Status register_window(void* memory, size_t bytes);
  // not collective, when what this rank has put on streams with it is over
  void close_window(void* memory);
  bool in_window(const void* memory, size_t bytes) const;       // all of it
  bool touches_window(const void* memory, size_t bytes) const;  // any of it

  // Returns the error that NCCL has found by itself since.
  Status look();
  // At once, whatever hangs; every later call is `why`. Any thread, does not block.
  void end(const Status& why) noexcept;
  // The load pairs with the stores in give_up() and end(): who sees it ended may ask why.
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
  bool refused_ = false;  // a window, and so all that would come
  std::vector<Registered> windows_;
  ncclWindow_t new_window_ = nullptr;  // window of a registration in flight
  std::shared_future<void> freed_;
  std::thread ender_;  // thread of end(), whose caller must not wait for a call in flight
};

}  // namespace fsccl::nccl
