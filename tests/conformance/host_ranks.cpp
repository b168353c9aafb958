// Ranks as processes on several hosts. If tests/hosts/hosts.py has made hosts (TEST_HOSTS),
// run_ranks() forks a process for each rank, which enters its host, before the library has been
// used in this process. Memory that a body writes stays in its process.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "support.h"

namespace fsccl::testing {
namespace {

std::vector<std::string> host_names() {
  std::vector<std::string> names;
  const char* const given = std::getenv("TEST_HOSTS");
  if (!given) return names;
  std::stringstream list(given);
  for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  if (names.size() == 1 && names[0][0] != '/')
    names.assign(static_cast<size_t>(std::atoi(given)), "");
  return names;
}

std::vector<int> placed_ranks;  // the host of each rank; set in the process of a rank only
int host_of_this = 0;

// Enters the network namespace of the host, or takes the host's name only if there are no network
// namespaces (`name` is empty).
void enter(const std::string& name, size_t host) {
  if (name.empty()) {
    EXPECT_OK(fsccl_config_set("FSCCL_HOST_ID", ("host " + std::to_string(host)).c_str()));
    return;
  }
  const int fd = open(name.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_TRUE(fd >= 0 && setns(fd, CLONE_NEWNET) == 0) << name << ": " << std::strerror(errno);
  close(fd);
}

}  // namespace

const std::vector<int>& host_of_ranks() { return placed_ranks; }
int own_host() { return host_of_this; }

size_t number_of_hosts() { return host_names().size(); }

int64_t bytes_sent() {
  std::ifstream counters("/proc/self/net/dev");
  const bool real = hosts_given() && !host_names()[0].empty();  // each has a network of its own
  for (std::string line; real && std::getline(counters, line);) {
    std::istringstream words(line);
    std::string name;
    if (!(words >> name) || name != "eth0:") continue;
    int64_t value = 0;
    for (int column = 0; column < 9; ++column) words >> value;
    return value;
  }
  return -1;
}

void run_ranks_on_hosts(int ranks, std::vector<int> placed,
                        const std::function<void(fsccl_unique_id_t*, int)>& run) {
  const std::vector<std::string> hosts = host_names();
  for (int rank = static_cast<int>(placed.size()); rank < ranks; ++rank)
    placed.push_back(rank * static_cast<int>(hosts.size()) / ranks);
  // Rank 0 writes the unique id into shared memory, and then closes the pipe to tell the others.
  void* const shared = mmap(nullptr, sizeof(fsccl_unique_id_t), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* const id = static_cast<fsccl_unique_id_t*>(shared);
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      alarm(seconds_of_a_test());
      placed_ranks = placed;
      host_of_this = placed[static_cast<size_t>(rank)];
      const auto host = static_cast<size_t>(placed[static_cast<size_t>(rank)]);
      enter(hosts.at(host), host);
      close(ready[rank == 0 ? 0 : 1]);
      char byte;
      if (rank == 0) {
        EXPECT_OK(fsccl_unique_id_create(id));
        close(ready[1]);
      } else if (read(ready[0], &byte, 1) != 0) {
        _exit(1);
      }
      run(id, rank);
      fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  close(ready[0]);
  close(ready[1]);
  for (size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    while (waitpid(children[rank], &status, 0) < 0 && errno == EINTR) {
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "rank " << rank << " ended with status " << status;
  }
  munmap(shared, sizeof *id);
}

}  // namespace fsccl::testing
