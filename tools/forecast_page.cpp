// Makes the page of a forecast: the two streams of a step, memory over time, units, and the step on
// more ranks. Charts of what the answer lacks are left out.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "forecast_text.h"
#include "html.h"
#include "numbers.h"

namespace {

using Json = nlohmann::json;
using fsccl::perf::Axis;
using fsccl::perf::draw;
using fsccl::perf::format_bytes;
using fsccl::perf::Line;
using fsccl::perf::LineChart;
using fsccl::perf::MapChart;
using fsccl::perf::Table;

constexpr size_t kMostAreas = 4000;

std::string streams_chart(const Json& answer) {
  if (!answer.contains("timeline")) return {};
  MapChart chart;
  chart.title = "A micro-batch on two streams";
  chart.x_label = "ms";
  chart.scaled = false;
  chart.bands = {{"communication", 1}, {"computation", 1}};
  const std::vector<std::string> kinds{"forward", "backward", "gather", "reduce", "optimizer"};
  for (size_t i = 0; i < kinds.size(); i++) chart.legend.push_back({kinds[i], i, false});
  for (const Json& span : answer["timeline"]["spans"]) {
    if (chart.areas.size() == kMostAreas) break;
    const std::string what = span["what"].get<std::string>(),
                      unit = span["unit"].get<std::string>();
    // The update comes after the last micro-batch, of which the chart shows the first.
    if (what == "optimizer" && answer["setup"]["accumulate"].get<int>() > 1) continue;
    const size_t kind =
        static_cast<size_t>(std::find(kinds.begin(), kinds.end(), what) - kinds.begin());
    MapChart::Area area;
    area.band = what == "gather" || what == "reduce" ? 0 : 1;
    area.begin = number_at(span, "begin_ms"), area.end = number_at(span, "end_ms");
    area.high = 1;
    area.color = kind;
    area.label = unit;
    area.words = fmt::format("{}{}{}: {:.3f} ms", what, unit.empty() ? "" : " ", unit,
                             area.end - area.begin);
    chart.x_end = std::max(chart.x_end, area.end);
    chart.areas.push_back(std::move(area));
  }
  return draw(chart);
}

std::string memory_chart(const Json& answer) {
  if (!answer.contains("timeline")) return {};
  Line all{"all in use", {}, 0, false, false, true}, slots{"slots", {}, 1, false, false, true};
  Line activations{"activations", {}, 2, false, false, true}, limit{"limit", {}, 7, true};
  // Memory that one owner has freed stays reserved, so a rank needs more than is in use.
  Line needed{"needed: the most of each owner", {}, 3, true};
  const double most = number_at(answer["memory"], "limit_bytes");
  for (const Json& point : answer["timeline"]["memory"]) {
    const double at = number_at(point, "at_ms"), of_slots = number_at(point, "slots_bytes"),
                 held = number_at(point, "activations_bytes");
    slots.points.emplace_back(at, of_slots);
    activations.points.emplace_back(at, held);
    all.points.emplace_back(at, number_at(point, "still_bytes") + of_slots + held);
    needed.points.emplace_back(at, number_at(answer["memory"], "total_bytes"));
    if (most > 0) limit.points.emplace_back(at, most);
  }
  return draw(LineChart{"Memory of a rank",
                        "ms of the micro-batch",
                        "bytes",
                        Axis::kLinear,
                        Axis::kBytes,
                        {std::move(limit), std::move(needed), std::move(all),
                         std::move(activations), std::move(slots)}});
}

std::string scaling_chart(const Json& answer) {
  if (!answer.contains("scaling")) return {};
  Line step{"step", {}, 0}, exposed{"exposed communication", {}, 1};
  for (const Json& point : answer["scaling"]) {
    step.points.emplace_back(number_at(point, "ranks"), number_at(point, "step_s"));
    exposed.points.emplace_back(number_at(point, "ranks"), number_at(point, "exposed_s"));
  }
  return draw(LineChart{"The same work a rank on more ranks",
                        "ranks",
                        "s",
                        Axis::kLog,
                        Axis::kLinear,
                        {std::move(step), std::move(exposed)}});
}

std::string memory_table(const Json& answer) {
  Table table{{"memory of a rank", "bytes"}, {}};
  const Json& memory = answer["memory"];
  const auto row = [&](const char* key, const char* name) {
    table.rows.push_back({name, format_bytes(memory[key].get<uint64_t>())});
  };
  for (const auto& [key, name] : kMemoryParts) row(key, name);
  row("total_bytes", "all");
  row("at_once_bytes", "at one time");
  if (memory["limit_bytes"].get<uint64_t>()) row("limit_bytes", "limit");
  return draw(table);
}

std::string text_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_string()) return value.get<std::string>();
  return value.is_number_integer() ? fmt::format("{}", value.get<int64_t>())
                                   : fmt::format("{:.5g}", value.get<double>());
}

