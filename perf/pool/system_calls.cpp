#include "perf/pool/system_calls.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace fsccl::perf {
namespace {

pid_t wait_for(pid_t child, int* status) {
  pid_t got = 0;
  do got = waitpid(child, status, 0);
  while (got < 0 && errno == EINTR);
  return got;
}

enum class Child : uint8_t {
  kGood,  // has ended well
  kGone,  // has ended otherwise or was never there; its number may be another process's by now
  kThere  // cannot be traced, but must still be ended
};

// Lets the child run from stop to stop until it has ended, and counts its system calls.
Child follow(pid_t child, const std::atomic<int>& counting, uint64_t* calls) {
  int status = 0;
  if (wait_for(child, &status) != child || !WIFSTOPPED(status)) return Child::kGone;
  if (ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) != 0)
    return Child::kThere;
  bool entering = true;
  int signal = 0;
  while (true) {
    if (ptrace(PTRACE_SYSCALL, child, nullptr, signal) != 0) return Child::kThere;
    if (wait_for(child, &status) != child) return Child::kGone;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return Child::kGood;
    if (!WIFSTOPPED(status)) return Child::kGone;
    signal =
        WSTOPSIG(status) == (SIGTRAP | 0x80) || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status);
    if (WSTOPSIG(status) != (SIGTRAP | 0x80)) continue;
    if (entering && counting.load()) ++*calls;
    entering = !entering;
  }
}

}  // namespace

std::optional<uint64_t> count_system_calls(const std::function<bool(const CallCounter&)>& work) {
  void* page = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return std::nullopt;
  auto* counting = new (page) std::atomic<int>(0);
  const pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(2);
    raise(SIGSTOP);
    const bool good = work(
        {.begin = [counting] { counting->store(1); }, .end = [counting] { counting->store(0); }});
    _exit(good ? 0 : 1);
  }
  uint64_t calls = 0;
  const Child end = child > 0 ? follow(child, *counting, &calls) : Child::kGone;
  if (end == Child::kThere) {
    kill(child, SIGKILL);
    int status = 0;
    wait_for(child, &status);
  }
  munmap(page, sizeof(std::atomic<int>));
  return end == Child::kGood ? std::optional(calls) : std::nullopt;
}

}  // namespace fsccl::perf
