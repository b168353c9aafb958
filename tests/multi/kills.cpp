// Kills one rank of a job with kill -9 at a random moment, many times, and looks at what the
// survivors are told: every survivor has an error, the error names the rank that was killed, it
// comes soon, and nothing is left behind.
//
//   kills [rounds = 100] [seed = 1] [phase ...]
//
// Each round is a job of its own, on one host or on three uneven ones. All its ranks repeat one
// phase until it fails: join, split, subset, pool, unit, grad, step or collective. Prints how long
// the survivors of each phase took, and exits with 0 if every round was right. With the environment
// variable KILLS_P99_MS, the 99th percentile of all survivors must be below that, too.
#include <arpa/inet.h>
#include <fsccl/fsccl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <fstream>
#include <random>
#include <thread>

#include "multi/processes.h"

namespace {

using fsccl::testing::Child;
using fsccl::testing::Processes;
using fsccl::testing::Variables;

// Deadline of the jobs: a survivor that waits for it has not been told of the death.
constexpr int64_t kDeadlineMs = 20'000;
// The bound of heartbeats is FSCCL_DEAD_MS's default and a second.
constexpr int64_t kBoundMs = 6'000;
constexpr int64_t kRoundMs = 60'000;
constexpr int kUnits = 3;

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// A call that has failed, with the number that the killed rank has on the communicator of the call.
struct Failed {
  fsccl_status_t status;
  const char* call;
  int victim;
};

// The objects of a rank of a job, made anew for each round.
struct Rank {
  int rank = 0, victim = 0, ranks = 0;
  fsccl_comm_t comm = nullptr;
  fsccl_pool_t pool = nullptr;
  std::vector<fsccl_unit_t> units;

  void must(fsccl_status_t status, const char* call) const { must_on(status, call, victim); }
  void must_on(fsccl_status_t status, const char* call, int victim_there) const {
    if (status < 0) throw Failed{status, call, victim_there};
  }

  void join() { must(fsccl_comm_create(nullptr, &comm), "fsccl_comm_create"); }
  void barrier() { must(fsccl_barrier(comm, nullptr, nullptr), "fsccl_barrier"); }

  void split() {
    fsccl_comm_t part = nullptr;
    must(fsccl_comm_split(comm, rank % 2, 0, nullptr, &part), "fsccl_comm_split");
    use_part(part, rank % 2 == victim % 2 ? victim / 2 : -1);
  }
  // Makes a subset of all ranks but the first or the last, in turn.
  void subset(int number) {
    std::vector<int> members;
    for (int other = 0; other < ranks; other++)
      if (other != (number % 2 ? 0 : ranks - 1)) members.push_back(other);
    const auto index_of = [&](int which) {
      const auto found = std::find(members.begin(), members.end(), which);
      return found == members.end() ? -1 : static_cast<int>(found - members.begin());
    };
    if (index_of(rank) >= 0) {
      fsccl_comm_t part = nullptr;
      must(fsccl_comm_subset(comm, members.data(), members.size(), 7, nullptr, &part),
           "fsccl_comm_subset");
      use_part(part, index_of(victim));
    }
    barrier();
  }
  // A part without the victim can fail if one of its ranks has ended because of the death. The next
  // call on all ranks then reports the death.
  void use_part(fsccl_comm_t part, int victim_there) {
    const Failed failed{fsccl_barrier(part, nullptr, nullptr), "fsccl_barrier of a part",
                        victim_there};
    // The part is destroyed with the communicator from which it was made.
    if (failed.status < 0 && victim_there >= 0) throw failed;
    must(fsccl_comm_destroy(part), "fsccl_comm_destroy");
  }

