#include "forecast/report.h"

#include <nlohmann/json.hpp>

#include "base/dtype.h"
#include "base/json_file.h"
#include "forecast/forecast.h"
#include "forecast/search.h"
#include "forecast/startup.h"

namespace fsccl::forecast {
namespace {

using Json = nlohmann::ordered_json;
constexpr double kS = 1e-9, kMs = 1e-6;
constexpr size_t kMostChoices = 10, kMostSpans = 20'000;

class Document : JsonReader {
 public:
  Document() : JsonReader("forecast") {}

  Status read(const nlohmann::json& json) {
    if (!check(json)) return problem();
    return success();
  }
  double calibrated_s = 0, calibrated_tokens = 0, spread = 0.10, call_us = 0;
  double communication_s = 0;
  std::string source = "the configuration's";
  int experts = 0;

 private:
  bool check(const nlohmann::json& json) {
    double per_token = 0;
    if (!object(json, "the configuration",
                {"model",
                 "machine",
                 "ranks",
                 "batch",
                 "sequence",
                 "accumulate",
                 "shard_over",
                 "shard_type",
                 "wire",
                 "reduce",
                 "gradient_type",
                 "compute",
                 "optimizer",
                 "optimizer_bytes",
                 "layout",
                 "keep_bytes",
                 "prefetch",
                 "by_parameter",
                 "checkpoint",
                 "codec_ratio",
                 "codec_gb_per_s",
                 "memory_limit_bytes",
                 "experts_per_token",
                 "calibration",
                 "search",
                 "what_if",
                 "scaling",
                 "startup",
                 "system_call_us",
                 "measured_communication_s",
                 "timeline"}))
      return false;
    for (const char* part : {"model", "machine"})
      if (!json.contains(part)) return wrong("the configuration has no \"{}\"", part);
    for (const char* part : {"search", "what_if", "scaling", "startup", "timeline"})
      if (json.contains(part) && !json[part].is_boolean())
        return wrong("{} must be true or false", part);
    if (!number(json, "experts_per_token", "the configuration", 1e6, &per_token) ||
        !number(json, "system_call_us", "the configuration", 1e6, &call_us) ||
        !number(json, "measured_communication_s", "the configuration", 1e9, &communication_s))
      return false;
    experts = static_cast<int>(per_token);
    return !json.contains("calibration") || calibration(json["calibration"]);
  }
  bool calibration(const nlohmann::json& json) {
    if (!object(json, "calibration",
                {"configuration", "step_s", "tokens_per_s_per_rank", "spread", "source"}) ||
        !number(json, "step_s", "calibration", 1e9, &calibrated_s) ||
        !number(json, "tokens_per_s_per_rank", "calibration", 1e12, &calibrated_tokens) ||
        !number(json, "spread", "calibration", 0.9, &spread) ||
        !text(json, "source", "calibration", false, &source))
      return false;
    return (calibrated_s > 0) != (calibrated_tokens > 0) ||
           wrong(
               "calibration needs either step_s or tokens_per_s_per_rank, above 0: what was "
               "measured");
  }
};

Json memory_json(const Forecast& forecast) {
  const Memory& memory = forecast.memory;
  Json json = {{"shards_bytes", memory.shards},
               {"sharded_gradients_bytes", memory.sharded_gradients},
               {"optimizer_bytes", memory.optimizer},
               {"parameter_slots_bytes", memory.parameter_slots},
               {"gradient_slots_bytes", memory.gradient_slots},
               {"activations_bytes", memory.activations},
               {"transports_bytes", memory.transports},
               {"context_bytes", memory.context},
               {"total_bytes", memory.total()},
               {"limit_bytes", forecast.memory_limit},
               {"fits", forecast.fits()},
               {"host_parameter_slots_bytes", memory.host_slots},
               {"planned_slots_bytes", forecast.slots.parameters + forecast.slots.gradients}};
  return json;
}

Json setup_json(const StepConfig& setup) {
  return {{"ranks", setup.ranks},
          {"shard_over", setup.shared_by()},
          {"batch", setup.batch},
          {"sequence", setup.sequence},
          {"accumulate", setup.accumulate},
          {"wire", dtype_name(setup.wire)},
          {"reduce", dtype_name(setup.reduce)},
          {"compute", setup.compute},
          {"layout", setup.layout == FSCCL_LAYOUT_FLAT     ? "flat"
                     : setup.layout == FSCCL_LAYOUT_RAGGED ? "ragged"
                                                           : "per_param"},
          {"prefetch", setup.prefetch},
          {"keep_bytes", setup.keep_bytes},
          {"by_parameter", setup.by_parameter},
          {"checkpoint", setup.checkpoint ? "full" : "none"},
          {"codec_ratio", setup.codec_ratio}};
}

Json step_json(const Forecaster& forecaster, const Forecast& forecast) {
  const Timeline& line = forecast.line;
  const double hidden = line.communication_ns - line.exposed_ns;
  Json bytes = Json::object();
  bytes[std::string(topo::traits(forecaster.machine().within.link).name)] = forecast.within_bytes;
  bytes["network"] = forecast.between_bytes;
  return {{"step_s", line.step_ns * kS},
          {"low_s", forecast.low_ns * kS},
          {"high_s", forecast.high_ns * kS},
          {"compute_s", line.compute_ns * kS},
          {"communication_s", line.communication_ns * kS},
          {"exposed_s", line.exposed_ns * kS},
          {"hidden_s", std::max(0.0, hidden) * kS},
          {"optimizer_s", line.optimizer_ns * kS},
          {"tokens_per_s", forecast.tokens_per_s_per_rank() * forecast.setup.ranks},
          {"tokens_per_s_per_rank", forecast.tokens_per_s_per_rank()},
          {"mfu", forecaster.mfu(forecast)},
          {"efficiency", forecaster.machine().efficiency},
          {"bytes_per_rank", bytes}};
}

Json units_json(const Forecaster& forecaster, const Forecast& forecast) {
  Json list = Json::array();
  for (size_t u = 0; u < forecast.units.size(); u++) {
    const UnitReport& unit = forecast.line.units[u];
    list.push_back(
        {{"name", forecaster.model().units[u].name},
         {"parameters", forecaster.model().units[u].elements()},
         {"gather_ms", forecast.units[u].price.gather.ns * kMs},
         {"reduce_ms",
          (forecast.units[u].price.reduce.ns + forecast.units[u].price.replicas.ns) * kMs},
         {"compute_ms", unit.compute_ns * kMs},
         {"exposed_ms", unit.exposed_ns * kMs},
         {"hidden_ms", std::max(0.0, unit.communication_ns - unit.exposed_ns) * kMs},
         {"gather", forecast.units[u].price.gather.how},
         {"reduce", forecast.units[u].price.reduce.how}});
  }
  return list;
}

Json timeline_json(const Forecaster& forecaster, const Forecast& forecast) {
  constexpr std::array kNames{"forward", "backward", "gather", "reduce", "optimizer"};
  Json spans = Json::array(), memory = Json::array();
  for (const Span& span : forecast.line.spans)
    if (spans.size() < kMostSpans)
      spans.push_back(
          {{"what", kNames[static_cast<size_t>(span.of)]},
           {"unit", span.of == Span::Of::optimizer ? "" : forecaster.model().units[span.unit].name},
           {"begin_ms", span.begin_ns * kMs},
           {"end_ms", span.end_ns * kMs}});
  const Memory& all = forecast.memory;
  const uint64_t still =
      all.shards + all.sharded_gradients + all.optimizer + all.transports + all.context;
  const Activations activations = activations_of(forecaster.model(), forecast.setup);
  const auto sharers = static_cast<uint64_t>(
      all.host_slots ? shard_group(forecast.setup, forecaster.machine()).per_host : 1);
  double held = 0;
  for (size_t i = 0; i < forecast.events.size(); i++) {
    const Event& event = forecast.events[i];
    const double before = event.unit ? activations.after[event.unit - 1] : 0;
    if (event.kind == EventKind::compute)
      held = event.backward ? before : activations.after[event.unit];
    memory.push_back({{"at_ms", forecast.line.event_ns[i] * kMs},
                      {"still_bytes", still},
                      {"slots_bytes", forecast.slots.live_parameters[i] / sharers +
                                          forecast.slots.live_gradients[i]},
                      {"activations_bytes", held}});
  }
  return {{"spans", spans}, {"memory", memory}};
}

Json search_json(const std::vector<Choice>& choices) {
  Json list = Json::array();
  for (size_t i = 0; i < std::min(choices.size(), kMostChoices); i++) {
    const Choice& choice = choices[i];
    list.push_back({{"shard_over", choice.setup.shared_by()},
                    {"keep_bytes", choice.setup.keep_bytes},
                    {"prefetch", choice.setup.prefetch},
                    {"by_parameter", choice.setup.by_parameter},
                    {"codec_ratio", choice.setup.codec_ratio},
                    {"checkpoint", choice.setup.checkpoint ? "full" : "none"},
                    {"step_s", choice.step_ns * kS},
                    {"exposed_s", choice.exposed_ns * kS},
                    {"tokens_per_s_per_rank", choice.tokens_per_s_per_rank},
                    {"memory_bytes", choice.memory},
                    {"fits", choice.fits}});
  }
  return list;
}

// In words: what to change so that it fits, if something does.
std::string advice_of(const Forecast& forecast, const std::vector<Choice>& choices) {
  if (forecast.fits()) return "";
  if (choices.empty() || !choices.front().fits)
    return fmt::format(
        "nothing that was tried fits {} bytes a rank: more ranks, a smaller batch ({} now) or "
        "shorter sequences ({} "
        "tokens now) lower it; the least that was found is {} bytes",
        forecast.memory_limit, forecast.setup.batch, forecast.setup.sequence,
        choices.empty() ? forecast.memory.total() : choices.front().memory);
  const StepConfig& setup = choices.front().setup;
  return fmt::format(
      "fits, and is the fastest of those that do: shards over {} ranks, prefetch {}, keep {} "
      "bytes, {}checkpointing "
      "{}: {} bytes a rank",
      setup.shared_by(), setup.prefetch, setup.keep_bytes,
      setup.by_parameter ? "slots by parameter, " : "", setup.checkpoint ? "full" : "none",
      choices.front().memory);
}

Result<Json> startup_json(int ranks, const Machine& machine, double call_us) {
  FSCCL_ASSIGN(const Startup start, startup_of(ranks, machine, call_us * 1e3));
  return Json{{"ranks", ranks},
              {"simulated_ranks", start.simulated_ranks},
              {"depth", start.depth},
              {"messages", start.messages},
              {"messages_of_a_rank_with_children", start.inner_messages},
              {"most_sockets_where_ranks_meet", start.meeting_sockets},
              {"most_sockets_of_a_rank_with_children", start.inner_sockets},
              {"most_sockets_of_a_rank_without", start.leaf_sockets},
              {"list_bytes", start.list_bytes},
              {"rendezvous_s", start.rendezvous_ns * kS},
              {"list_s", start.list_ns * kS},
              {"tree_s", start.tree_ns * kS},
              {"processor_s_of_a_rank", start.processor_ns * kS},
              {"time_s", start.ns() * kS}};
}

// Returns the costs that the figures do not include.
Json unknown_of(const Forecaster& forecaster, const StepConfig& setup) {
  Json list = Json::array();
  if (forecaster.model().estimated)
    list.push_back(
        "operations and activations are estimated from the shapes of the parameters: "
        "fsccl_torch.export_model() counts them");
  list.push_back(forecaster.machine().gpu ? "kernels that communicate and compute at the same time "
                                            "slow each other down: not modelled"
                                          : "caches and cores that communication and computation "
                                            "share: only the processor's time is");
  if (setup.ranks > forecaster.machine().ranks_per_host)
    list.push_back(
        "other traffic of the network, and how its switches are over-subscribed: not known");
  if (forecaster.machine().memory_gb_per_s <= 0)
    list.push_back("how fast memory is, so the optimizer's update is left out");
  list.push_back("reading of data, checkpoints to disk and evaluation: not in the step");
  list.push_back("memory that a framework's own allocator loses to fragments: not in the bytes");
  return list;
}

bool wanted(const nlohmann::json& json, const char* part) {
  return json.contains(part) && json[part].get<bool>();
}

Status add_extras(const nlohmann::json& given, Forecaster& forecaster, const Forecast& forecast,
                  double call_us, Json* json) {
  std::vector<Choice> choices;
  if (wanted(given, "search") || !forecast.fits()) {
    FSCCL_ASSIGN(choices, search(forecaster, forecast.setup));
    (*json)["search"] = search_json(choices);
  }
  if (const std::string advice = advice_of(forecast, choices); !advice.empty())
    (*json)["advice"] = advice;
  if (wanted(given, "what_if")) {
    FSCCL_ASSIGN(const std::vector<WhatIf> answers, what_if(forecaster, forecast.setup));
    (*json)["what_if"] = Json::array();
    for (const WhatIf& answer : answers)
      (*json)["what_if"].push_back({{"what", answer.what},
                                    {"step_s", answer.step_ns * kS},
                                    {"against", answer.step_ns / forecast.line.step_ns},
                                    {"fits", answer.fits}});
  }
  if (wanted(given, "scaling")) {
    FSCCL_ASSIGN(const std::vector<ScalePoint> points, scaling(forecaster, forecast.setup));
    (*json)["scaling"] = Json::array();
    for (const ScalePoint& point : points)
      (*json)["scaling"].push_back({{"ranks", point.ranks},
                                    {"step_s", point.step_ns * kS},
                                    {"exposed_s", point.exposed_ns * kS},
                                    {"tokens_per_s_per_rank", point.tokens_per_s_per_rank},
                                    {"memory_bytes", point.memory}});
  }
  if (wanted(given, "startup")) {
    FSCCL_ASSIGN((*json)["startup"],
                 startup_json(forecast.setup.ranks, forecaster.machine(), call_us));
  }
  if (wanted(given, "timeline")) (*json)["timeline"] = timeline_json(forecaster, forecast);
  return success();
}

// By what was measured: the communication of a step of just this setup, as fsccl-perf step has it,
// and then the time of a step.
Status calibrate(const nlohmann::json& given, const Document& document, Forecaster& forecaster,
                 StepConfig* setup) {
  if (document.communication_s > 0) {
    FSCCL_ASSIGN(const Forecast before, forecaster.run(*setup));
    if (before.line.communication_ns <= 0)
      return fail(
          FSCCL_ERR_INVALID_ARGUMENT,
          "measured_communication_s is {}, but this setup communicates nothing: leave it out",
          document.communication_s);
    const double once = before.line.communication_ns / setup->accumulate;
    setup->carry_factor = document.communication_s / (once * kS);
    forecaster.uncertainty.communication = 0.1;
    forecaster.uncertainty.origin += "; communication measured";
  }
  if (!given.contains("calibration")) return success();
  StepConfig measured = *setup;
  measured.memory_limit = 0;
  if (given["calibration"].contains("configuration"))
    FSCCL_TRY(read_step_config(given["calibration"]["configuration"], &measured));
  const double step_s = document.calibrated_s > 0 ? document.calibrated_s
                                                  : measured.tokens() / document.calibrated_tokens;
  return forecaster.calibrate(measured, step_s, document.spread, document.source);
}

}  // namespace

Result<std::string> forecast_json(const std::string& configuration) {
  FSCCL_ASSIGN(const nlohmann::json given, parse_json_text(configuration, "forecast"));
  Document document;
  FSCCL_TRY(document.read(given));
  StepConfig setup;
  FSCCL_TRY(read_step_config(given, &setup));
  FSCCL_ASSIGN(Model model, read_model(given["model"], document.experts));
  FSCCL_ASSIGN(Machine machine, read_machine(given["machine"], setup.compute));
  Forecaster forecaster(std::move(model), std::move(machine));
  FSCCL_TRY(calibrate(given, document, forecaster, &setup));
  FSCCL_ASSIGN(const Forecast forecast, forecaster.run(setup));
  Json json = {{"fsccl_forecast", 1},
               {"model",
                {{"name", forecaster.model().name},
                 {"parameters", forecaster.model().elements()},
                 {"units", forecaster.model().units.size()},
                 {"flops_per_token", 3 * forecaster.model().forward_flops(setup.sequence)},
                 {"estimated", forecaster.model().estimated}}},
               {"machine",
                {{"name", forecaster.machine().name},
                 {"source", forecaster.machine().source},
                 {"ranks_per_host", forecaster.machine().ranks_per_host},
                 {"hosts", std::max(1, setup.ranks / forecaster.machine().ranks_per_host)}}},
               {"setup", setup_json(setup)},
               {"memory", memory_json(forecast)},
               {"step", step_json(forecaster, forecast)},
               {"interval",
                {{"computation", forecaster.uncertainty.compute},
                 {"communication", forecaster.uncertainty.communication},
                 {"from", forecaster.uncertainty.origin}}},
               {"units", units_json(forecaster, forecast)},
               {"not_known", unknown_of(forecaster, setup)}};
  FSCCL_TRY(add_extras(given, forecaster, forecast, document.call_us, &json));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace fsccl::forecast
