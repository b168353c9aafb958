#include "forecast_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "numbers.h"

namespace {

using Json = nlohmann::json;
using fsccl::perf::format_bytes;

std::string bytes_of(const Json& json, const char* key) {
  return format_bytes(json[key].get<uint64_t>());
}

std::string codec_of(const Json& setup, bool within_hosts) {
  if (number_at(setup, "codec_ratio") <= 1) return "no codec";
  if (within_hosts) return "no use of the codec, because shards are gathered within hosts";
  const double rate = number_at(setup, "codec_gb_per_s");
  return fmt::format("a codec sends {:.3g} times fewer bytes between hosts{}",
                     number_at(setup, "codec_ratio"),
                     rate > 0 ? fmt::format(" and codes {:.3g} GB/s", rate) : "");
}

std::string trained_of(const Json& model) {
  if (model["trained_parameters"] == model["parameters"]) return "";
  return fmt::format(", {:.4g} billion of them trained,",
                     number_at(model, "trained_parameters") / 1e9);
}

std::string count_of(const Json& number, const char* what) {
  const int count = number.get<int>();
  const bool hisses = std::string_view(what).ends_with("ch");
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : hisses ? "es" : "s");
}

std::string head(const Json& answer) {
  const Json &model = answer["model"], &machine = answer["machine"], &setup = answer["setup"];
  return fmt::format(
      "{}: {:.4g} billion parameters{} in {} units, {:.4g} GFLOP a token{}\n"
      "on {} of {} ({} of {}), shards over {}; a rank has {} of {} of {} tokens; {} layout, "
      "prefetch {}, checkpointing {}, loss {}\n"
      "{}\n"
      "{} gathered, {} reduced, {} computed; shards {}, their gradients {}; {} with {} bytes of "
      "state "
      "an element; {} kept, slots by {}; {}\n\n",
      model["name"].get<std::string>(), number_at(model, "parameters") / 1e9, trained_of(model),
      model["units"].get<int>(), number_at(model, "flops_per_token") / 1e9,
      model["estimated"].get<bool>() ? " (estimated)" : "", count_of(setup["ranks"], "rank"),
      machine["name"].get<std::string>(), count_of(machine["hosts"], "host"),
      machine["ranks_per_host"].get<int>(), setup["shard_over"].get<int>(),
      count_of(setup["accumulate"], "micro-batch"), count_of(setup["batch"], "sequence"),
      setup["sequence"].get<int>(), setup["layout"].get<std::string>(),
      setup["prefetch"].get<int>(), setup["checkpoint"].get<std::string>(),
      setup["loss"].get<std::string>(), machine_text(answer), setup["wire"].get<std::string>(),
      setup["reduce"].get<std::string>(), setup["compute"].get<std::string>(),
      setup["shard_type"].get<std::string>(), setup["gradient_type"].get<std::string>(),
      setup["optimizer"].get<std::string>(), number_at(setup, "optimizer_bytes"),
      bytes_of(setup, "keep_bytes"), setup["by_parameter"].get<bool>() ? "parameter" : "unit",
      codec_of(setup, setup["shard_over"].get<int>() <= machine["ranks_per_host"].get<int>()));
}

std::string memory_text(const Json& answer) {
  const Json& memory = answer["memory"];
  std::string text = fmt::format("{:<34} {:>14}\n", "memory of a rank, at most", "bytes");
  for (const auto& [key, name] : kMemoryParts)
    text += fmt::format("  {:<32} {:>14}\n", name, bytes_of(memory, key));
  text += fmt::format("  {:<32} {:>14}", "all", bytes_of(memory, "total_bytes"));
  if (memory["limit_bytes"].get<uint64_t>())
    text += fmt::format(" of {}: {}", bytes_of(memory, "limit_bytes"),
                        memory["fits"].get<bool>() ? "fits" : "DOES NOT FIT");
  text += fmt::format("\n  {:<32} {:>14}\n", "at one time", bytes_of(memory, "at_once_bytes"));
  if (answer.contains("advice"))
    text += fmt::format("  what to change: {}\n", answer["advice"].get<std::string>());
  return text + "\n";
}

