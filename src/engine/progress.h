// Moves on operations that nobody waits for. The service thread visits the engines that have such
// operations, and sleeps on all the words they are blocked on at once (futex_waitv, Linux 5.16;
// else in short slices).
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/immortal.h"
#include "base/threads.h"
#include "fsccl/transport.h"

namespace fsccl {

class Engine;

// The kernel's struct futex_waitv, which older headers lack.
struct FutexWait {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};

class Progress {
 public:
  static Progress& instance();
  // There will be one engine more to attend to, until it is forgotten: what that needs is allocated
  // now.
  void expect();
  // `engine` has an operation that its submitter does not wait for.
  void attend(Engine* engine);
  // After it returns the service thread does not touch the engine any more.
  void forget(Engine* engine);
  // After it returns the service thread sleeps on no word that it slept on before: memory that
  // failed operations waited in may go.
  void end_old_sleeps();

 private:
  friend class Immortal<Progress>;
  Progress();
  int64_t visit();
  bool move_on(uint32_t kicks);
  void sleep(uint32_t kicks);
  void end_sleep();

  std::mutex mutex_;
  // a visit; who waits for that need not get in between two, which may follow at once
  Condition ended_;
  std::vector<Engine*> engines_;
  size_t expected_ = 0;
  bool visiting_ = false;
  uint64_t visits_ = 0;
  // The visitor's own; the engines are written under the mutex.
  std::vector<Engine*> visited_;
  std::vector<fsccl_transport_word_t> words_;
  std::vector<FutexWait> entries_;
  int hook_ = -1;
  uint32_t kicks_ = 0;  // grows at each attend; a futex
  uint32_t sleeping_ = 0;
};

}  // namespace fsccl
