#include "pool/system_calls.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

namespace fsccl::perf {
namespace {

// Lets the child run from stop to stop until it has ended; true when it ended well.
bool follow(pid_t child, const std::atomic<int>& counting, uint64_t* calls) {
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return false;
  if (ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) != 0) return false;
  bool entering = true;
  int signal = 0;
  while (true) {
    if (ptrace(PTRACE_SYSCALL, child, nullptr, signal) != 0) return false;
    if (waitpid(child, &status, 0) != child) return false;
    if (WIFEXITED(status)) return WEXITSTATUS(status) == 0;
    if (!WIFSTOPPED(status)) return false;
    signal = WSTOPSIG(status) == (SIGTRAP | 0x80) || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status);
    if (WSTOPSIG(status) != (SIGTRAP | 0x80)) continue;
    if (entering && counting.load()) ++*calls;
    entering = !entering;
  }
}

}  // namespace

std::optional<uint64_t> count_system_calls(const std::function<bool(const CallCounter&)>& work) {
  void* page = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return std::nullopt;
  auto* counting = new (page) std::atomic<int>(0);
  const pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(2);
    raise(SIGSTOP);
    const bool good = work({.begin = [counting] { counting->store(1); }, .end = [counting] { counting->store(0); }});
    _exit(good ? 0 : 1);
  }
  uint64_t calls = 0;
  const bool good = child > 0 && follow(child, *counting, &calls);
  if (child > 0 && !good) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  munmap(page, sizeof(std::atomic<int>));
  return good ? std::optional(calls) : std::nullopt;
}

}  // namespace fsccl::perf