// Says at which rate a rank computes. A measured machine's rate is no peak.
std::string rate_of(const Json& answer) {
  const double part = number_at(answer["step"], "efficiency"),
               tflops = number_at(answer["machine"], "tflops");
  if (!answer["machine"]["measured"].get<bool>())
    return fmt::format("{:.1f} % of the peak", 100 * part);
  return part < 1 ? fmt::format("{:.1f} % of {:.4g} TFLOP/s", 100 * part, tflops)
                  : fmt::format("{:.4g} TFLOP/s", tflops);
}

std::string step_text(const Json& answer) {
  const Json &step = answer["step"], &interval = answer["interval"];
  std::string text = fmt::format(
      "step                {:>10.4g} s   (from {:.4g} to {:.4g} s; {})\n"
      "  computation       {:>10.4g} s   at {}\n"
      "  communication     {:>10.4g} s   of which exposed {:.4g} s, hidden {:.4g} s\n"
      "  optimizer         {:>10.4g} s\n"
      "tokens              {:>10.4g} /s  {:.4g} /s a rank\n"
      "MFU                 {:>10.1f} %   of {}\n",
      number_at(step, "step_s"), number_at(step, "low_s"), number_at(step, "high_s"),
      interval["from"].get<std::string>(), number_at(step, "compute_s"), rate_of(answer),
      number_at(step, "communication_s"), number_at(step, "exposed_s"), number_at(step, "hidden_s"),
      number_at(step, "optimizer_s"), number_at(step, "tokens_per_s"),
      number_at(step, "tokens_per_s_per_rank"), 100 * number_at(step, "mfu"),
      answer["machine"]["measured"].get<bool>() ? "that rate" : "the peak");
  for (const auto& [link, bytes] : step["bytes_per_rank"].items())
    text += fmt::format("{:<19} {:>10} a rank and step\n", "over " + link,
                        format_bytes(static_cast<uint64_t>(bytes.get<double>())));
  return text + "\n";
}

// Returns "layers.3-60.experts" for the first and the last name of units that differ in one number,
// and "first .. last" for others.
std::string names_of(const std::string& first, const std::string& last) {
  if (first == last) return first;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  size_t begin = 0, behind = 0;
  while (begin < std::min(first.size(), last.size()) && first[begin] == last[begin]) begin++;
  while (begin > 0 && digit(first[begin - 1])) begin--;
  while (behind < std::min(first.size(), last.size()) - begin &&
         first[first.size() - 1 - behind] == last[last.size() - 1 - behind])
    behind++;
  while (behind > 0 && digit(first[first.size() - behind])) behind--;
  const std::string from = first.substr(begin, first.size() - behind - begin),
                    to = last.substr(begin, last.size() - behind - begin);
  if (from.empty() || to.empty() || !std::all_of(from.begin(), from.end(), digit) ||
      !std::all_of(to.begin(), to.end(), digit))
    return first + " .. " + last;
  return first.substr(0, begin) + from + "-" + to + first.substr(first.size() - behind);
}

// Units that follow each other in a pattern of `period` units, `times` times.
struct Pattern {
  size_t period = 1, times = 1;
};
// Returns the pattern that begins at a unit. Units with equally many parameters count as equal.
Pattern pattern_at(const Json& units, size_t begin) {
  constexpr size_t kMostPeriod = 4;
  for (size_t period = 1; period <= kMostPeriod; period++) {
    size_t end = begin + period;
    while (end < units.size() && units[end]["parameters"] == units[end - period]["parameters"])
      end++;
    if (const size_t times = (end - begin) / period; times > 1) return {period, times};
  }
  return {};
}

