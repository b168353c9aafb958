// fsccl-peer measures this library for one row of the table of peers. The harness (fsb.hpp) owns
// timing, data and checks; this program only answers its calls. It is started once for each rank,
// with RANK, WORLD_SIZE and the FSB_ variables, and rank 0 writes one JSON line for each cell.
#include <CLI/CLI.hpp>

#include "peer_backends.h"
#include "peer_step.h"

namespace fsccl_peer {
namespace {

bool wants(const std::vector<std::string>& kinds, const char* kind) {
  return kinds.empty() || std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

template <class Step>
void run_step(Job& job, const fsb::Opt& options, const std::vector<fsb::Unit>& units) {
  for (const std::string& name : options.colls) {
    if (name != "fsdp_bf16" && name != "fsdp_f32") continue;
    Step step(job, units);
    // Gradients are in bf16 for both names. Sums are always formed in fp32, so that the result
    // passes the harness's fp32 tolerance, too.
    fsb::run_fsdp(step, options, units, name == "fsdp_f32" ? fsb::F32 : fsb::BF16);
  }
}

void run(const fsb::Opt& options, const std::vector<std::string>& kinds) {
  Job job;
  fsb::Opt collectives = options;  // without the step, which has its own classes
  std::erase_if(collectives.colls,
                [](const std::string& name) { return name.rfind("fsdp", 0) == 0; });
  if (wants(kinds, "caller")) {
    CallerBackend backend(job);
    fsb::run_all(backend, collectives);
  }
  if (wants(kinds, "pool")) {
    PoolBackend backend(job);
    fsb::run_all(backend, collectives);
  }
  if (wants(kinds, "shared")) {
    SharedBackend backend(job);
    fsb::run_all(backend, collectives);
  }
  const std::vector<fsb::Unit> units = even_units(options);
  if (wants(kinds, "slot-gradients")) {
    run_step<UnitStep<true, false>>(job, options, units);
    run_step<UnitStep<true, true>>(job, options, units);
  }
  if (wants(kinds, "private-gradients")) {
    run_step<UnitStep<false, false>>(job, options, units);
    run_step<UnitStep<false, true>>(job, options, units);
  }
}

// Reads RANK and WORLD_SIZE, which the harness sets. Returns false if one of them is missing or not
// a number in range.
bool read_place(int* rank, int* size) {
  const char *rank_text = getenv("RANK"), *size_text = getenv("WORLD_SIZE");
  if (!rank_text || !size_text) return false;
  char *rank_end = nullptr, *size_end = nullptr;
  const long rank_value = strtol(rank_text, &rank_end, 10),
             size_value = strtol(size_text, &size_end, 10);
  if (rank_end == rank_text || *rank_end || size_end == size_text || *size_end) return false;
  // The harness has places for 64 ranks.
  if (size_value < 1 || size_value > 64 || rank_value < 0 || rank_value >= size_value) return false;
  *rank = static_cast<int>(rank_value);
  *size = static_cast<int>(size_value);
  return true;
}

}  // namespace
}  // namespace fsccl_peer

int main(int argc, char** argv) {
  CLI::App app(
      "One rank of FSCCL in the table of peers. Set RANK, WORLD_SIZE and the FSB_ variables; see "
      "perf/peers/README.md.",
      "fsccl-peer");
  bool json = false;
  std::vector<std::string> kinds;
  app.add_flag("--json", json, "accepted for the harness; output is always JSON lines");
  app.add_option("--memory", kinds,
                 "only these kinds: caller, pool, shared, slot-gradients, private-gradients")
      ->delimiter(',')
      ->check(CLI::IsMember({"caller", "pool", "shared", "slot-gradients", "private-gradients"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  int rank = 0, size = 0;
  if (!fsccl_peer::read_place(&rank, &size)) {
    fprintf(stderr, "fsccl-peer: set RANK and WORLD_SIZE: 0 <= RANK < WORLD_SIZE <= 64\n");
    return 2;
  }
  fsb::ctl_open(rank, size);
  fsb::bar();
  fsccl_peer::run(fsb::parse_env(), kinds);
}
