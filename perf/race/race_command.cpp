#include "perf/race/race_command.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/limits.h"
#include "base/threads.h"
#include "kernels/race_file.h"
#include "perf/pool/available.h"
#include "perf/report.h"

namespace fsccl::perf {
namespace {

constexpr size_t kPieceBytes = 8u << 20, kLeastBytes = 64u << 20, kMostBytes = 256u << 20;
constexpr double kKibPerNsToGb = 1024;  // GB/s of one KiB a ns

// Returns the bytes of the sources, which are also those of the destinations. If pieces cannot be
// flushed from the caches, the bytes are twice those of the last cache, within limits, so that
// little of either is in it.
size_t course_bytes() {
  if (Course::flushes()) return kLeastBytes;
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const size_t wanted = 2 * static_cast<size_t>(std::max(cache, 0L));
  return std::clamp(wanted, kLeastBytes, kMostBytes) / kPieceBytes * kPieceBytes;
}

// Threads that take each sample at the same time, as the ranks of a host would. The time of a
// sample is that of the slowest thread.
class Crew {
 public:
  Crew(int threads, size_t bytes)
      : threads_(static_cast<size_t>(threads)), start_(threads), end_(threads) {
    for (int i = 0; i < threads && status_.ok(); i++) {
      courses_.push_back(std::make_unique<Course>(bytes, kPieceBytes));
      if (!courses_.back()->valid())
        status_ = fail(FSCCL_ERR_OUT_OF_MEMORY, "there are not {} bytes of memory for thread {}",
                       2 * bytes, i);
    }
    taken_.resize(static_cast<size_t>(threads));
    for (size_t i = 1; i < threads_.size(); i++) {
      if (status_.ok())
        status_ = threads_[i].start([this, i] {
          while (start_.arrive_and_wait(), !over_) take(i);
        });
      if (!threads_[i].joinable()) start_.arrive_and_drop();  // in place of the thread
    }
  }
  ~Crew() {
    over_ = true;
    start_.arrive_and_wait();
    for (Thread& thread : threads_)
      if (thread.joinable()) thread.join();
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Returns an error if there is no memory or no thread for one of the crew.
  const Status& status() const { return status_; }
  double sample(Pass pass, Chosen chosen) {
    pass_ = pass, chosen_ = chosen;
    start_.arrive_and_wait();
    take(0);
    return *std::max_element(taken_.begin(), taken_.end());
  }

 private:
  void take(size_t i) {
    taken_[i] = courses_[i]->sample(pass_, chosen_);
    end_.arrive_and_wait();
  }

  std::vector<std::unique_ptr<Course>> courses_;
  std::vector<double> taken_;
  std::vector<Thread> threads_;  // the first place is that of the caller, and stays empty
  Status status_;
  std::barrier<> start_, end_;
  Pass pass_{};
  Chosen chosen_;
  bool over_ = false;
};

// Returns false, after a message, if there is no memory for so many threads, for the system might
// end processes then. Says so if they share cores.
bool fits(int threads) {
  if (const uint64_t cores = read_limits().cores.value; cores < static_cast<uint64_t>(threads))
    fmt::print(stderr,
               "fsccl-perf: {} threads share {} cores, so the times are not those of jobs: give "
               "at most {} --threads\n",
               threads, cores, cores);
  const uint64_t bytes = 2 * course_bytes() * static_cast<uint64_t>(threads);
  const uint64_t available = available_bytes();
  if (bytes > available)
    fmt::print(stderr,
               "fsccl-perf: {} threads take {} bytes of memory, and {} are available: give fewer "
               "--threads\n",
               threads, bytes, available);
  return bytes <= available;
}

void print_table(const Race& race) {
  const Heat& by_default = race.heats.front();
  fmt::print("{:<18} {:>8} {:>8} {:>8} {:>8} {:>8}\n", kPassNames[static_cast<size_t>(race.pass)],
             "ns/KiB", "", "", "GB/s", "default");
  std::vector<const Heat*> sorted;
  for (const Heat& heat : race.heats) sorted.push_back(&heat);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Heat* a, const Heat* b) { return a->middle() < b->middle(); });
  for (const Heat* heat : sorted)
    fmt::print("{} {:<16} {:>8.2f} {:>8.2f} {:>8.2f} {:>8.2f} {:>8.3f}\n",
               heat == &race.heats[race.winner] ? '*' : ' ', variant_name(heat->chosen),
               heat->ns_per_kib[0], heat->ns_per_kib[1], heat->ns_per_kib[2],
               kKibPerNsToGb / heat->middle(), heat->middle() / by_default.middle());
  fmt::print("\n");
}

void print_lines(const Race& race) {
  for (const Heat& heat : race.heats)
    fmt::print(
        R"({{"program":"race","pass":"{}","variant":"{}","ns_per_kib":[{:.3f}],"gb_per_s":{:.3f},)"
        R"("ratio_to_default":{:.4f},"chosen":{}}})"
        "\n",
        kPassNames[static_cast<size_t>(race.pass)], variant_name(heat.chosen),
        fmt::join(heat.ns_per_kib, ","), kKibPerNsToGb / heat.middle(),
        heat.middle() / race.heats.front().middle(), &heat == &race.heats[race.winner]);
}

}  // namespace