// Gives one line to each unit of a pattern.
std::string units_text(const Json& answer) {
  std::string text =
      fmt::format("{:<28} {:>6} {:>14} {:>10} {:>10} {:>11} {:>11} {:>10}\n", "unit", "units",
                  "parameters", "gather ms", "reduce ms", "compute ms", "exposed ms", "hidden ms");
  const Json& units = answer["units"];
  for (size_t u = 0; u < units.size();) {
    const auto [period, times] = pattern_at(units, u);
    for (size_t first = u; first < u + period; first++) {
      double exposed = 0, hidden = 0, compute = 0;
      const size_t last = first + period * (times - 1);
      for (size_t i = first; i <= last; i += period) {
        exposed += number_at(units[i], "exposed_ms");
        hidden += number_at(units[i], "hidden_ms");
        compute += number_at(units[i], "compute_ms");
      }
      text += fmt::format(
          "{:<28} {:>6} {:>14} {:>10.4g} {:>10.4g} {:>11.4g} {:>11.4g} {:>10.4g}\n",
          names_of(units[first]["name"].get<std::string>(), units[last]["name"].get<std::string>()),
          times, units[first]["parameters"].get<uint64_t>(), number_at(units[first], "gather_ms"),
          number_at(units[first], "reduce_ms"), compute, exposed, hidden);
    }
    u += period * times;
  }
  const std::string gather = units.back()["gather"].get<std::string>(),
                    reduce = units.back()["reduce"].get<std::string>(),
                    replicas = units.back()["replicas"].get<std::string>();
  text += "gather and reduce: one unit once";
  if (!gather.empty()) text += fmt::format(", gathered by {}", gather);
  if (!reduce.empty()) text += fmt::format(", reduced by {}", reduce);
  if (!replicas.empty()) text += fmt::format(", copies of shards summed by {}", replicas);
  return text + "; compute, exposed and hidden: all units of the line in a step\n\n";
}

std::string search_text(const Json& answer) {
  if (!answer.contains("search")) return {};
  std::string text = fmt::format(
      "{:>5} {:>9} {:>10} {:>14} {:>8} {:>12} {:>10} {:>11} {:>10} {:>10} {:>14} {:>5}\n", "place",
      "batch", "over ranks", "keep", "prefetch", "by parameter", "checkpoint", "codec ratio",
      "step s", "exposed s", "memory a rank", "fits");
  for (const Json& row : answer["search"])
    text += fmt::format(
        "{:>5} {:>9} {:>10} {:>14} {:>8} {:>12} {:>10} {:>11.3g} {:>10.4g} {:>10.4g} {:>14} "
        "{:>5}{}\n",
        row["place"].get<int>(),
        fmt::format("{} x {}", row["accumulate"].get<int>(), row["batch"].get<int>()),
        row["shard_over"].get<int>(), bytes_of(row, "keep_bytes"), row["prefetch"].get<int>(),
        row["by_parameter"].get<bool>() ? "yes" : "no", row["checkpoint"].get<std::string>(),
        number_at(row, "codec_ratio"), number_at(row, "step_s"), number_at(row, "exposed_s"),
        bytes_of(row, "memory_bytes"), row["fits"].get<bool>() ? "yes" : "no",
        row["now"].get<bool>() ? "  now" : "");
  return text + "batch: micro-batches x sequences of each\n\n";
}

std::string what_if_text(const Json& answer) {
  if (!answer.contains("what_if")) return {};
  std::string text =
      fmt::format("{:<36} {:>10} {:>12} {:>5}\n", "what if", "step s", "against now", "fits");
  for (const Json& row : answer["what_if"])
    text += fmt::format("{:<36} {:>10.4g} {:>11.1f}% {:>5}\n", row["what"].get<std::string>(),
                        number_at(row, "step_s"), 100 * (number_at(row, "against") - 1),
                        row["fits"].get<bool>() ? "yes" : "no");
  return text + "\n";
}

