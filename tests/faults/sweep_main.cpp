// Makes the n-th call of malloc, or of one kind of system call, fail, while two ranks join, work,
// shrink, exchange shards and give everything back. It does so for every n, in either rank, and
// fails that call alone, or it and all that follow. In each case:
//   - No rank crashes, and both ranks are done before a deadline.
//   - Each rank ends with FSCCL_OK and right results, or with an error that has a text and does not
//     blame the library.
//   - Everything can be given back, and the same processes then do all of it once more without a
//     fault.
//   - After that there are no more descriptors, threads and blocks of memory than without the
//     fault.
// usage: PROGRAM all | sample [PHASE [KIND [FIRST LAST]]], or PROGRAM one PHASE KIND NUMBER
// once|persistent RANK. The exit status is 0 if all is right. With FIRST and LAST only the calls
// with these numbers fail, so that a long sweep can run in pieces. A piece reports if there are
// more calls. FSCCL_TRANSPORT names the transport, which is shared memory if it is not set.
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <new>
#include <string>
#include <utility>

#include "faults/fault_points.h"
#include "faults/scenario.h"

namespace fsccl::testing {
namespace {

constexpr const char* kTimeoutMs = "3000";
// After a failure rank 0 listens at the rendezvous for this long, which is the timeout
// (kTimeoutMs), so that a rank that comes late is told of the failure.
constexpr int kLingerMs = 3000;
// A run takes 20 ms, or the timeout if the fault keeps the rank from reporting it to the other
// rank. A run that takes longer than this deadline counts as hung.
constexpr int kDeadlineMs = 30'000;
// Within this time the library's own thread gives back what calls have left to it.
constexpr int kLeftMs = kLingerMs + 2000;
// The text of an error, or a cache that grew, may take this many blocks. A leak would add blocks
// with each fault.
constexpr int64_t kSpareBlocks = 24;

struct Fault {
  Phase phase = Phase::join;
  int kind = 0;
  uint64_t number = 0;  // 0: no fault
  bool persistent = false;
  int rank = 0;
};

// The faults that a sweep tries.
struct Wanted {
  bool sample = false;
  const char* phase = nullptr;  // phase of the faults; null: all
  const char* kind = nullptr;
  uint64_t first = 1, last = UINT64_MAX;
};

// The report of a rank for the parent, in memory that they share.
struct Report {
  bool over = false;  // the rank has come to the end of its program
  bool happened = false;
  uint64_t calls[kMostFaultKinds] = {};
  Outcome faulty, clean;  // outcomes of the run with the fault, and of the run after it
  bool wrong_bytes = false, given_back = false, given_back_later = false;
  int descriptors = 0, threads = 0;
  int64_t blocks = 0;
  const char* at = "";
  FaultPlace place;
};

int64_t now_ms() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000;
}

template <class Counts>
int entries_of(const char* folder, Counts counts) {
  int count = 0;
  DIR* const open = opendir(folder);
  while (const dirent* entry = open ? readdir(open) : nullptr)
    count += entry->d_name[0] != '.' && counts(std::atoi(entry->d_name));
  if (open) closedir(open);
  return count;
}

// Counts this process's descriptors. After a failure rank 0 listens at the rendezvous for a while,
// for ranks that come late: listening sockets are meant to be there and are not counted. All other
// descriptors, beyond `usual`, must be closed within kLeftMs.
int descriptors_left(int usual) {
  const int64_t end = now_ms() + kLeftMs;
  int count = 0;
  const auto stays = [](int fd) {
    int listens = 0;
    socklen_t bytes = sizeof listens;
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || !listens;
  };
  while ((count = entries_of("/proc/self/fd", stays)) > usual && usual > 0 && now_ms() < end)
    usleep(10'000);
  return count;
}

// The main thread and the library's own thread may stay, and UCX's thread if UCX is used.
int threads_allowed() {
  const char* const transport = getenv("FSCCL_TRANSPORT");
  return transport && std::strcmp(transport, "ucx") == 0 ? 3 : 2;
}

// Counts the threads. One that was joined may still be listed for a moment.
int threads_left() {
  const int64_t end = now_ms() + 2000;
  int count = 0;
  while ((count = entries_of("/proc/self/task", [](int) { return true; })) > threads_allowed() &&
         now_ms() < end)
    usleep(1000);
  return count;
}

// The rendezvous at rank 0 stays for a while after a create that failed, and has up to 33 blocks.
int64_t blocks_allowed(int rank, const Report& normal, const Report& report) {
  const bool meeting = rank == 0 && std::strstr(report.faulty.call, "create");
  return normal.blocks + (meeting ? 2 : 1) * kSpareBlocks;
}

int64_t blocks_left(int rank, const Report& normal, const Report& report) {
  const int64_t end = now_ms() + kLeftMs;
  while (live_blocks() > blocks_allowed(rank, normal, report) && normal.blocks > 0 &&
         now_ms() < end)
    usleep(1000);
  return live_blocks();
}

// Waits until the other rank has come to the same point, or has ended.
void meet(int rank, const int (&meeting)[2][2]) {
  char byte = 0;
  if (write(meeting[1 - rank][1], &byte, 1) != 1) return;
  close(meeting[rank][1]);
  (void)!read(meeting[rank][0], &byte, 1);
}

// Runs a rank with the fault, and then without it. `normal` has the descriptors, threads and blocks
// that were left in a run without a fault, and zeroes in that run itself.
void run_rank(int rank, const Fault& fault, const int (&ids)[2][2], const int (&meeting)[2][2],
              const Report& normal, Report* report) {
  const auto armed = [&](Phase phase, auto&& act) {
    report->at = name_of(phase);
    const bool here = fault.phase == phase && fault.rank == rank;
    if (here) arm_fault(fault.kind, fault.number, fault.persistent, &report->place);
    act();
    if (!here) return;
    disarm_fault(report->calls);
    report->happened = fault_happened();
  };
  {
    Scenario faulty(rank, ids[0][0], ids[0][1]);
    armed(Phase::join, [&] { faulty.join(); });
    armed(Phase::work, [&] { faulty.work(); });
    armed(Phase::shrink, [&] { faulty.shrink(); });
    armed(Phase::exchange, [&] { faulty.exchange(); });
    armed(Phase::destroy, [&] { report->given_back = faulty.destroy(); });
    report->given_back_later = report->given_back || faulty.destroy();
    report->faulty = faulty.outcome();
    report->wrong_bytes = faulty.wrong_bytes();
  }
  meet(rank, meeting);
  report->at = "the run after it";
  Scenario clean(rank, ids[1][0], ids[1][1]);
  clean.join();
  clean.work();
  clean.shrink();
  clean.exchange();
  report->given_back_later = clean.destroy() && report->given_back_later;
  report->clean = clean.outcome();
  report->wrong_bytes |= clean.wrong_bytes();
  report->threads = threads_left();
  report->descriptors = descriptors_left(normal.descriptors);
  report->blocks = blocks_left(rank, normal, *report);
  report->over = true;
}

class Sweep {
 public:
  Sweep()
      : reports_(static_cast<Report*>(mmap(nullptr, kRanks * sizeof(Report), PROT_READ | PROT_WRITE,
                                           MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}

  // Tries one fault. Returns false if the number is beyond the last call.
  bool try_fault(const Fault& fault) {
    const std::string problem = run(fault);
    runs_++;
    const Report& report = reports_[fault.rank];
    tried_ += report.happened;
    if (!problem.empty()) {
      failures_++;
      printf("FAILED %s %s %lu %s rank %d: %s\n", name_of(fault.phase),
             kFaultKinds[fault.kind].name, fault.number, fault.persistent ? "persistent" : "once",
             fault.rank, problem.c_str());
      printf("  addr2line -Cfie LIBRARY");
      for (size_t i = 0; i < report.place.depth; i++) printf(" 0x%lx", report.place.offsets[i]);
      printf("\n");
      fflush(stdout);
    }
    return report.happened;
  }

  // Runs the phase without a fault, and returns how many calls there are of each kind.
  const uint64_t* measure(Phase phase, int rank) {
    const std::string problem = run({phase, 0, 0, false, rank});
    if (!problem.empty()) printf("FAILED without a fault: %s\n", problem.c_str()), failures_++;
    std::copy_n(reports_[rank].calls, kMostFaultKinds, calls_);
    return calls_;
  }

  // Tries every n, or in a sample three of them. In rank 0 one call fails, and in rank 1 all that
  // follow, too. This process takes the share `worker` of `workers`.
  void sweep(Phase phase, int rank, const Wanted& wanted, uint64_t worker, uint64_t workers) {
    const uint64_t* const calls = measure(phase, rank);
    for (int kind = 0; kind < kFaultKindCount; kind++) {
      if (calls[kind] == 0 ||
          (wanted.kind && std::strcmp(wanted.kind, kFaultKinds[kind].name) != 0))
        continue;
      if (wanted.sample &&
          (static_cast<uint64_t>(kind) + static_cast<uint64_t>(rank)) % workers != worker)
        continue;
      for (const bool persistent : {false, true}) {
        if (wanted.sample && persistent != (rank == 1)) continue;
        // Other threads make more or fewer calls in another run, so this goes on until no call
        // fails.
        const uint64_t step = wanted.sample ? (calls[kind] + 1) / 2 : workers;
        uint64_t number = wanted.first + (wanted.sample ? 0 : worker);
        while (number <= wanted.last && try_fault({phase, kind, number, persistent, rank}))
          number += step;
        more_ = more_ || number > wanted.last;
      }
    }
  }

  long tried() const { return tried_; }

  int finish() const {
    std::string statuses;
    for (const auto& [code, count] : statuses_)
      statuses.append(", ")
          .append(std::to_string(count))
          .append(" x ")
          .append(std::to_string(code));
    printf("%ld runs, slowest %ld ms, %ld failed%s%s\n", runs_, slowest_ms_, failures_,
           statuses.c_str(), more_ ? "; there are more calls" : "");
    return failures_ ? 1 : 0;
  }

 private:
  std::string run(const Fault& fault) {
    int ids[2][2], meeting[2][2];  // pipes: for the ids of the two runs, and one to each rank
    for (int i = 0; i < 2; i++)
      if (pipe(ids[i]) != 0 || pipe(meeting[i]) != 0) return "no pipe";
    int done[2];
    if (pipe(done) != 0) return "no pipe";
    pid_t children[kRanks];
    for (int rank = 0; rank < kRanks; rank++) {
      reports_[rank] = Report{};
      children[rank] = fork();
      if (children[rank] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(done[0]);
        run_rank(rank, fault, ids, meeting, fault.number ? baseline_[rank] : Report{},
                 &reports_[rank]);
        _exit(0);
      }
    }
    close(done[1]);
    for (auto* pipes : {&ids, &meeting})
      for (auto& ends : *pipes) close(ends[0]), close(ends[1]);
    const int64_t begin = now_ms();
    pollfd end{done[0], POLLIN, 0};
    const bool late = poll(&end, 1, kDeadlineMs) == 0;  // readable when all have ended
    close(done[0]);
    if (!late) slowest_ms_ = std::max(slowest_ms_, now_ms() - begin);
    std::string problem;
    for (int rank = 0; rank < kRanks; rank++) {
      if (late && !getenv("FAULTS_STAY")) kill(children[rank], SIGKILL);
      int status = 0;
      waitpid(children[rank], &status, 0);
      const std::string one = judge(fault, rank, status, late);
      if (!one.empty())
        problem.append(problem.empty() ? "" : "; ")
            .append("of rank ")
            .append(std::to_string(rank))
            .append(": ")
            .append(one);
    }
    return problem;
  }

  std::string judge(const Fault& fault, int rank, int status, bool late) {
    const Report& report = reports_[rank];
    if (late && !report.over) return std::string("hangs in ") + report.at;
    if (!WIFEXITED(status))
      return "killed by signal " + std::to_string(WTERMSIG(status)) + " in " + report.at;
    if (!report.over) return std::string("ended in ") + report.at;
    statuses_[report.faulty.status]++;
    const auto told = [](const Outcome& outcome) {
      return std::string(outcome.call) + ": " + fsccl_status_string(outcome.status) + ": " +
             outcome.text;
    };
    const bool fault_free = fault.number == 0 || kFaultKinds[fault.kind].harmless;
    if (report.faulty.status != FSCCL_OK && fault_free)
      return "not harmless: " + told(report.faulty);
    if (report.faulty.status != FSCCL_OK && !plausible(report.faulty))
      return "an odd error: " + told(report.faulty);
    if (report.wrong_bytes) return "wrong bytes";
    if (!report.given_back_later) return "cannot be destroyed: " + told(report.faulty);
    if (report.clean.status != FSCCL_OK)
      return "the run after it: " + told(report.clean) + " (before: " + told(report.faulty) + ")";
    if (fault.number == 0) {
      baseline_[rank] = report;
      return report.threads <= threads_allowed() ? "" : "threads are left without a fault";
    }
    const Report& normal = baseline_[rank];
    const auto more = [&](const char* what, int64_t now, int64_t before) {
      return std::to_string(now - before) + " " + what + " more than without a fault, after " +
             told(report.faulty);
    };
    if (report.descriptors > normal.descriptors)
      return more("descriptors", report.descriptors, normal.descriptors);
    if (report.threads > normal.threads) return more("threads", report.threads, normal.threads);
    if (report.blocks > blocks_allowed(rank, normal, report))
      return more("blocks of memory", report.blocks, normal.blocks);
    return "";
  }

  // Returns true if the error is plausible: it has a text, and reports neither wrong usage, because
  // the calls are right, nor a defect of the library.
  static bool plausible(const Outcome& outcome) {
    const int code = outcome.status;
    // This is plausible only if the files that tell hosts apart, or list their addresses, could not
    // be read.
    if (code == FSCCL_ERR_NOT_AVAILABLE)
      return std::strstr(outcome.text, "FSCCL_HOST_ID") ||
             std::strstr(outcome.text, "network interface");
    return outcome.text[0] != '\0' && code <= FSCCL_ERR_OUT_OF_MEMORY &&
           code > FSCCL_ERR_INTERNAL && code != FSCCL_ERR_MISMATCH;
  }

  Report* reports_;
  Report baseline_[kRanks];
  uint64_t calls_[kMostFaultKinds] = {};
  std::map<int, long> statuses_;
  long runs_ = 0, tried_ = 0, failures_ = 0;
  int64_t slowest_ms_ = 0;
  bool more_ = false;  // there may be calls with higher numbers than the last wanted one
};

// Tries one fault. `words` are the words by which the report of a failure names it.
int try_one(char** words) {
  Sweep sweep;
  for (int phase = 0; phase < static_cast<int>(Phase::count); phase++)
    for (int kind = 0; kind < kFaultKindCount; kind++) {
      if (std::strcmp(words[0], name_of(static_cast<Phase>(phase))) != 0 ||
          std::strcmp(words[1], kFaultKinds[kind].name) != 0)
        continue;
      const int rank = std::atoi(words[4]) == 1 ? 1 : 0;
      sweep.measure(static_cast<Phase>(phase), rank);
      sweep.try_fault({static_cast<Phase>(phase), kind, std::strtoull(words[2], nullptr, 10),
                       words[3][0] == 'p', rank});
    }
  return sweep.finish();
}

// Adds the number of faults that were tried to *tried.
int sweep_all(const Wanted& wanted, uint64_t worker, uint64_t workers, std::atomic<long>* tried) {
  Sweep sweep;
  for (int phase = 0; phase < static_cast<int>(Phase::count); phase++) {
    if (wanted.phase && std::strcmp(wanted.phase, name_of(static_cast<Phase>(phase))) != 0)
      continue;
    for (int rank = 0; rank < kRanks; rank++)
      sweep.sweep(static_cast<Phase>(phase), rank, wanted, worker, workers);
  }
  *tried += sweep.tried();
  return sweep.finish();
}

int main_of(int argc, char** argv) {
  const bool sample = argc > 1 && std::strcmp(argv[1], "sample") == 0,
             one = argc == 7 && std::strcmp(argv[1], "one") == 0;
  if (!one &&
      (argc < 2 || argc == 5 || argc > 6 || (!sample && std::strcmp(argv[1], "all") != 0))) {
    fprintf(stderr,
            "usage: %s all | sample [PHASE [KIND [FIRST LAST]]]\n       %s one PHASE KIND NUMBER "
            "once|persistent RANK\n",
            argv[0], argv[0]);
    return 2;
  }
  Wanted wanted{sample, argc > 2 ? argv[2] : nullptr, argc > 3 ? argv[3] : nullptr};
  if (argc == 6)
    wanted.first = std::max(std::strtoull(argv[4], nullptr, 10), 1ULL),
    wanted.last = std::strtoull(argv[5], nullptr, 10);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  setenv("FSCCL_TIMEOUT_MS", kTimeoutMs, 1);
  setenv("FSCCL_TRANSPORT", "shm", 0);
  if (one) return try_one(argv + 2);
  // Several workers run at once, because most of the time is spent waiting, after faults that a
  // rank cannot report to the other one.
  constexpr uint64_t kWorkers = 6;
  auto* const tried = new (mmap(nullptr, sizeof(std::atomic<long>), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0)) std::atomic<long>{0};
  for (uint64_t worker = 0; worker < kWorkers; worker++)
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      exit(sweep_all(wanted, worker, kWorkers, tried));
    }
  int failed = 0, status = 0;
  while (wait(&status) > 0) failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  if (*tried == 0) {
    printf("FAILED: no fault was tried, because there is no such phase, kind or call\n");
    return 1;
  }
  printf("%s, %ld faults\n", failed ? "FAILED" : "all as it must be", tried->load());
  return failed != 0;
}

}  // namespace
}  // namespace fsccl::testing

int main(int argc, char** argv) { return fsccl::testing::main_of(argc, argv); }
