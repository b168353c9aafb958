// Compares the simulated start of a job with a real one, whose processes join by the library's own
// bootstrap over the system's sockets. This program defines some of the system's calls itself, to
// count what the processes send and open.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <thread>

#include "base/json_value.h"
#include "bootstrap/member_info.h"
#include "bootstrap/tree.h"
#include "bootstrap/unique_id.h"
#include "forecast/start/simulated_start.h"
#include "forecast/startup.h"
#include "transports/sim/sockets.h"

namespace {

constexpr int kMostDescriptors = 4096;

// Counts the messages and sockets of this process. Any thread may count.
struct Counts {
  std::mutex mutex;
  std::array<bool, kMostDescriptors> is_socket{};
  std::array<fsccl::sim::FrameReader, kMostDescriptors> frames;
  int64_t messages = 0, calls = 0;
  int sockets = 0, most_sockets = 0;

  int opened(int fd) {
    const std::lock_guard lock(mutex);
    calls++;
    if (fd < 0 || fd >= kMostDescriptors) return fd;
    is_socket[static_cast<size_t>(fd)] = true;
    frames[static_cast<size_t>(fd)] = {};
    most_sockets = std::max(most_sockets, ++sockets);
    return fd;
  }
  void closed(int fd) {
    const std::lock_guard lock(mutex);
    calls++;
    if (fd < 0 || fd >= kMostDescriptors || !is_socket[static_cast<size_t>(fd)]) return;
    is_socket[static_cast<size_t>(fd)] = false;
    sockets--;
  }
  void sent(int fd, const void* data, ssize_t bytes) {
    const std::lock_guard lock(mutex);
    calls++;
    if (bytes <= 0) return;
    const auto* const first = static_cast<const uint8_t*>(data);
    frames[static_cast<size_t>(fd)].read({first, first + bytes},
                                         [this](fsccl::FrameType) { messages++; });
  }
};
Counts& counts() {
  static auto* const one = new Counts;
  return *one;
}

}  // namespace

extern "C" int socket(int domain, int type, int protocol) {
  return counts().opened(static_cast<int>(syscall(SYS_socket, domain, type, protocol)));
}
extern "C" int accept4(int fd, sockaddr* address, socklen_t* bytes, int flags) {
  return counts().opened(static_cast<int>(syscall(SYS_accept4, fd, address, bytes, flags)));
}
extern "C" int close(int fd) {
  counts().closed(fd);
  return static_cast<int>(syscall(SYS_close, fd));
}
extern "C" ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  const ssize_t count = syscall(SYS_sendto, fd, data, bytes, flags, nullptr, 0);
  counts().sent(fd, data, count);
  return count;
}

namespace fsccl::forecast {
namespace {

using fsccl_simulated::SimulatedStart;
using fsccl_simulated::StartSetting;

constexpr int kMostRanks = 64;
constexpr int64_t kPatienceMs = 60'000;
constexpr double kLevelNs = 500'000;

struct RealRank {
  int order = -1;
  int64_t messages = 0, processor_ns = 0;
  int sockets = 0, most_sockets = 0;
};
// The memory that the processes of a real start share.
struct Shared {
  fsccl_unique_id_t id;
  std::atomic<int> ready, joined, counted;
  std::atomic<int64_t> began_ns, ended_ns;
  std::array<RealRank, kMostRanks> ranks;
};

int64_t processor_ns() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return (int64_t{use.ru_utime.tv_sec} + use.ru_stime.tv_sec) * 1'000'000'000 +
         (int64_t{use.ru_utime.tv_usec} + use.ru_stime.tv_usec) * 1000;
}

void wait_for(const std::atomic<int>& value, int least) {
  const Deadline deadline = Deadline::in_ms(kPatienceMs);
  while (value < least && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::microseconds(100));
}

// Runs a rank. The first `per_host` ranks are on this host. The others seem to be on other hosts,
// `per_host` ranks on each.
int run_rank(Shared& shared, int rank, int ranks, int per_host) {
  if (rank == 0 && !create_unique_id(&shared.id).ok()) return 1;
  shared.ready++;
  wait_for(shared.ready, ranks);
  const int64_t before_ns = processor_ns();
  int64_t none = 0;
  shared.began_ns.compare_exchange_strong(none, now_ns());
  const UniqueId id = decode_unique_id(shared.id).take();
  const std::string host = rank < per_host ? "" : fmt::format("host {}", rank / per_host);
  const uint64_t number = rank < per_host ? id.host : host_number(host);
  Result<RendezvousPoint> place = meeting_place(id, number, true, host);
  if (!place.ok()) return 2;
  place.value().tcp = ranks > per_host;
  const Result<std::shared_ptr<Job>> job =
      join_at(place.value(), rank, ranks, Deadline::in_ms(kPatienceMs));
  if (!job.ok()) return 3;
  shared.ended_ns = now_ns();
  shared.joined++;
  wait_for(shared.joined, ranks);
  // The rendezvous ends once it has heard from the first rank.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  RealRank& real = shared.ranks[static_cast<size_t>(rank)];
  {
    const std::lock_guard lock(counts().mutex);
    real = {static_cast<TreeJob&>(*job.value()).order(), counts().messages,
            processor_ns() - before_ns, counts().sockets, counts().most_sockets};
  }
  shared.counted++;
  wait_for(shared.counted, ranks);
  return 0;
}

// Starts the ranks as processes. Returns null if one has failed.
Shared* real_start(int ranks, int per_host) {
  auto* const shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; rank++) {
    const pid_t child = fork();
    if (child == 0) _exit(run_rank(*shared, rank, ranks, per_host));
    children.push_back(child);
  }
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    good &= status == 0;
  }
  return good ? shared : nullptr;
}

