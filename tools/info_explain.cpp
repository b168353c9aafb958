#include "info_explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "fsccl/fsccl.h"
#include "fsccl/insight.h"
#include "info_error.h"
#include "kept_text.h"
#include "numbers.h"
#include "whole_number.h"

namespace {

using Json = nlohmann::json;

void print_costs(const Json& answer) {
  const Json& costs = answer["measured"];
  fmt::print("{} of {} bytes on {} ranks, {} host{}; transport {}, farthest link: {}\n",
             answer["operation"].get<std::string>(), answer["bytes"].get<uint64_t>(),
             answer["ranks"].get<int>(), answer["hosts"].get<int>(),
             answer["hosts"].get<int>() == 1 ? "" : "s", answer["transport"].get<std::string>(),
             answer["link"].get<std::string>());
  fmt::print(
      "costs from the {}: exchange {:.0f} ns, through slots {} ns for {} bytes, copy {:.0f} "
      "ns/KiB\n\n",
      answer["costs_from"].get<std::string>(), costs["exchange_ns"].get<double>(),
      costs["slots_ns"].dump(), costs["sizes"].dump(), costs["copy_ns_per_kib"].get<double>());
}

void print_candidates(const Json& answer) {
  fmt::print("  {:<28} {:>9} {:<8} {:>13}\n", "plan", "chunk", "memory", "predicted us");
  for (const Json& candidate : answer["candidates"]) {
    fmt::print("{} {:<28} {:>9} {:<8} {:>13.2f}\n", candidate["chosen"].get<bool>() ? '*' : ' ',
               candidate["plan"].get<std::string>(), candidate["chunk"].get<uint64_t>(),
               candidate["memory"].get<std::string>(), candidate["predicted_us"].get<double>());
    if (!candidate.contains("stages")) continue;
    for (const Json& stage : candidate["stages"])
      fmt::print("    {:<13} {:<30} {:>17.2f}\n",
                 stage["between_hosts"].get<bool>() ? "between hosts" : "inside hosts",
                 stage["plan"].get<std::string>(), stage["predicted_us"].get<double>());
  }
  fmt::print("\n* chosen (one for buffers in pools, one for others, where they differ): {}\n",
             answer["why"].get<std::string>());
}

// Prints the codecs that the predicted call could have, and whether each of them pays. How long the
// functions of a custom codec take is not known.
void print_codecs(const Json& answer) {
  Json rows = Json::array();
  if (answer.contains("gather_codec")) rows.push_back(answer["gather_codec"]);
  for (const char* kinds : {"block_codecs", "reduce_codecs"})
    if (answer.contains(kinds)) rows.insert(rows.end(), answer[kinds].begin(), answer[kinds].end());
  if (rows.empty()) return;
  fmt::print(
      "\ncodecs of units between hosts, on a core of each rank; bytes are those that a host "
      "receives\n  {:<28} {:>13} {:>13} {:>12} {:>12}\n",
      "codec", "bytes without", "bytes with", "us without", "us with");
  for (const Json& row : rows) {
    const bool custom = row["kind"] == "custom";
    fmt::print("  {:<28} {:>13} {:>13} {:>12.2f} {:>12} {}\n",
               row[custom ? "name" : "kind"].get<std::string>(), row["bytes_plain"].get<uint64_t>(),
               row["bytes_coded"].get<uint64_t>(), row["plain_us"].get<double>(),
               custom ? "?" : fmt::format("{:.2f}", row["coded_us"].get<double>()),
               custom ? "" : row["why"].get<std::string>());
    if (row.contains("copy_bytes_per_host"))
      fmt::print("    keeps a copy of {} bytes on each host\n",
                 row["copy_bytes_per_host"].get<uint64_t>());
  }
}

double middle(Json times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2].get<double>();
}

// Prints which variant of each pass a job takes that starts on this machine, and why.
void print_kernels(const Json& kernels) {
  const std::string from = kernels["from"];
  fmt::print("\nkernels: {}\n",
             from == "default"   ? "the defaults, unless the first start of a job measures others"
             : from == "setting" ? "as FSCCL_KERNELS says"
                                 : "as measured on this kind of processor, and kept");
  for (const auto& [pass, chosen] : kernels["passes"].items()) {
    fmt::print("  {:<18} {:<14}", pass, chosen.get<std::string>());
    if (!kernels["races"].contains(pass)) {
      fmt::print(" not measured\n");
      continue;
    }
    const Json& race = kernels["races"][pass];
    std::vector<std::pair<double, std::string>> others;
    const double own = middle(race[chosen.get<std::string>()]);
    for (const auto& [name, times] : race.items())
      if (name != chosen) others.emplace_back(middle(times) / own, name);
    std::sort(others.begin(), others.end());
    fmt::print(" {:>7.2f} ns/KiB", own);
    for (size_t i = 0; i < std::min<size_t>(others.size(), 3); i++)
      fmt::print("{} {} {:.2f}", i ? "," : "; times as long:", others[i].second, others[i].first);
    fmt::print("\n");
  }
}

}  // namespace

ExplainCommand::ExplainCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "explain",
          "how a collective would be carried out, on any number of ranks: candidates, their "
          "predicted times, and the choice")) {
  command_->add_option("operation", operation_, "all_gather, reduce_scatter, all_reduce, ...")
      ->required()
      ->type_name("OPERATION");
  command_->add_option("bytes", bytes_, "of the larger buffer: 4096, 64K, 16M")
      ->required()
      ->type_name("BYTES");
  CLI::Option* ranks = command_->add_option("--ranks", ranks_, "on one host")
                           ->transform(whole_from_to(1, 65536))
                           ->capture_default_str();
  CLI::Option* hosts = command_->add_option("--hosts", hosts_, "with the same number of ranks each")
                           ->transform(whole_from_to(1, 65536))
                           ->capture_default_str()
                           ->excludes(ranks);
  command_->add_option("--ranks-per-host", per_host_, "of --hosts")
      ->transform(whole_from_to(1, 65536))
      ->needs(hosts)
      ->default_str("1");
  command_
      ->add_option("--file", topology_,
                   "not this machine: a topology as `fsccl-info topology` takes it")
      ->type_name("FILE");
  command_->add_option("--tuning", tuning_, "rules and costs, as `fsccl-perf tune` writes them")
      ->type_name("FILE");
  command_->add_flag("--json", json_, "as JSON (fsccl_explain in insight.h)");
}

int ExplainCommand::run() const {
  const auto bytes = fsccl::perf::parse_bytes(bytes_);
  if (!bytes) {
    fmt::print(stderr,
               "fsccl-info: \"{}\" is not a size: a number of bytes like 4096, 64K, 16M, 2G\n",
               bytes_);
    return 2;
  }
  fsccl_explain_config_t config = FSCCL_EXPLAIN_CONFIG_INIT;
  config.hosts = hosts_;
  config.ranks_per_host = command_->count("--hosts") ? std::max(per_host_, 1) : ranks_;
  config.topology = topology_.empty() ? nullptr : topology_.c_str();
  config.tuning = tuning_.empty() ? nullptr : tuning_.c_str();
  std::string text;
  if (failed(fsccl_explain_for(&config, operation_.c_str(), *bytes, keep_text, &text))) return 1;
  if (json_) {
    fmt::print("{}\n", text);
  } else {
    const Json answer = Json::parse(text);
    print_costs(answer);
    print_candidates(answer);
    print_codecs(answer);
    if (answer.contains("kernels")) print_kernels(answer["kernels"]);
  }
  return 0;  // main() flushes
}