// Draws a row for each part of the list. A column is a key and its name. Returns an empty text if
// there is no list.
std::string list_table(const Json& answer, const char* list,
                       std::initializer_list<std::pair<const char*, const char*>> columns) {
  if (!answer.contains(list)) return {};
  Table table;
  for (const auto& [key, name] : columns) table.head.emplace_back(name);
  for (const Json& part : answer[list]) {
    std::vector<std::string>& row = table.rows.emplace_back();
    for (const auto& [key, name] : columns)
      row.push_back(std::string_view(key).ends_with("_bytes")
                        ? format_bytes(part[key].get<uint64_t>())
                        : text_of(part[key]));
  }
  return draw(table);
}

std::string startup_table(const Json& answer) {
  if (!answer.contains("startup")) return {};
  const Json& start = answer["startup"];
  Table table{{"the start", "value"}, {}};
  for (const auto& [key, name] :
       {std::pair("time_s", "all, s"), std::pair("rendezvous_s", "rendezvous, s"),
        std::pair("list_s", "list of members, s"), std::pair("tree_s", "tree, s"),
        std::pair("processor_s_of_a_rank", "processor time of a rank, s"),
        std::pair("messages", "messages of all ranks"),
        std::pair("most_sockets_where_ranks_meet", "sockets at once where the ranks meet")})
    table.rows.push_back({name, text_of(start[key])});
  return draw(table);
}

std::string step_table(const Json& answer) {
  const bool measured = answer["machine"]["measured"].get<bool>();
  Table table{{"the step", "value"}, {}};
  for (const auto& [key, name] :
       {std::pair("step_s", "step, s"), std::pair("low_s", "step at least, s"),
        std::pair("high_s", "step at most, s"), std::pair("compute_s", "computation, s"),
        std::pair("communication_s", "communication, s"),
        std::pair("exposed_s", "of it exposed, s"), std::pair("hidden_s", "of it hidden, s"),
        std::pair("optimizer_s", "optimizer, s"), std::pair("tokens_per_s", "tokens/s"),
        std::pair("tokens_per_s_per_rank", "tokens/s of a rank"),
        std::pair("efficiency", measured ? "computation, part of the measured rate"
                                         : "computation, part of the peak"),
        std::pair("mfu", measured ? "part of the measured rate" : "MFU, part of the peak")})
    table.rows.push_back({name, text_of(answer["step"][key])});
  for (const auto& [link, bytes] : answer["step"]["bytes_per_rank"].items())
    table.rows.push_back(
        {"over " + link + ", a rank", format_bytes(static_cast<uint64_t>(bytes.get<double>()))});
  return draw(table);
}