void RaceCommand::add_to(CLI::App* command) {
  command->option_defaults()->always_capture_default();
  command->add_option("--threads", threads_, "race on so many cores at the same time")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  command->add_option("-n,--iters", samples_, "samples of each variant in each of three repeats")
      ->check(CLI::Range(3, 10'000))
      ->type_name("N");
  command->add_option("--seconds", seconds_, "give up when so much time has passed")
      ->check(CLI::Range(0.1, 3600.0))
      ->type_name("S");
  keep_option_ = command->add_flag("--keep,!--no-keep", keep_,
                                   "jobs on this kind of processor take the winners (a file in "
                                   "$XDG_CACHE_HOME/fsccl or ~/.cache/fsccl)");
  command->footer(
      "*: what jobs take: the default, or what was faster by more than 3 % in each of three "
      "repeats. ns/KiB: of bytes read and written, the lower quartile of each repeat; default: "
      "the middle one over that of the default. FSCCL_KERNELS takes these names. Exit status: 0, 1 "
      "when the race did not end, or --keep was given and the winners cannot be kept, 2 for bad "
      "options. docs/tuning.md");
}

int RaceCommand::run(bool json) const {
  const RaceKey key = race_key();
  const Deadline end = Deadline::in_ms(std::lround(seconds_ * 1000));
  if (!fits(threads_)) return 1;
  Crew crew(threads_, course_bytes());
  if (!crew.status().ok()) {
    fmt::print(stderr, "fsccl-perf: {}: give fewer --threads\n", crew.status().text());
    return 1;
  }
  if (json)
    fmt::print(R"({{"machine":"{}","microcode":"{}","library":"{}","threads":{},"bytes":{}}})"
               "\n",
               key.processor, key.microcode, key.library, threads_, course_bytes());
  else
    fmt::print("# {}\n# microcode {}, library {}, {} threads, {} bytes past the caches\n\n",
               key.processor, key.microcode, key.library, threads_, course_bytes());
  RaceRecord record{key, "race", {}};
  const auto sample = [&](Pass pass, Chosen chosen) { return crew.sample(pass, chosen); };
  for (size_t pass = 0; pass < kPasses; pass++) {
    auto made = race(Pass(pass), usable_variants(Pass(pass)), static_cast<size_t>(samples_), sample,
                     [&] { return end.passed(); });
    if (!made) break;
    json ? print_lines(*made) : print_table(*made);
    record.races.push_back(std::move(*made));
  }
  flush_output();
  if (record.races.size() < kPasses) {
    fmt::print(stderr,
               "fsccl-perf: the time was over after {} of {} passes, and nothing is kept: give it "
               "more --seconds\n",
               record.races.size(), kPasses);
    return 1;
  }
  if (!keep_) return 0;
  const std::string path = race_file_path(key);
  const Status saved =
      path.empty() ? fail(FSCCL_ERR_CONFIG, "neither XDG_CACHE_HOME nor HOME names a folder")
                   : save_races(path, record);
  if (!saved.ok()) {
    fmt::print(stderr, "fsccl-perf: not kept: {}\n", saved.text());
    return keep_option_->count() > 0 ? 1 : 0;
  }
  fmt::print(stderr, "fsccl-perf: kept in {}\n", path);
  return 0;
}

}  // namespace fsccl::perf
