// Moves on operations that nobody waits for. The service thread visits the engines that have such operations, and sleeps on all the
// words they are blocked on at once (futex_waitv, Linux 5.16; else in short slices).
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

namespace fsccl {

class Engine;

class Progress {
 public:
  static Progress& instance();
  // `engine` has an operation that its submitter does not wait for. Cheap when it is attended already.
  void attend(Engine* engine);
  // After it returns the service thread does not touch the engine any more.
  void forget(Engine* engine);
  // After it returns the service thread sleeps on no word that it slept on before: memory that failed operations waited in may go.
  void settle();

 private:
  Progress() = default;
  int64_t visit();
  void sleep(const std::vector<struct Sleep>& words, uint32_t kicks);

  std::mutex mutex_;     // engines_
  std::mutex visiting_;  // held during a visit, with its sleep
  std::vector<Engine*> engines_;
  int hook_ = -1;
  uint32_t kicks_ = 0;  // grows at each attend; a futex
  uint32_t sleeping_ = 0;
};

}  // namespace fsccl
