// Runs random steps under random limits (multi/limited_steps.h) as a rehearsal: ranks are threads,
// and pools have no memory. Each seed has its own units, limits and ranks.
//
//     build/tests/sim/sim_limits --first 1 --seeds 100 --steps 20
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "multi/limited_steps.h"

namespace {

struct Totals {
  uint64_t calls = 0, refused = 0;
};

bool run(uint64_t seed, int steps, bool told, Totals* totals) {
  const int ranks = static_cast<int>(1 + seed % 4);
  fsccl_unique_id_t id;
  if (fsccl_unique_id_create(&id) < 0) return false;
  std::vector<std::string> problems(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; rank++)
    threads.emplace_back([&, rank] {
      fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
      config.unique_id = &id;
      config.rank = rank, config.ranks = ranks;
      fsccl_comm_t comm = nullptr;
      std::string& problem = problems[static_cast<size_t>(rank)];
      if (fsccl_comm_create(&config, &comm) < 0) {
        problem = "no communicator";
        return;
      }
      {
        fsccl::testing::LimitedSteps program(comm, seed, true, nullptr);
        if (told && rank == 0)
          std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
                      program.setting().c_str());
        program.run(steps);
        problem = program.problem();
        if (rank == 0) totals->calls += program.calls(), totals->refused += program.refused();
      }
      fsccl_comm_destroy(comm);
    });
  for (std::thread& thread : threads) thread.join();
  bool good = true;
  for (const std::string& problem : problems) {
    if (problem.empty()) continue;
    std::printf("%s\n", problem.c_str());
    good = false;
  }
  return good;
}

uint64_t argument(int argc, char** argv, const char* name, uint64_t otherwise) {
  for (int i = 1; i + 1 < argc; i++)
    if (!std::strcmp(argv[i], name)) return std::strtoull(argv[i + 1], nullptr, 10);
  return otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // a process that sees a GPU would keep the pages
  const uint64_t one = argument(argc, argv, "--seed", 0),
                 first = one ? one : argument(argc, argv, "--first", 1);
  const uint64_t seeds = one ? 1 : argument(argc, argv, "--seeds", 50);
  const int steps = static_cast<int>(argument(argc, argv, "--steps", 10));
  Totals totals;
  for (uint64_t seed = first; seed < first + seeds; seed++)
    if (!run(seed, steps, one != 0, &totals)) return 1;
  std::printf("%llu seeds of %d steps: %llu calls, %llu of them refused, no communicator lost\n",
              static_cast<unsigned long long>(seeds), steps,
              static_cast<unsigned long long>(totals.calls),
              static_cast<unsigned long long>(totals.refused));
  return totals.refused == 0;
}