std::string setup_table(const Json& answer) {
  Table table{{"the setup", "value"}, {}};
  for (const auto& [key, name] :
       {std::pair("layout", "layout of the shards"), std::pair("prefetch", "prefetch, units"),
        std::pair("checkpoint", "checkpointing"), std::pair("loss", "loss"),
        std::pair("by_parameter", "slots by parameter"), std::pair("keep_bytes", "kept, bytes"),
        std::pair("wire", "type of gathers"), std::pair("reduce", "type of reductions"),
        std::pair("compute", "type of computation"), std::pair("shard_type", "type of shards"),
        std::pair("gradient_type", "type of their gradients"), std::pair("optimizer", "optimizer"),
        std::pair("optimizer_bytes", "its states, bytes an element"),
        std::pair("codec_ratio", "codec, times fewer bytes")})
    table.rows.push_back({name, text_of(answer["setup"][key])});
  return draw(table);
}

std::string units_table(const Json& answer) {
  Table table{{"unit", "parameters", "gather ms", "reduce ms", "compute ms", "exposed ms"}, {}};
  for (const Json& unit : answer["units"])
    table.rows.push_back({unit["name"].get<std::string>(),
                          fmt::format("{}", unit["parameters"].get<uint64_t>()),
                          fmt::format("{:.4g}", number_at(unit, "gather_ms")),
                          fmt::format("{:.4g}", number_at(unit, "reduce_ms")),
                          fmt::format("{:.4g}", number_at(unit, "compute_ms")),
                          fmt::format("{:.4g}", number_at(unit, "exposed_ms"))});
  return draw(table);
}

// Returns the texts of a list as parts of one sentence.
std::string texts_of(const Json& list) {
  std::string all;
  for (const Json& one : list) all += (all.empty() ? "" : "; ") + one.get<std::string>();
  return all;
}

}  // namespace

std::string forecast_page(const Json& answer) {
  const Json& setup = answer["setup"];
  std::string subtitle = fmt::format(
      "{} ranks of {}, shards over {} ranks, {} x {} x {} tokens a rank (micro-batches, sequences, "
      "tokens of a sequence); {}. The step takes {} to {} s by this forecast ({}). "
      "Not known: {}.",
      setup["ranks"].get<int>(), answer["machine"]["name"].get<std::string>(),
      setup["shard_over"].get<int>(), setup["accumulate"].get<int>(), setup["batch"].get<int>(),
      setup["sequence"].get<int>(), machine_text(answer),
      fmt::format("{:.4g}", number_at(answer["step"], "low_s")),
      fmt::format("{:.4g}", number_at(answer["step"], "high_s")),
      answer["interval"]["from"].get<std::string>(), texts_of(answer["not_known"]));
  if (answer.contains("left_out")) subtitle += " Left out: " + texts_of(answer["left_out"]) + ".";
  if (answer.contains("advice"))
    subtitle += " To make it fit: " + answer["advice"].get<std::string>() + ".";
  return fsccl::perf::make_page(
      "fsccl-info forecast: " + answer["model"]["name"].get<std::string>(), subtitle,
      {streams_chart(answer), memory_chart(answer), scaling_chart(answer)},
      {memory_table(answer), step_table(answer), setup_table(answer), units_table(answer),
       list_table(answer, "search",
                  {{"now", "now"},
                   {"accumulate", "micro-batches"},
                   {"batch", "sequences of each"},
                   {"shard_over", "shards over ranks"},
                   {"keep_bytes", "kept"},
                   {"prefetch", "prefetch, units"},
                   {"by_parameter", "by parameter"},
                   {"checkpoint", "checkpointing"},
                   {"codec_ratio", "codec, times fewer bytes"},
                   {"step_s", "step, s"},
                   {"exposed_s", "exposed, s"},
                   {"memory_bytes", "memory of a rank"},
                   {"fits", "fits"}}),
       list_table(answer, "what_if",
                  {{"what", "what if"},
                   {"step_s", "step, s"},
                   {"against", "step / step now"},
                   {"fits", "fits"}}),
       list_table(answer, "scaling",
                  {{"ranks", "ranks"},
                   {"shard_over", "shards over ranks"},
                   {"step_s", "step, s"},
                   {"exposed_s", "exposed, s"},
                   {"memory_bytes", "memory of a rank"},
                   {"fits", "fits"}}),
       startup_table(answer)});
}
