#include "perf/pool/pool_command.h"

#include <fmt/format.h>

#include <algorithm>

#include "perf/pool/peers.h"
#include "perf/pool/rmm_pool.h"
#include "perf/pool/row.h"

namespace fsccl::perf {

void PoolCommand::add_to(CLI::App* command) {
  command->option_defaults()->always_capture_default();
  command
      ->add_option("traces", files_,
                   "traces of allocations, JSON lines (perf/pool/trace.h says which)")
      ->required()
      ->type_name("TRACE...")
      ->default_str("");
  command->add_flag("--json", options_.json, "print JSON, an object a line, instead of a table");
  command->add_option("--steps", options_.steps, "measured steps")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N");
  command
      ->add_option("--schedule", schedule_, "declared before the first step, or recorded from it")
      ->check(CLI::IsMember({"declared", "recorded"}))
      ->type_name("HOW");
  command->add_flag("!--no-peers", options_.peers, "the pool alone, without other allocators");
  command
      ->add_option("--rmm", rmm_, "beside it the pool of RMM, which perf/pool/rmm/build.sh makes")
      ->type_name("LIBRARY")
      ->default_str("");
  command->add_option("--peer", peer_)->group("");  // only run_peer() passes it
  command->footer(
      "A trace whose steps are alike is declared (or recorded), then repeated. One whose steps "
      "differ is run twice: with all steps "
      "declared as one, "
      "and unseen, with\nonly its first step declared; then it is repeated. reserved: the most "
      "bytes of the pool's range; ratio: "
      "to the larger of the bytes live at "
      "once and the heaviest set\nof slots that may not overlap. Calls of the system, waits "
      "between streams that the trace does "
      "not have, and growths are those of the "
      "measured steps; of an unseen\ntrace all waits. p50, p99: an allocation and its release, "
      "mean over batches; +order: with the "
      "records of use, event and wait between them.\n"
      "Exit status: 0, 1 when a replay failed, 2 for a file that is no trace.");
}

int PoolCommand::run() {
  options_.recorded = schedule_ == "recorded";
  const auto asked_for = [&](const Peer& peer) { return peer_ == peer.name; };
  if (!peer_.empty() && std::none_of(malloc_peers().begin(), malloc_peers().end(), asked_for)) {
    fmt::print(stderr, "fsccl-perf: --peer is this program's own\n");
    return 2;
  }
  std::string error;
  const rmm_peer* const rmm = rmm_.empty() ? nullptr : load_rmm(rmm_, &error);
  if (!error.empty()) {
    fmt::print(stderr, "fsccl-perf: {}\n", error);
    return 2;
  }
  if (!options_.json && peer_.empty()) fmt::print("{}", table_head());
  bool failed = false;
  for (const std::string& file : files_) {
    const std::optional<Trace> trace = read_trace(file, &error);
    if (!trace) {
      fmt::print(stderr, "fsccl-perf: {}\n", error);
      return 2;
    }
    if (!peer_.empty()) {
      for (const Peer& peer : malloc_peers())
        if (peer_ == peer.name) fmt::print("{}\n", to_json(replay_malloc(peer, *trace, options_)));
      continue;
    }
    std::vector<ReplayRow> rows = replay_pool(*trace, options_);
    failed |=
        std::any_of(rows.begin(), rows.end(), [](const ReplayRow& row) { return row.failed; });
    rows.push_back(replay_array(*trace, options_));
    if (rmm) rows.push_back(replay_rmm(*rmm, *trace, options_));
    if (options_.peers) {
      for (const Peer& peer : malloc_peers())
        rows.push_back(run_peer(peer, file, *trace, options_));
      for (ReplayRow& row : replay_policies(*trace, options_)) rows.push_back(std::move(row));
    }
    for (ReplayRow& row : rows) {
      row.clique_bound = rows[0].clique_bound;
      fmt::print("{}", options_.json ? to_json(row) + "\n" : table_line(row));
    }
    std::fflush(stdout);
  }
  return failed ? 1 : 0;
}

}  // namespace fsccl::perf
