// The engine of a communicator: a queue of operations, run in order by whoever drives it. Submitting runs an operation in the
// calling thread until a peer is not there yet; after that any waiter of the process, or the service thread, moves it on. One flag
// (`driving_`) decides who; nothing is handed over just to be asynchronous.
//
// Order. One thread at a time submits (the API's rule), so `tail_` has one writer; the driver alone advances `head_`. Operations of
// a communicator run one after the other: when one completes on a rank, every peer has entered it, so every peer has left the one
// before (plan.h, rule 1). That is why sixteen lines of signals are enough for any plan of at most eight ticks.
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/operation.h"
#include "fsccl/transport.h"

namespace fsccl {

struct EngineOptions {
  const fsccl_transport_ops_t* transport = nullptr;
  void* channel = nullptr;  // owned by the engine from here on
  uint32_t first_tick = 1;
  int rank = 0, ranks = 1;
  bool oversubscribed = false;  // more ranks than cores: do not spin
  int64_t timeout_ms = 0;
  int64_t spin_ns = 0;
  std::string name;
  const ArenaTable* arenas = nullptr;
  std::vector<int> members;        // ranks of the job, by rank
  std::vector<bool> same_process;  // per rank: its private memory is ours
};

class Engine {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const std::string& name() const { return options_.name; }
  const EngineOptions& options() const { return options_; }
  bool single_copy() const { return single_copy_; }
  std::byte* scratch(int rank, size_t* half_bytes) const;

  // The next free operation, with these settings; drives older ones while the ring is full. Sets its fingerprint's sequence.
  Status acquire(Operation** operation, const OperationSettings& settings, const Fingerprint& fingerprint);
  // Makes it run. With `wait` returns when it is complete; else complete or FSCCL_IN_PROGRESS in *state.
  Status submit(Operation& operation, bool wait, fsccl_status_t* state);

  uint64_t submitted() const { return tail_.load(std::memory_order_relaxed); }
  uint64_t completed() const { return head_.load(std::memory_order_acquire); }
  // Of the operation with this sequence number. test: OK, IN_PROGRESS or an error. wait: likewise, after at most timeout_ms
  // (negative: no limit of its own).
  Status test(uint64_t sequence, fsccl_status_t* state);
  Status wait(uint64_t sequence, int64_t timeout_ms, fsccl_status_t* state);

  // Ends this communicator on all ranks: every wait ends with this error. The first error stays. Any thread.
  void fail_all(const Error& error);
  // `rank` was lost (died, or left: then it is an error only for an operation that waits for it).
  void lost(int rank, bool left);
  // Takes over a failure that another rank has written to the board. Any thread.
  void look_for_failure();
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Status failure() const;

  const fsccl_counters_t& counters() const { return counters_; }
  fsccl_counters_t& counters() { return counters_; }

  // For the service thread (progress.h).
  bool unattended() const { return completed() < submitted() && !failed(); }
  enum class Attempt { idle, blocked, busy };
  Attempt try_progress(fsccl_transport_word_t* word);
  std::atomic<bool> attended{false};  // the service thread visits this engine

 private:
  friend class Executor;
  static constexpr uint64_t kRing = 64;
  enum class Outcome : uint8_t { done, blocked, failed };

  // What the blocked operation waits for.
  struct Blocked {
    const ReleaseLine* release = nullptr;  // else a tick
    uint64_t position = 0;
    int peer = 0;
    uint32_t tick = 0;
  };

  bool try_drive() { return !driving_.load(std::memory_order_relaxed) && !driving_.exchange(true, std::memory_order_acquire); }
  void stop_driving();
  Outcome drive();                         // runs operations from head_ on; driver only
  bool met(const Blocked& blocked) const;  // what we are blocked on has come
  bool wait_until(uint64_t sequence, int64_t until_ns);
  bool wait_driving(uint64_t sequence, int64_t until_ns);
  void sleep_blocked(int64_t until_ns);
  void check_blocked(Operation& operation);  // deadline, lost peers, the failure board
  void fill_word(const Blocked& blocked, fsccl_transport_word_t* word) const;
  std::string missing(const Operation& operation) const;

  EngineOptions options_;
  const fsccl_transport_ops_t& transport_;
  void* channel_;
  const int rank_, ranks_;
  bool single_copy_;

  alignas(64) std::atomic<bool> driving_{false};
  std::atomic<bool> missed_{false};  // somebody found us driving and left
  std::atomic<bool> failed_{false};
  alignas(64) std::atomic<uint64_t> head_{0};  // operations completed
  std::atomic<uint64_t> tail_{0};              // operations submitted
  uint32_t next_tick_;                         // of the next plan to run; the driver's
  Blocked blocked_;
  // What peers published with their enter signal of the operation at the head: [published buffer][rank].
  std::vector<Remote> remote_;
  std::unique_ptr<std::byte[]> window_;  // through which private memory of peers is reduced
  std::vector<const void*> sources_;
  std::array<Operation, kRing> ring_;
  fsccl_counters_t counters_ = FSCCL_COUNTERS_INIT;

  mutable std::mutex failure_mutex_;
  Error error_;
  std::vector<std::atomic<uint8_t>> lost_;  // per rank: 0, 1 died, 2 left
};

}  // namespace fsccl