  fsccl_pool_t make_pool() {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.limit_bytes = 64 << 20;
    fsccl_pool_t made = nullptr;
    must(fsccl_pool_create(comm, &config, &made), "fsccl_pool_create");
    return made;
  }
  fsccl_unit_t make_unit(int number) {
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    fsccl_param_t params[2] = {FSCCL_PARAM_INIT, FSCCL_PARAM_INIT};
    for (fsccl_param_t& param : params) param.dims = 1, param.shape[0] = (1 << 14) + 1000 * number;
    config.shard_comm = comm;
    config.pool = pool;
    fsccl_unit_t unit = nullptr;
    must(fsccl_unit_create(&config, params, 2, &unit), "fsccl_unit_create");
    return unit;
  }
  void make_units() {
    pool = make_pool();
    for (int number = 0; number < kUnits; number++) units.push_back(make_unit(number));
  }
  void unit(int number) {
    const fsccl_unit_t made = make_unit(number % 7);
    must(fsccl_unit_unshard(made, FSCCL_UNSHARD_READ, nullptr, nullptr), "fsccl_unit_unshard");
    must(fsccl_unit_reshard(made, nullptr), "fsccl_unit_reshard");
    must(fsccl_unit_destroy(made), "fsccl_unit_destroy");
  }
  void grad(fsccl_unit_t of) {
    fsccl_view_t view;
    for (size_t i = 0; i < 2; i++) {
      must(fsccl_unit_grad(of, i, nullptr, &view), "fsccl_unit_grad");
      std::memset(view.data, 0, view.count * fsccl_dtype_size(view.dtype));
    }
    must(fsccl_unit_reduce_grads(of, nullptr, nullptr, nullptr), "fsccl_unit_reduce_grads");
  }
  void step() {
    for (const fsccl_unit_t of : units) {
      must(fsccl_unit_unshard(of, FSCCL_UNSHARD_READ, nullptr, nullptr), "fsccl_unit_unshard");
      must(fsccl_unit_reshard(of, nullptr), "fsccl_unit_reshard");
    }
    for (const fsccl_unit_t of : units) grad(of);
    must(fsccl_pool_step(pool), "fsccl_pool_step");
  }
  void collective(int number) {
    const size_t count = size_t{16} << number % 14;
    std::vector<float> mine(count * static_cast<size_t>(ranks)), all(mine.size());
    must(fsccl_all_gather(mine.data(), all.data(), count, FSCCL_FLOAT32, comm, nullptr, nullptr),
         "fsccl_all_gather");
    must(fsccl_all_reduce(mine.data(), all.data(), mine.size(), FSCCL_FLOAT32, FSCCL_SUM, comm,
                          nullptr, nullptr),
         "fsccl_all_reduce");
    must(fsccl_reduce_scatter(all.data(), mine.data(), count, FSCCL_FLOAT32, FSCCL_SUM, comm,
                              nullptr, nullptr),
         "fsccl_reduce_scatter");
  }
  // Destroys everything, which must succeed after a failure, too.
  bool give_back() {
    bool good = true;
    for (const fsccl_unit_t of : units) good &= fsccl_unit_destroy(of) == FSCCL_OK;
    return good;
  }

