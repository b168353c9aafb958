#include "forecast/report.h"

#include "base/json_file.h"
#include "base/json_writer.h"
#include "forecast/answer.h"

namespace fsccl::forecast {
namespace {

class Document : JsonReader {
 public:
  Document() : JsonReader("forecast") {}

  Status read(const JsonValue& json) {
    if (!check(json)) return problem();
    return success();
  }
  double calibrated_s = 0, calibrated_tokens = 0, spread = 0.10, call_us = 0;
  double communication_s = 0;
  std::string source = "the configuration's";
  int experts = 0;

 private:
  bool check(const JsonValue& json) {
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
                 "loss",
                 "codec",
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
    if (!whole(json, "experts_per_token", "the configuration", 1e6, &per_token) ||
        !number(json, "system_call_us", "the configuration", 1e6, &call_us) ||
        !number(json, "measured_communication_s", "the configuration", 1e9, &communication_s))
      return false;
    experts = static_cast<int>(per_token);
    return !json.contains("calibration") || calibration(json["calibration"]);
  }
  bool calibration(const JsonValue& json) {
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

// Adapts the forecast to measurements of just this setup: first to the communication that
// `fsccl-perf step` measures, then to the time of a step.
Status calibrate(const JsonValue& given, const Document& document, Forecaster& forecaster,
                 StepConfig* setup) {
  if (document.communication_s > 0) {
    FSCCL_ASSIGN(const Forecast before, forecaster.run(*setup));
    if (before.line.communication_ns <= 0)
      return fail(
          FSCCL_ERR_INVALID_ARGUMENT,
          "measured_communication_s is {}, but this setup communicates nothing: leave it out",
          document.communication_s);
    const double once = before.line.communication_ns / setup->accumulate;
    setup->carry_factor = document.communication_s / (once * 1e-9);
    forecaster.uncertainty.communication = 0.1;
  }
  if (!given.contains("calibration")) return success();
  StepConfig measured = *setup;
  measured.memory_limit = 0;
  if (given["calibration"].contains("configuration")) {
    constexpr const char* kPlace = "calibration.configuration";
    FSCCL_TRY(read_only_step_config(given["calibration"]["configuration"], kPlace, &measured));
    if (const std::string why = forecaster.misfit(measured); !why.empty())
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{}, whose other keys are those of this forecast: {}",
                  kPlace, why);
  }
  const double step_s = document.calibrated_s > 0 ? document.calibrated_s
                                                  : measured.tokens() / document.calibrated_tokens;
  return forecaster.calibrate(measured, step_s, document.spread, document.source);
}

}  // namespace

Result<std::string> forecast_json(const std::string& configuration) {
  FSCCL_ASSIGN(const JsonValue given, parse_json_text(configuration, "forecast"));
  Document document;
  FSCCL_TRY(document.read(given));
  StepConfig setup;
  FSCCL_TRY(read_step_config(given, &setup));
  FSCCL_ASSIGN(Model model, read_model(given["model"], document.experts, setup.value_bytes()));
  FSCCL_ASSIGN(Machine machine, read_machine(given["machine"], setup.compute, setup.ranks));
  setup.host_ranks = machine.ranks_per_host;
  Forecaster forecaster(std::move(model), std::move(machine));
  FSCCL_TRY(calibrate(given, document, forecaster, &setup));
  if (document.communication_s > 0)
    forecaster.uncertainty.origin += "; communication of a step measured";
  FSCCL_ASSIGN(const Forecast forecast, forecaster.run(setup));
  Status extras;
  const std::string text = write_json([&](JsonWriter& out) {
    out.begin_map();
    write_answer(given, forecaster, forecast, out);
    extras = write_extras(given, forecaster, forecast, document.call_us, out);
    out.end_map();
  });
  FSCCL_TRY(std::move(extras));
  return text;
}

}  // namespace fsccl::forecast
