// sim [--first SEED] [--seeds N]: runs N simulated jobs. The first one that breaks an invariant
// ends it, with its trace and its seed. sim --seed SEED runs one job and prints its trace.
#include <fmt/core.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "base/log.h"
#include "job.h"

namespace fsccl::sim {
namespace {

constexpr uint64_t kAgain = 16;          // one of so many seeds is run twice
constexpr uint64_t kEnoughForAll = 300;  // seeds in which each trouble occurs

int usage() {
  fmt::print(stderr, "usage: sim [--first SEED] [--seeds N] | sim --seed SEED\n");
  return 2;
}

int show(uint64_t seed) {
  const Outcome outcome = Job(seed, true).run();
  for (const std::string& line : outcome.trace) fmt::print("{}\n", line);
  fmt::print("seed {}: {}\n{}\n", seed, outcome.setting,
             outcome.broken ? "BROKEN: " + *outcome.broken : "all holds");
  return outcome.broken ? 1 : 0;
}

int run(uint64_t first, uint64_t seeds) {
  // By trouble: the number of jobs, and of ranks that ended with an error.
  std::map<Trouble, std::pair<uint64_t, uint64_t>> jobs;
  uint64_t operations = 0;
  for (uint64_t seed = first; seed < first + seeds; seed++) {
    Outcome outcome = Job(seed, false).run();
    // Wrong bits may be those of addresses, which do not follow from the seed.
    const bool wrong_bits =
        outcome.trouble == Trouble::garbled || outcome.trouble == Trouble::damaged;
    if (!outcome.broken && !wrong_bits && seed % kAgain == 0 &&
        Job(seed, false).run().history != outcome.history)
      outcome.broken = "the same seed has another history";
    if (outcome.broken) {
      show(seed);
      fmt::print("seed {}: {}\n", seed, *outcome.broken);
      return 1;
    }
    jobs[outcome.trouble].first++;
    jobs[outcome.trouble].second += outcome.errors;
    operations += outcome.operations;
  }
  fmt::print("all holds in {} seeds from {} on; {} operations ended well\n", seeds, first,
             operations);
  for (const auto& [trouble, counts] : jobs)
    fmt::print("{:>8}: {} jobs, {} ranks ended with an error\n",
               kTroubles[static_cast<size_t>(trouble)], counts.first, counts.second);
  for (size_t i = 0; seeds >= kEnoughForAll && i < std::size(kTroubles); i++) {
    const auto& [count, errors] = jobs[static_cast<Trouble>(i)];
    if (count && (errors > 0) == (static_cast<Trouble>(i) != Trouble::none)) continue;
    fmt::print("trouble \"{}\" does nothing\n", kTroubles[i]);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace fsccl::sim

int main(int argc, char** argv) {
  using namespace fsccl;
  if (!configure_log(LogLevel::kError, "").ok()) return 2;  // warnings are expected here
  uint64_t first = 1, seeds = 100;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 >= argc) return sim::usage();
    char* end = nullptr;
    const uint64_t value = std::strtoull(argv[i + 1], &end, 10);
    if (*end || end == argv[i + 1]) return sim::usage();
    if (!std::strcmp(argv[i], "--seed")) return sim::show(value);
    if (!std::strcmp(argv[i], "--first"))
      first = value;
    else if (!std::strcmp(argv[i], "--seeds"))
      seeds = value;
    else
      return sim::usage();
  }
  return sim::run(first, seeds);
}