  void repeat(const std::string& phase) {
    join();
    if (phase == "join") {
      barrier();
      // A process that ends without this looks to the others like one that died.
      return must(fsccl_comm_destroy(comm), "fsccl_comm_destroy");
    }
    if (phase != "split" && phase != "subset" && phase != "pool" && phase != "collective")
      make_units();
    barrier();
    std::puts("ready");
    for (int number = 0;; number++) {
      if (phase == "split") split();
      if (phase == "subset") subset(number);
      if (phase == "pool") must(fsccl_pool_destroy(make_pool()), "fsccl_pool_destroy");
      if (phase == "unit") unit(number);
      if (phase == "grad") grad(units[0]);
      if (phase == "step") step();
      if (phase == "collective") collective(number);
    }
  }
};

// Prints "ended NS STATUS PEER VICTIM CALL | TEXT" when the phase has failed.
int rank_main(const Child& self) {
  Rank rank;
  rank.rank = self.rank;
  rank.ranks = self.ranks;
  rank.victim = std::atoi(std::getenv("KILLS_VICTIM"));
  std::puts("started");
  try {
    rank.repeat(std::getenv("KILLS_PHASE"));
  } catch (const Failed& failed) {
    const int64_t ended = now_ns();
    fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
    fsccl_last_error(&error);
    std::printf("ended %" PRId64 " %d %d %d %s | %s\n", ended, failed.status, error.peer,
                failed.victim, failed.call, error.text);
    return 0;
  }
  std::printf("joined\n");  // the victim was killed too late
  return 0;
}

struct Round {
  std::string phase;
  int ranks = 4, victim = 0;
  bool hosts = false;  // ranks are on three hosts of different size
  int64_t delay_us = 0;
};

// The survivors do not know a rank that dies before it has registered, and notice its absence only
// at the deadline of joining. So that deadline is short.
int64_t deadline_ms(const Round& round) { return round.phase == "join" ? 3'000 : kDeadlineMs; }

// Returns whether an error of joining says that the killed rank has never come.
bool misses(const std::string& text, int victim) {
  // The survivor did not reach rank 0, because rank 0 had given up and ended, and with it the
  // report of the missing rank.
  if (text.find("did not reach") != std::string::npos) return true;
  const size_t at = std::min(text.find("missing"), text.find("gave up joining"));
  if (at == std::string::npos) return false;
  const std::string number = std::to_string(victim);
  for (size_t from = text.find(number, at); from != std::string::npos;
       from = text.find(number, from + 1))
    if (!std::isdigit(text[from - 1]) && !std::isdigit(text[from + number.size()])) return true;
  return false;
}

Variables variables_of(const Round& round, int rank, int port) {
  Variables variables = fsccl::testing::job(rank, round.ranks, port);
  variables =
      fsccl::testing::with(variables, {{"KILLS_PHASE", round.phase},
                                       {"KILLS_VICTIM", std::to_string(round.victim)},
                                       {"FSCCL_TIMEOUT_MS", std::to_string(deadline_ms(round))}});
  if (!round.hosts) return variables;
  const int host = rank < round.ranks - 3 ? 0 : rank < round.ranks - 1 ? 1 : 2;
  std::erase_if(variables, [](const auto& one) {
    return one.first == "LOCAL_RANK" || one.first == "LOCAL_WORLD_SIZE";
  });
  variables.emplace_back("FSCCL_HOST_ID", "host " + std::to_string(host));
  variables.emplace_back("FSCCL_INSECURE", "1");
  return variables;
}

// Returns the error in a survivor's output, or an empty text. *took_ms: time from the kill until
// the survivor was told; negative if it was not.
std::string judge(const Round& round, const std::string& output, int64_t killed_ns,
                  double* took_ms) {
  *took_ms = -1;
  const size_t at = output.find("ended ");
  if (at == std::string::npos)
    return round.phase == "join" && output.find("joined") != std::string::npos ? ""
                                                                               : "has no error";
  int64_t ended = 0;
  int status = 0, peer = 0, victim = 0;
  if (std::sscanf(output.c_str() + at, "ended %" SCNd64 " %d %d %d", &ended, &status, &peer,
                  &victim) != 4)
    return "says nonsense";
  *took_ms = static_cast<double>(ended - killed_ns) / 1e6;
  if (round.phase == "join" && status == FSCCL_ERR_TIMEOUT &&
      misses(output.substr(at), round.victim)) {
    *took_ms = -1;
    return "";
  }
  if (status != FSCCL_ERR_PEER_DEAD) return "has another error than FSCCL_ERR_PEER_DEAD";
  if (peer != victim)
    return "names rank " + std::to_string(peer) + ", not the killed one, whose number is " +
           std::to_string(victim);
  if (*took_ms > kBoundMs) return "was told after " + std::to_string(*took_ms) + " ms";
  return "";
}

// Lists sockets in the abstract namespace, the only things with a name that a rank could leave
// behind.
std::string left_behind() {
  std::ifstream sockets("/proc/net/unix");
  std::string text;
  for (std::string line; std::getline(sockets, line);)
    if (line.find("@fsccl-") != std::string::npos) text += line.substr(line.find('@')) + " ";
  return text;
}

bool run_round(const Round& round, int port, std::vector<double>* took_ms) {
  Processes processes;
  for (int rank = 0; rank < round.ranks; rank++)
    processes.start("rank", rank, round.ranks, variables_of(round, rank, port));
  const char* const word = round.phase == "join" ? "started" : "ready";
  std::string problems;
  for (int rank = 0; rank < round.ranks; rank++)
    if (!processes.wait_for_output(rank, word, kRoundMs))
      problems += "rank " + std::to_string(rank) + " is not " + word + "\n";
  std::this_thread::sleep_for(std::chrono::microseconds(round.delay_us));
  const int64_t killed_ns = now_ns();
  processes.kill(round.victim, SIGKILL);
  (void)processes.finish(kRoundMs);
  for (int rank = 0; rank < round.ranks && problems.empty(); rank++) {
    if (rank == round.victim) continue;
    double took = 0;
    const std::string problem = judge(round, processes.output(rank), killed_ns, &took);
    if (took >= 0) took_ms->push_back(took);
    if (!problem.empty()) problems += "rank " + std::to_string(rank) + " " + problem + "\n";
    if (processes.exit_code(rank) != 0)
      problems += "rank " + std::to_string(rank) + " does not end well\n";
  }
  if (problems.empty()) return true;
  std::printf("%s, %d ranks on %s, rank %d was killed after %" PRId64 " us:\n%s%s",
              round.phase.c_str(), round.ranks, round.hosts ? "three hosts" : "one host",
              round.victim, round.delay_us, problems.c_str(), processes.report().c_str());
  return false;
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(share * static_cast<double>(values.size())))];
}

