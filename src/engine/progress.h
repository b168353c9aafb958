// Moves on operations for which no thread waits. The service thread visits the engines that have
// such operations. It sleeps on all the words at once on which they are blocked (futex_waitv, Linux
// 5.16); without that system call it sleeps in short slices.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/immortal.h"
#include "base/threads.h"
#include "fsccl/transport.h"

namespace fsccl {

class Engine;

// The kernel's struct futex_waitv, which older headers do not have.
struct FutexWait {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};

class Progress {
 public:
  static Progress& instance();
  // Announces one more engine to attend, until it is forgotten. It allocates now what that needs.
  void expect();
  // Attends `engine`, which has an operation for which its submitter does not wait.
  void attend(Engine* engine);
  // Forgets the engine. After the return the service thread does not touch it any more.
  void forget(Engine* engine);
  // Waits until the service thread sleeps on no word on which it slept before. After that the
  // memory in which failed operations waited may be freed.
  void end_old_sleeps();

 private:
  friend class Immortal<Progress>;
  Progress();
  int64_t visit();
  bool move_on(uint32_t kicks);
  void sleep(uint32_t kicks);
  void end_sleep();

  std::mutex mutex_;
  // A visit has ended. Visits may follow each other at once, and a thread that waits for the end of
  // one need not get the mutex between two.
  Condition ended_;
  std::vector<Engine*> engines_;
  size_t expected_ = 0;
  bool visiting_ = false;
  uint64_t visits_ = 0;
  // Only the visitor uses the following. It writes the engines under the mutex.
  std::vector<Engine*> visited_;
  std::vector<fsccl_transport_word_t> words_;
  std::vector<FutexWait> entries_;
  int hook_ = -1;
  uint32_t kicks_ = 0;  // a futex that grows at each attend()
  uint32_t sleeping_ = 0;
};

}  // namespace fsccl