std::string scaling_text(const Json& answer) {
  if (!answer.contains("scaling")) return {};
  std::string text =
      fmt::format("{:>8} {:>11} {:>10} {:>10} {:>20} {:>14} {:>5}\n", "ranks", "shards over",
                  "step s", "exposed s", "tokens/s of a rank", "memory a rank", "fits");
  for (const Json& row : answer["scaling"])
    text +=
        fmt::format("{:>8} {:>11} {:>10.4g} {:>10.4g} {:>20.5g} {:>14} {:>5}\n",
                    row["ranks"].get<int>(), row["shard_over"].get<int>(), number_at(row, "step_s"),
                    number_at(row, "exposed_s"), number_at(row, "tokens_per_s_per_rank"),
                    bytes_of(row, "memory_bytes"), row["fits"].get<bool>() ? "yes" : "no");
  return text + "\n";
}

std::string lines_of(const Json& texts) {
  std::string lines;
  for (const Json& one : texts) lines += fmt::format("  {}\n", one.get<std::string>());
  return lines;
}

// Names what was asked for and has no forecast.
std::string left_out_text(const Json& answer) {
  if (!answer.contains("left_out")) return {};
  return "left out:\n" + lines_of(answer["left_out"]) + "\n";
}

std::string startup_text(const Json& answer) {
  if (!answer.contains("startup")) return {};
  const Json& start = answer["startup"];
  return fmt::format(
      "start of {} ranks, as {} simulated ones run it: {:.4g} s (rendezvous {:.4g} s, list of "
      "members {:.4g} s, tree {:.4g} s, {:.4g} s of processor time a rank); {} messages in all\n"
      "  sockets at once: {} of the process where the ranks meet, {} of a rank with children, {} "
      "of "
      "one without; tree of depth {}; the list has {}\n\n",
      start["ranks"].get<int>(), start["simulated_ranks"].get<int>(), number_at(start, "time_s"),
      number_at(start, "rendezvous_s"), number_at(start, "list_s"), number_at(start, "tree_s"),
      number_at(start, "processor_s_of_a_rank"), start["messages"].get<int64_t>(),
      start["most_sockets_where_ranks_meet"].get<int>(),
      start["most_sockets_of_a_rank_with_children"].get<int>(),
      start["most_sockets_of_a_rank_without"].get<int>(), start["depth"].get<int>(),
      format_bytes(static_cast<uint64_t>(number_at(start, "list_bytes"))));
}

}  // namespace

double number_at(const Json& part, const char* key) { return part[key].get<double>(); }

std::string machine_text(const Json& answer) {
  const Json& machine = answer["machine"];
  const std::string topology = machine["topology"].get<std::string>(),
                    within = machine["within"].get<std::string>();
  const bool measured = machine["measured"].get<bool>();
  std::string text = fmt::format(
      "a rank computes {:.4g} TFLOP/s ({}); {} within a host", number_at(machine, "tflops"),
      measured ? machine["source"].get<std::string>() : "at its peak",
      measured ? fmt::format("by {}, with the measured costs of the plans", within)
               : fmt::format("{:.4g} GB/s one way by {}", number_at(machine, "within_gb_per_s"),
                             within));
  if (machine["hosts"].get<int>() > 1)
    text += fmt::format(", {:.4g} GB/s one way of a host's network",
                        number_at(machine, "between_gb_per_s"));
  if (!topology.empty()) text += fmt::format(" (hosts and links from the topology {})", topology);
  return text + (machine["carrier"] == "nccl" ? "; NCCL moves all bytes" : "");
}

std::string forecast_text(const Json& answer) {
  return head(answer) + memory_text(answer) + step_text(answer) + units_text(answer) +
         search_text(answer) + what_if_text(answer) + scaling_text(answer) + left_out_text(answer) +
         startup_text(answer) + "not known:\n" + lines_of(answer["not_known"]);
}