// Moves the process into a network of its own, so that it contains only sockets of these jobs.
// Without the right to make one, sockets that are left behind are not looked for.
bool enter_own_network() {
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  const int any = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq loopback = {};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP;
  const bool up = any >= 0 && ioctl(any, SIOCSIFFLAGS, &loopback) == 0;
  if (any >= 0) close(any);
  return up;
}

int run(int rounds, uint64_t seed, const std::vector<std::string>& phases) {
  const bool alone = enter_own_network();
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t bound) { return static_cast<int64_t>(random() % bound); };
  std::map<std::string, std::vector<double>> took_ms;
  std::vector<double> all_ms;
  int wrong = 0;
  for (int number = 0; number < rounds; number++) {
    Round round;
    round.phase = phases[static_cast<size_t>(number) % phases.size()];
    round.hosts = number / static_cast<int>(phases.size()) % 2 == 1;
    round.ranks = static_cast<int>(round.hosts ? 4 + below(3) : 2 + below(4));
    if (round.phase == "subset") round.ranks = std::max(round.ranks, 4);
    round.victim = static_cast<int>(below(static_cast<uint64_t>(round.ranks)));
    round.delay_us = below(round.phase == "join" ? 25'000 : 60'000);
    if (!run_round(round, 15000 + number % 4000, &took_ms[round.phase])) wrong++;
  }
  for (const auto& [phase, values] : took_ms) {
    all_ms.insert(all_ms.end(), values.begin(), values.end());
    std::printf("%-10s %4zu survivors  p50 %7.1f ms  p99 %7.1f ms  longest %7.1f ms\n",
                phase.c_str(), values.size(), percentile(values, 0.5), percentile(values, 0.99),
                percentile(values, 1));
  }
  std::printf("all        %4zu survivors  p50 %7.1f ms  p99 %7.1f ms; %d of %d rounds were wrong\n",
              all_ms.size(), percentile(all_ms, 0.5), percentile(all_ms, 0.99), wrong, rounds);
  const std::string left = alone ? left_behind() : "";
  if (!left.empty()) std::printf("left behind: %s\n", left.c_str());
  const char* const bound = std::getenv("KILLS_P99_MS");
  const bool late = bound && percentile(all_ms, 0.99) > std::atof(bound);
  if (late) std::printf("the 99th percentile is above %s ms\n", bound);
  return wrong == 0 && left.empty() && !late ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = fsccl::testing::run_role(argc, argv, {{"rank", rank_main}})) return *code;
  std::vector<std::string> phases(argv + std::min(argc, 3), argv + argc);
  if (phases.empty())
    phases = {"join", "split", "subset", "pool", "unit", "grad", "step", "collective"};
  return run(argc > 1 ? std::atoi(argv[1]) : 100,
             argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1, phases);
}
