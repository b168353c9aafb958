// The frame of tests with several real processes. A test program starts copies of itself, each in a
// role, reads what they print, and collects their exit codes before a deadline. Processes that are
// still there at the deadline are killed, so a test never hangs and leaves nothing behind.
//
//   int worker(const Child& child) { ... puts("joined"); return 0; }          // the exit code
//   const AddRoles example_roles{{"worker", worker}};
//   TEST(...) {
//     Processes processes;
//     for (int rank = 0; rank < 4; ++rank) processes.start("worker", rank, 4, {{"NAME", "value"}});
//     EXPECT_TRUE(processes.finish(20'000)) << processes.report();
//     EXPECT_EQ(processes.exit_code(2), 0);
//   }
#pragma once
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fsccl::testing {

struct Child {
  std::string role;
  int rank = 0;
  int ranks = 1;
};

using Roles = std::map<std::string, std::function<int(const Child&)>>;
using Variables = std::vector<std::pair<std::string, std::string>>;

// The roles of all files of this program.
inline Roles& known_roles() {
  static Roles roles;
  return roles;
}
// Adds the roles of a file to those of the program, in which a name means one role.
struct AddRoles {
  AddRoles(std::initializer_list<Roles::value_type> roles) {
    for (const Roles::value_type& role : roles)
      if (!known_roles().insert(role).second) {
        std::fprintf(stderr, "error: two roles are named %s: rename one\n", role.first.c_str());
        std::exit(2);
      }
  }
};

// Runs the role that the command line names and gives its exit code, or nothing when this is the
// test itself. A child dies with its parent.
inline std::optional<int> run_role(int argc, char** argv, const Roles& roles) {
  if (argc != 5 || std::strcmp(argv[1], "--role") != 0) return std::nullopt;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto found = roles.find(argv[2]);
  if (found == roles.end()) return 127;
  return found->second({argv[2], std::atoi(argv[3]), std::atoi(argv[4])});
}

// Returns the time limit of a test, or less if TEST_SECONDS sets a shorter one. The processes of a
// test are then ended.
inline int64_t limit_ms(int64_t otherwise) {
  const char* const given = std::getenv("TEST_SECONDS");
  return given ? std::min<int64_t>(otherwise, 1000 * std::atoll(given)) : otherwise;
}
// Returns the time after which a wait inside a test gives up, which is half of the limit, and says
// what it waited for.
inline int64_t patience_ms(int64_t otherwise) {
  return std::min(otherwise, limit_ms(2 * otherwise) / 2);
}

// Returns the environment of rank `rank` of a job of `ranks` ranks on this host.
inline Variables job(int rank, int ranks, int port, const char* single_copy = "auto") {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(ranks)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
          {"MASTER_PORT", std::to_string(port)},
          {"TORCHELASTIC_RUN_ID", std::to_string(getpid())},
          {"FSCCL_SINGLE_COPY", single_copy},
          {"FSCCL_TIMEOUT_MS", std::to_string(patience_ms(50'000))}};
}

// Returns `variables`, with those of `more` in the place of equal names.
inline Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) {
    std::erase_if(variables, [&, &key = name](const auto& one) { return one.first == key; });
    variables.emplace_back(name, value);
  }
  return variables;
}

// Returns variables for a rank that may share its GPU with others: NCCL takes each rank for a host
// of its own, because it refuses two ranks on one GPU. It then uses sockets and few blocks a
// kernel, so that the kernels of all ranks run at once.
inline Variables nccl_host(const std::string& name) {
  return {{"NCCL_HOSTID", name},
          {"NCCL_NET", "Socket"},
          {"NCCL_SOCKET_IFNAME", "lo"},
          {"NCCL_MAX_CTAS", "2"}};
}

class Processes {
 public:
  static constexpr int kRunning = -1;

  Processes() = default;
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  ~Processes() {
    kill_all();
    for (One& one : list_)
      if (one.output >= 0) close(one.output);
  }

  // Variables are set in the child in addition to this process's; one with the value "-" is
  // removed. Returns the child's index, which is also that of the rank when they are started in
  // order.
  int start(const std::string& role, int rank, int ranks, const Variables& variables = {}) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return fail("pipe2");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::string rank_text = std::to_string(rank), ranks_text = std::to_string(ranks),
                role_text = role, flag = "--role", program = "/proc/self/exe";
    char* const arguments[] = {program.data(),   flag.data(),       role_text.data(),
                               rank_text.data(), ranks_text.data(), nullptr};
    std::vector<std::string> environment = make_environment(variables);
    std::vector<char*> pointers;
    for (std::string& entry : environment) pointers.push_back(entry.data());
    pointers.push_back(nullptr);
    One one;
    const int error =
        posix_spawn(&one.pid, own_path().c_str(), &actions, nullptr, arguments, pointers.data());
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    one.output = ends[0];
    if (error != 0) {
      close(ends[0]);
      return fail("posix_spawn");
    }
    list_.push_back(std::move(one));
    return static_cast<int>(list_.size()) - 1;
  }

  // Waits until the child has printed `text`. Returns false if the child ended without it, or the
  // time is over.
  bool wait_for_output(int index, const std::string& text, int64_t timeout_ms) {
    const int64_t end = now_ms() + timeout_ms;
    while (output(index).find(text) == std::string::npos) {
      if (list_.at(static_cast<size_t>(index)).output < 0 || now_ms() >= end) return false;
      read_outputs(end);
    }
    return true;
  }

  // Waits for all children, and returns true if each has ended with code 0. After the deadline the
  // rest are killed.
  bool finish(int64_t timeout_ms) {
    const int64_t end = now_ms() + timeout_ms;
    while (now_ms() < end && read_outputs(end)) {
    }
    bool good = true;
    for (One& one : list_) {
      if (now_ms() >= end && one.output >= 0) {
        one.late = true;
        ::kill(one.pid, SIGKILL);
      }
      reap(one);
      good = good && one.code == 0;
    }
    return good;
  }

  void kill(int index, int signal_number) {
    ::kill(list_.at(static_cast<size_t>(index)).pid, signal_number);
  }
  pid_t pid(int index) const { return list_.at(static_cast<size_t>(index)).pid; }
  size_t count() const { return list_.size(); }
  // Returns, after finish(), the exit code, or 128 + the signal.
  int exit_code(int index) const { return list_.at(static_cast<size_t>(index)).code; }
  const std::string& output(int index) const { return list_.at(static_cast<size_t>(index)).text; }

  // Returns everything that went wrong and all that was printed, for a test's message.
  std::string report() const {
    std::string text = problems_;
    for (size_t i = 0; i < list_.size(); ++i) {
      const One& one = list_[i];
      char head[80];
      std::snprintf(head, sizeof(head), "[%zu] exit %d%s: ", i, one.code,
                    one.late ? " (killed after the deadline)" : "");
      text.append(head).append(one.text).append("\n");
    }
    return text;
  }

 private:
  struct One {
    pid_t pid = -1;
    int output = -1;  // closed when the child has closed its end
    int code = kRunning;
    bool late = false;
    std::string text;
  };

  static int64_t now_ms() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000;
  }

  static const std::string& own_path() {
    static const std::string path = [] {
      char buffer[4096];
      const ssize_t bytes = readlink("/proc/self/exe", buffer, sizeof(buffer));
      return std::string(buffer, bytes > 0 ? static_cast<size_t>(bytes) : 0);
    }();
    return path;
  }

  static std::vector<std::string> make_environment(const Variables& variables) {
    std::vector<std::string> result;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      bool replaced = false;
      for (const auto& [name, value] : variables)
        replaced = replaced || text.rfind(name + "=", 0) == 0;
      if (!replaced) result.push_back(text);
    }
    for (const auto& [name, value] : variables)
      if (value != "-") result.push_back(name + "=" + value);
    return result;
  }

  // Reads what is there, waiting for it until `end` at most. Returns false if all outputs are
  // closed.
  bool read_outputs(int64_t end) {
    std::vector<pollfd> polled;
    std::vector<One*> owners;
    for (One& one : list_) {
      if (one.output < 0) continue;
      polled.push_back({one.output, POLLIN, 0});
      owners.push_back(&one);
    }
    if (polled.empty()) return false;
    const int64_t left = end - now_ms();
    if (poll(polled.data(), polled.size(), left > 0 ? static_cast<int>(left) : 0) <= 0) return true;
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t bytes = read(polled[i].fd, buffer, sizeof(buffer));
      if (bytes > 0) {
        owners[i]->text.append(buffer, static_cast<size_t>(bytes));
      } else {
        close(polled[i].fd);
        owners[i]->output = -1;
      }
    }
    return true;
  }

  void reap(One& one) {
    if (one.code != kRunning) return;
    int status = 0;
    if (waitpid(one.pid, &status, 0) != one.pid) return;
    one.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  void kill_all() {
    for (One& one : list_)
      if (one.code == kRunning) ::kill(one.pid, SIGKILL);
    for (One& one : list_) reap(one);
  }

  int fail(const char* what) {
    problems_ += std::string(what) + ": " + std::strerror(errno) + "\n";
    return -1;
  }

  std::vector<One> list_;
  std::string problems_;
};

}  // namespace fsccl::testing
