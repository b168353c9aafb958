#include "launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "base/limits.h"
#include "fsccl/insight.h"
#include "own_path.h"
#include "processor_set.h"

namespace fsccl::perf {
namespace {

constexpr int kGraceSeconds = 15;  // time in which the other ranks notice that one failed

// Runs in the child between fork and exec, so it makes system calls only.
[[noreturn]] void become_rank(pid_t parent, int pipe, const std::vector<unsigned long>& cores,
                              const sigset_t& signals, const char* program,
                              char* const* arguments) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  if (!cores.empty() && sched_setaffinity(0, cores.size() * sizeof cores[0],
                                          reinterpret_cast<const cpu_set_t*>(cores.data()))) {
    constexpr char kText[] = "fsccl-perf: a rank cannot be bound to its core: use --bind none\n";
    (void)!write(STDERR_FILENO, kText, sizeof kText - 1);
  }
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  fcntl(pipe, F_SETFD, 0);
  execv(program, arguments);
  execv("/proc/self/exe", arguments);  // the name of the program may no longer exist
  constexpr char kText[] = "fsccl-perf: this program cannot be started again for a rank\n";
  (void)!write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(127);
}

struct Child {
  pid_t pid = -1;
  int rank = -1;
};

// Waits for all children; after a failure the others get kGraceSeconds to end by themselves.
int wait_for(std::vector<Child> running) {
  sigset_t child_ended;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  int result = 0;
  timespec deadline{};
  bool killed = false;
  while (!running.empty()) {
    for (size_t i = 0; i < running.size();) {
      int status = 0;
      if (waitpid(running[i].pid, &status, WNOHANG) != running[i].pid) {
        i++;
        continue;
      }
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
      if (WIFSIGNALED(status) && !killed)
        fmt::print(stderr, "fsccl-perf: rank {} was ended by signal {} ({})\n", running[i].rank,
                   WTERMSIG(status), strsignal(WTERMSIG(status)));
      if (code != 0 && result == 0) {
        result = code;
        clock_gettime(CLOCK_MONOTONIC, &deadline);
        deadline.tv_sec += kGraceSeconds;
      }
      running.erase(running.begin() + static_cast<ptrdiff_t>(i));
    }
    if (running.empty()) break;
    if (result == 0) {
      sigwaitinfo(&child_ended, nullptr);
      continue;
    }
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    const timespec left{deadline.tv_sec - now.tv_sec, 0};
    if (left.tv_sec > 0 && !killed) {
      sigtimedwait(&child_ended, nullptr, &left);
      continue;
    }
    if (!killed)
      fmt::print(stderr,
                 "fsccl-perf: ending {} ranks that still run {} s after another one failed\n",
                 running.size(), kGraceSeconds);
    for (const Child& child : running) kill(child.pid, SIGKILL);
    killed = true;
    sigwaitinfo(&child_ended, nullptr);
  }
  return result;
}

}  // namespace

bool parse_local_rank(const std::string& text, LocalRank* place) {
  const char *at = text.data(), *end = at + text.size();
  for (int* field : {&place->rank, &place->ranks, &place->pipe}) {
    const auto [rest, error] = std::from_chars(at, end, *field);
    if (error != std::errc()) return false;
    at = rest;
    if (field != &place->pipe) {
      if (at == end || *at != ':') return false;
      at++;
    }
  }
  return at == end && place->ranks >= 1 && place->rank >= 0 && place->rank < place->ranks &&
         place->pipe >= 0;
}

bool in_launcher_environment() {
  fsccl_launch_info_t info = FSCCL_LAUNCH_INFO_INIT;
  return fsccl_launcher(&info) != FSCCL_OK || info.launcher != nullptr;
}

int launch_local(int ranks, Binding binding, int argc, char** argv) {
  int ends[2];
  // The pipe has packets (O_DIRECT), so each id is read whole by one rank without framing.
  if (pipe2(ends, O_CLOEXEC | O_DIRECT) != 0) {
    fmt::print(stderr, "fsccl-perf: pipe: {}\n", strerror(errno));
    return 1;
  }
  sigset_t child_ended, before;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child_ended, &before);  // so that sigwaitinfo misses none
  std::vector<int> cores = affinity();
  if (binding == Binding::kCore && cores.empty())
    fmt::print(stderr,
               "fsccl-perf: --bind core has no effect: the system does not say on which "
               "cores this process may run\n");
  if (binding == Binding::kNone ||
      (binding == Binding::kAuto && cores.size() < static_cast<size_t>(ranks)))
    cores.clear();
  const pid_t parent = getpid();
  std::vector<Child> children;
  for (int rank = 0; rank < ranks; rank++) {
    const int pipe = ends[rank == 0 ? 1 : 0];
    std::string place = fmt::format("--local-place={}:{}:{}", rank, ranks, pipe);
    std::vector<char*> arguments = {argv[0], place.data()};
    for (int i = 1; i < argc; i++) arguments.push_back(argv[i]);
    arguments.push_back(nullptr);
    std::vector<unsigned long> core;  // empty: the rank is not bound
    if (!cores.empty()) core = only_processor(cores[static_cast<size_t>(rank) % cores.size()]);
    const pid_t pid = fork();
    if (pid == 0) become_rank(parent, pipe, core, before, own_path(), arguments.data());
    if (pid < 0) {
      fmt::print(stderr, "fsccl-perf: fork of rank {}: {}\n", rank, strerror(errno));
      for (const Child& child : children) kill(child.pid, SIGKILL);
      wait_for(children);
      return 1;
    }
    children.push_back({pid, rank});
  }
  close(ends[0]);
  close(ends[1]);
  return wait_for(std::move(children));
}

bool exchange_unique_id(const LocalRank& place, fsccl_unique_id_t* id) {
  bool good = true;
  if (place.rank == 0) {
    signal(SIGPIPE, SIG_IGN);
    if (fsccl_unique_id_create(id) != FSCCL_OK) {
      fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
      fsccl_last_error(&info);
      fmt::print(stderr, "fsccl-perf: rank 0: {}\n", info.text);
      good = false;
    }
    for (int rank = 1; good && rank < place.ranks; rank++)
      while (write(place.pipe, id, sizeof *id) != static_cast<ssize_t>(sizeof *id))
        if (errno != EINTR) {
          fmt::print(stderr,
                     "fsccl-perf: rank 0: the other ranks went away before they joined: {}\n",
                     strerror(errno));
          good = false;
          break;
        }
  } else {
    ssize_t got = 0;
    do got = read(place.pipe, id, sizeof *id);
    while (got < 0 && errno == EINTR);
    good = got == static_cast<ssize_t>(sizeof *id);
    if (!good)
      fmt::print(stderr, "fsccl-perf: rank {}: rank 0 went away before it gave the job's id\n",
                 place.rank);
  }
  close(place.pipe);
  return good;
}

}  // namespace fsccl::perf
