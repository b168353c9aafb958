// members [--first SEED] [--seeds N]: runs N simulated jobs of members. The first one that breaks
// an invariant ends it, with its trace and its seed. members --seed SEED runs one job and prints
// its trace. members --count N goes on after a broken invariant, and counts the seeds that break
// one.
#include <fmt/core.h>
#include <sodium.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>

#include "members.h"

namespace fsccl::sim {
namespace {

constexpr uint64_t kAgain = 16;          // one of so many seeds is run twice
constexpr uint64_t kEnoughForAll = 300;  // seeds in which each mishap occurs

const char* name() { return "a simulated world"; }
uint32_t random_32() { return static_cast<uint32_t>(World::current().random()); }
void random_to(void* data, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(World::current().random() >> 32);
}

// Makes numbers, nonces and secrets follow from the seed, too.
void take_over_chance() {
  static randombytes_implementation chance{name, random_32, nullptr, nullptr, random_to, nullptr};
  if (sodium_init() < 0 || randombytes_set_implementation(&chance) != 0) std::abort();
}

int usage() {
  fmt::print(stderr,
             "usage: members [--first SEED] [--seeds N | --count N] | members --seed SEED\n");
  return 2;
}

int show(uint64_t seed) {
  const MembersOutcome outcome = Members(seed, true).run();
  for (const std::string& line : outcome.trace) fmt::print("{}\n", line);
  fmt::print("seed {}: {}\n{}\n", seed, outcome.setting,
             outcome.broken ? "BROKEN: " + *outcome.broken : "all holds");
  return outcome.broken ? 1 : 0;
}

size_t descriptors() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                           std::filesystem::directory_iterator()));
}

MembersOutcome run_seed(uint64_t seed) {
  const size_t before = descriptors();
  MembersOutcome outcome = Members(seed, false).run();
  if (!outcome.broken && seed % kAgain == 0 &&
      Members(seed, false).run().history != outcome.history)
    outcome.broken = "the same seed has another history";
  if (!outcome.broken && descriptors() != before)
    outcome.broken = fmt::format("{} descriptors were left open", descriptors() - before);
  return outcome;
}

struct Tally {
  uint64_t jobs = 0, joined = 0, refused = 0, agreed = 0, suspects = 0;
};

int run(uint64_t first, uint64_t seeds, bool count) {
  std::map<Mishap, Tally> tallies;
  uint64_t broken = 0;
  std::map<std::string, uint64_t> kinds;
  for (uint64_t seed = first; seed < first + seeds; seed++) {
    const MembersOutcome outcome = run_seed(seed);
    if (outcome.broken && !count) {
      show(seed);
      fmt::print("seed {}: {}\n", seed, *outcome.broken);
      return 1;
    }
    if (outcome.broken) {
      broken++;
      fmt::print("seed {} ({}): {}\n", seed, kMishaps[static_cast<size_t>(outcome.mishap)],
                 *outcome.broken);
    }
    Tally& tally = tallies[outcome.mishap];
    tally.jobs++;
    tally.joined += static_cast<uint64_t>(outcome.joined);
    tally.refused += static_cast<uint64_t>(outcome.refused);
    tally.agreed += static_cast<uint64_t>(outcome.agreed);
    tally.suspects += static_cast<uint64_t>(outcome.suspects);
  }
  if (count) fmt::print("{} of {} seeds are broken\n", broken, seeds);
  if (!count) fmt::print("all holds in {} seeds from {} on\n", seeds, first);
  for (const auto& [mishap, tally] : tallies)
    fmt::print(
        "{:>10}: {} jobs, {} ranks joined, {} were refused, {} answers who is left, {} words of "
        "suspects\n",
        kMishaps[static_cast<size_t>(mishap)], tally.jobs, tally.joined, tally.refused,
        tally.agreed, tally.suspects);
  for (size_t i = 0; seeds >= kEnoughForAll && i < std::size(kMishaps); i++)
    if (!tallies.contains(static_cast<Mishap>(i)))
      return fmt::print("no job with mishap {}\n", kMishaps[i]), 1;
  return 0;
}

}  // namespace
}  // namespace fsccl::sim

int main(int count, char** values) {
  using namespace fsccl::sim;
  uint64_t first = 1, seeds = 1000;
  bool goes_on = false;
  take_over_chance();
  for (int i = 1; i < count; i += 2) {
    if (i + 1 >= count) return usage();
    const uint64_t value = std::strtoull(values[i + 1], nullptr, 10);
    if (std::strcmp(values[i], "--seed") == 0) return show(value);
    goes_on |= std::strcmp(values[i], "--count") == 0;
    if (std::strcmp(values[i], "--first") == 0)
      first = value;
    else if (std::strcmp(values[i], "--seeds") == 0 || goes_on)
      seeds = value;
    else
      return usage();
  }
  return run(first, seeds, goes_on);
}