Machine machine_of(int per_host) {
  const std::string json = fmt::format(
      R"({{"name": "hosts", "ranks_per_host": {}, "tflops": {{"bf16": 1}}}})", per_host);
  return read_machine(parse_json_text(json, "a test").take(), "bf16", 1 << 20).take();
}

class StartAgainstProcesses : public ::testing::TestWithParam<std::pair<int, int>> {};

// Compares every message and every socket. The processor time is printed, and compared within a
// factor of 30, because it varies by a factor of 7 on a busy virtual machine. A wrong unit would
// exceed that factor.
TEST_P(StartAgainstProcesses, IsWhatARealStartTakes) {
  const auto [ranks, per_host] = GetParam();
  const Shared* const real = real_start(ranks, per_host);
  ASSERT_NE(real, nullptr);
  const Startup said = startup_of(ranks, machine_of(per_host), 0).take();
  StartSetting setting;
  setting.ranks = ranks;
  setting.per_host = per_host;
  const SimulatedStart all = simulate_start(setting);
  ASSERT_EQ(all.problem, "");
  int64_t messages = 0, sockets = 0, said_sockets = 0;
  double processor_ns = 0;
  for (int rank = 0; rank < ranks; rank++) {
    const RealRank& one = real->ranks[static_cast<size_t>(rank)];
    messages += one.messages;
    sockets += one.sockets;
    processor_ns += static_cast<double>(one.processor_ns) / ranks;
    said_sockets += static_cast<int64_t>(all.ranks[static_cast<size_t>(rank)].sockets);
    // It depends on chance how many connections wait to be accepted at once.
    EXPECT_LE(one.most_sockets,
              rank == 0 ? said.meeting_sockets + kFanOut : said.inner_sockets + kFanOut);
  }
  EXPECT_EQ(messages, all.messages);
  EXPECT_EQ(messages, said.messages);
  EXPECT_EQ(sockets, said_sockets);
  EXPECT_LE(processor_ns, 30 * said.processor_ns);
  EXPECT_GE(processor_ns, said.processor_ns / 30);
  fmt::print(
      "{} ranks, {} a host: {:.0f} us of processor time a rank, {:.0f} are said; {:.0f} of rank 0; "
      "{:.2f} ms until all had joined\n",
      ranks, per_host, processor_ns / 1e3, said.processor_ns / 1e3,
      static_cast<double>(real->ranks[0].processor_ns) / 1e3,
      static_cast<double>(real->ended_ns - real->began_ns) / 1e6);
}

INSTANTIATE_TEST_SUITE_P(Ranks, StartAgainstProcesses,
                         ::testing::Values(std::pair(2, 2), std::pair(3, 1), std::pair(8, 8),
                                           std::pair(9, 3), std::pair(16, 16), std::pair(16, 4),
                                           std::pair(40, 8)));

// For jobs of this size the forecast simulates only some of the ranks. The test compares its answer
// with a simulation of all ranks.
class StartOfMore : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(StartOfMore, IsThatOfAllRanks) {
  const auto [ranks, per_host] = GetParam();
  const Machine machine = machine_of(per_host);
  const Startup said = startup_of(ranks, machine, 0).take();
  EXPECT_EQ(said.simulated_ranks, kSimulatedRanks);
  StartSetting setting;
  setting.ranks = ranks;
  setting.per_host = per_host;
  setting.way_ns = static_cast<int64_t>(machine.between.ns);
  setting.wake_ns = kWakeNs;
  setting.call_ns = static_cast<int64_t>(ranks <= per_host ? kUnixCallNs : kTcpCallNs);
  setting.byte_ns = kByteNs;
  const SimulatedStart all = simulate_start(setting);
  ASSERT_EQ(all.problem, "");
  EXPECT_EQ(said.messages, all.messages);
  EXPECT_NEAR(said.meeting_sockets, static_cast<double>(all.ranks[0].most_sockets), 2 * kFanOut);
  size_t most = 0;
  int64_t most_messages = 0;
  for (size_t rank = 1; rank < all.ranks.size(); rank++) {
    most = std::max(most, all.ranks[rank].most_sockets);
    most_messages = std::max(most_messages, all.ranks[rank].messages);
  }
  EXPECT_NEAR(said.inner_sockets, static_cast<double>(most), 2);
  EXPECT_NEAR(said.inner_messages, static_cast<double>(most_messages), 2);
  EXPECT_NEAR(said.rendezvous_ns, static_cast<double>(all.registered_ns),
              0.1 * static_cast<double>(all.registered_ns));
  // If the tree's lowest level has few ranks, it completes earlier than a full one, by at most
  // kLevelNs.
  EXPECT_NEAR(said.ns() - kOwnNs, static_cast<double>(all.joined_ns),
              0.1 * static_cast<double>(all.joined_ns) + kLevelNs);
}

INSTANTIATE_TEST_SUITE_P(Ranks, StartOfMore,
                         ::testing::Values(std::pair(64 + 10, 74), std::pair(200, 8),
                                           std::pair(256, 256), std::pair(512, 8),
                                           std::pair(585, 3)));

}  // namespace
}  // namespace fsccl::forecast
