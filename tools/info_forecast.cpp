#include "info_forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json_file.h"
#include "base/program.h"
#include "checked_json.h"
#include "forecast_text.h"
#include "fsccl/insight.h"
#include "html.h"
#include "info_error.h"
#include "kept_text.h"
#include "model.h"
#include "named_file.h"
#include "numbers.h"
#include "option_names.h"
#include "own_input.h"
#include "this_machine.h"
#include "whole_number.h"

namespace {

using Json = nlohmann::json;

// Reads a file that must hold an object.
std::optional<Json> read_json(const std::string& path) {
  constexpr size_t kMostBytes = size_t{256} << 20;
  fsccl::Result<std::string> text = fsccl::read_text_file(path, kMostBytes);
  fsccl::Result<Json> json =
      text.ok() ? parse_checked(text.value(), path) : fsccl::Result<Json>(text.take_status());
  if (!json.ok()) {
    fmt::print(stderr, "fsccl-info: {}\n", json.status().text());
    return std::nullopt;
  }
  if (json.value().is_object()) return json.take();
  fmt::print(stderr, "fsccl-info: {}: an object was expected, such as {{\"name\": ...}}\n", path);
  return std::nullopt;
}

// The folder of machines lies beside that of the models.
std::vector<std::string> machine_folders() {
  std::vector<std::string> folders = fsccl::perf::model_folders();
  for (std::string& folder : folders)
    folder = (std::filesystem::path(folder).parent_path() / "machines").string();
  return folders;
}

std::optional<uint64_t> bytes_given(const std::string& text, const char* option) {
  const std::optional<uint64_t> bytes = fsccl::perf::parse_bytes(text);
  if (!bytes)
    fmt::print(stderr, "fsccl-info: {} {}: not a size: a number of bytes like 64K, 16M, 2G\n",
               option, text);
  return bytes;
}

}  // namespace

ForecastCommand::ForecastCommand(CLI::App& app)
    : command_(
          app.add_subcommand("forecast",
                             "memory and time of a training step before it runs, from the plans "
                             "that would run; what would be better, and what if")) {
  add_model_options();
  add_step_options();
  add_output_options();
  command_->footer(
      "Slots are those of the pool's planner, times those of the plans' cost model and of two "
      "streams; docs/forecast.md has the residuals against what was\nmeasured. The interval of an "
      "uncalibrated forecast is wide: --measured calibrates it. Exit status: 0 (also where it does "
      "not fit); 2 if an option is malformed or the page cannot be written; 1 if a file cannot be "
      "used, or there is no forecast of the model, the machine and the setup together.");
}

namespace {

const CLI::Validator above_0(
    [](const std::string& text) -> std::string {
      double value = 0;
      const bool good = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value > 0;
      return good ? "" : fmt::format("{} is no number above 0", text);
    },
    "ABOVE 0");

CLI::Validator from_to(double least, double most) {
  return {[=](const std::string& text) -> std::string {
            double value = 0;
            const bool good = CLI::detail::lexical_cast(text, value) && value >= least &&
                              value <= most;  // a NaN is neither
            if (good) return "";
            return fmt::format("{} is no number from {:.4g} to {:.6g}", text, least, most);
          },
          fmt::format("{} TO {}", least, most)};
}

const CLI::Validator named([](const std::string& text) { return file_name_problem(text); }, "");

}  // namespace

void ForecastCommand::add_model_options() {
  command_
      ->add_option("model", model_,
                   "a known model (an unknown one lists those there are), or a JSON file: "
                   "fsccl_torch.export_model() writes one")
      ->required();
  command_
      ->add_option("--machine", machine_,
                   "a known machine (an unknown one lists those there are), a JSON file, or here: "
                   "this one, measured")
      ->type_name("NAME|FILE|here")
      ->capture_default_str();
  command_
      ->add_option("--topology", topology_,
                   "hosts and links from a topology, as `fsccl-info topology` takes it")
      ->type_name("FILE")
      ->check(named);
  constexpr double kMostTflops = 1e5;  // as fsccl_forecast() takes them
  command_
      ->add_option("--tflops", tflops_,
                   "what a rank computes at its peak, in --compute, in 10^12 operations a second")
      ->check(from_to(1e-6, kMostTflops));
  CLI::Option* const efficiency =
      command_
          ->add_option("--efficiency", efficiency_,
                       "the part of --tflops that passes reach, up to 1")
          ->check(from_to(1e-3, 1));
  command_
      ->add_option("--measured", measured_s_,
                   "seconds of a step that was measured in just this setup: calibrates the machine")
      ->type_name("S")
      ->check(above_0)
      ->excludes(efficiency);
  command_
      ->add_option("--measured-communication", communication_s_,
                   "seconds of a micro-batch that `fsccl-perf step` measured in this setup: "
                   "calibrates the links")
      ->type_name("S")
      ->check(above_0);
  command_
      ->add_option("--carrier", carrier_,
                   "who moves the bytes. nccl: NCCL alone, as in PyTorch without this library; "
                   "plans (the default): this library, with NCCL between hosts with GPUs")
      ->check(CLI::IsMember({"plans", "nccl"}));
  command_
      ->add_option("--experts-per-token", experts_,
                   "experts of a layer that a token uses, in a mixture of experts")
      ->transform(whole_from_to(0, 1000000));
}

void ForecastCommand::add_step_options() {
  const auto number = [&](const char* name, int& value, int least, int most, const char* text) {
    command_->add_option(name, value, text)
        ->transform(whole_from_to(least, most))
        ->type_name("N")
        ->capture_default_str();
  };
  const auto word = [&](const char* name, std::string& value, std::vector<std::string> known,
                        const char* text) {
    command_->add_option(name, value, text)->check(CLI::IsMember(known))->capture_default_str();
  };
  number("--ranks", ranks_, 1, 1 << 20, "the number of all ranks");
  number("--batch", batch_, 1, 1 << 20, "sequences of a rank in a micro-batch");
  number("--sequence", sequence_, 1, 1 << 27, "tokens of a sequence");
  number("--accumulate", accumulate_, 1, 1 << 16,
         "micro-batches of a step, each of which gathers and reduces");
  command_
      ->add_option("--sharding", sharding_,
                   "full; host: each host has a copy; or over so many ranks")
      ->type_name("full|host|N")
      ->capture_default_str();
  word("--layout", layout_, {"per_param", "flat", "ragged"},
       "how shards divide parameters (FSDP2 has per_param)");
  word("--wire", wire_, {"bf16", "fp16", "fp32"}, "type of gathered parameters");
  word("--reduce", reduce_, {"bf16", "fp16", "fp32"}, "type of gradients that are reduced");
  command_->add_option("--compute", compute_, "type of the computation: bf16, fp8, ...")
      ->capture_default_str();
  word("--optimizer", optimizer_, {"adam", "momentum", "sgd", "none"},
       "whose states, in fp32, lie beside the shards");
  command_->add_option("--keep", keep_, "gathered parameters that stay for the backward pass")
      ->type_name("BYTES");
  number("--prefetch", prefetch_, 0, 8, "units gathered ahead");
  command_->add_flag("--by-parameter", by_parameter_, "a slot for each parameter and gradient");
  word("--checkpoint", checkpoint_, {"none", "selective", "full"},
       "none: layers keep all activations; "
       "full: layers keep their input alone, and the backward pass computes the rest again; "
       "selective: they also keep the results of attention and of every second matrix");
  word("--loss", loss_, {"fp32", "fused"},
       "fp32: torch's cross_entropy() in that type; fused: one that keeps the logits alone");
  CLI::Option* const codec =
      command_
          ->add_option("--codec", codec_,
                       "a codec of gathers, with the ratio in docs/codecs.md (delta: its least, 4)")
          ->check(CLI::IsMember({"delta", "int8", "fp8", "mxfp8"}));
  command_
      ->add_option("--codec-ratio", codec_ratio_,
                   "how many times fewer bytes a codec gathers between hosts (with GPUs also "
                   "within a host), from 1 to 100")
      ->check(from_to(1, 100))
      ->excludes(codec);
  command_
      ->add_option("--codec-rate", codec_gb_per_s_,
                   "GB/s at which the codec encodes and decodes; 0: coding takes no time")
      ->check(from_to(0, 1e6));
  command_
      ->add_option("--memory-limit", memory_limit_,
                   "what a rank may take; by default, the memory that the machine's file gives it")
      ->type_name("BYTES");
}

void ForecastCommand::add_output_options() {
  command_->add_flag("--search", search_,
                     "also other degrees, kept bytes, prefetch, slots by parameter, checkpointing "
                     "and sizes of micro-batches, ranked under the memory limit");
  command_->add_flag("--what-if", what_if_, "also other networks, a straggler, twice the ranks");
  command_->add_flag("--scaling", scaling_, "also the same work a rank on 8 to 100,000 ranks");
  command_->add_flag("--startup", startup_, "also messages, descriptors and time of the start");
  command_->add_option("--config", config_, "keys of fsccl_forecast() (insight.h), which win")
      ->type_name("FILE")
      ->check(named);
  command_->add_flag("--json", json_, "as JSON (insight.h)");
  command_
      ->add_option("--report", report_, "write an HTML page: streams, memory over time, scaling")
      ->type_name("FILE")
      ->check(named);
}

namespace {

fsccl_dtype_t type_of(const std::string& name) {
  return name == "bf16" ? FSCCL_BFLOAT16 : name == "fp16" ? FSCCL_FLOAT16 : FSCCL_FLOAT32;
}

// Returns the text at a key of an object, if there is one.
std::optional<std::string> text_at(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? std::optional(found->get<std::string>())
                                                   : std::nullopt;
}

}  // namespace

// Returns the path of the machine's file, or "here". Returns nothing, after a line on the standard
// error, if --machine is wrong.
std::optional<std::string> ForecastCommand::machine_file() const {
  if (machine_ != "here") return find_named(machine_, "machine", machine_folders());
  constexpr int kMostHere = 4096;  // as fsccl_forecast() takes it for a host
  if (ranks_ <= kMostHere) return machine_;
  fmt::print(stderr,
             "fsccl-info: --machine here: all {} ranks would be on this host, which may have {}: "
             "give fewer, or another machine\n",
             ranks_, kMostHere);
  return std::nullopt;
}

std::optional<Json> ForecastCommand::machine(const std::string& file,
                                             const std::string& compute) const {
  std::optional<Json> machine;
  if (machine_ == "here")
    machine = measure_this_machine(type_of(wire_), type_of(reduce_), ranks_);
  else
    machine = read_json(file);
  if (!machine) return machine;
  if (!topology_.empty()) {
    for (const char* key : {"ranks_per_host", "cores_per_host", "within", "between"})
      machine->erase(key);
    (*machine)["topology"] = topology_;
  }
  if (tflops_ > 0) {
    Json& rates = (*machine)["tflops"];
    if (!rates.is_object()) rates = Json::object();
    rates[compute] = tflops_;
    if (machine_ == "here") (*machine)["source"] = "of --tflops; the rest was measured here";
  }
  if (efficiency_ > 0) (*machine)["efficiency"] = efficiency_;
  if (!carrier_.empty()) (*machine)["carrier"] = carrier_;
  return machine;
}

// Adds the options that are sizes. Returns false, after a line on the standard error, if one is
// wrong.
bool ForecastCommand::add_sizes(Json* given) const {
  if (sharding_ == "host") {
    (*given)["shard_over"] = sharding_;
  } else if (sharding_ != "full") {
    const std::optional<int> degree = whole_number(sharding_, 1, 1 << 20);
    if (!degree) {
      fmt::print(stderr,
                 "fsccl-info: --sharding {}: give full, host or a number of ranks from 1 to {}\n",
                 sharding_, 1 << 20);
      return false;
    }
    (*given)["shard_over"] = *degree;
  }
  for (const auto& [text, option, key] :
       {std::tuple(keep_, "--keep", "keep_bytes"),
        std::tuple(memory_limit_, "--memory-limit", "memory_limit_bytes")}) {
    if (text.empty()) continue;
    const auto bytes = bytes_given(text, option);
    if (!bytes) return false;
    if (*bytes == 0 && key == std::string_view("memory_limit_bytes")) {
      fmt::print(stderr, "fsccl-info: {} 0: nothing fits into it; leave it out for the machine's\n",
                 option);
      return false;
    }
    constexpr uint64_t kLeastLimit = uint64_t{1} << 20;
    if (key == std::string_view("memory_limit_bytes") && *bytes < kLeastLimit) {
      fmt::print(stderr,
                 "fsccl-info: {} {}: no rank takes as little as {} bytes; give the unit, too, such "
                 "as {}G\n",
                 option, text, *bytes, text);
      return false;
    }
    (*given)[key] = *bytes;
  }
  return true;
}

Json ForecastCommand::configuration(Json model, Json machine) const {
  Json given = {{"model", std::move(model)}, {"machine", std::move(machine)}};
  given.update({{"ranks", ranks_}, {"batch", batch_}, {"sequence", sequence_}});
  given.update({{"accumulate", accumulate_}, {"layout", layout_}, {"wire", wire_}});
  given.update({{"reduce", reduce_}, {"compute", compute_}, {"optimizer", optimizer_}});
  given.update(
      {{"prefetch", prefetch_}, {"checkpoint", checkpoint_}, {"by_parameter", by_parameter_}});
  given["loss"] = loss_;
  if (codec_.empty())
    given["codec_ratio"] = codec_ratio_;
  else
    given["codec"] = codec_;
  given["codec_gb_per_s"] = codec_gb_per_s_;
  given.update({{"experts_per_token", experts_}, {"search", search_}, {"what_if", what_if_}});
  given.update({{"scaling", scaling_ || !report_.empty()}, {"startup", startup_}});
  given["timeline"] = !report_.empty();
  if (communication_s_ > 0) given["measured_communication_s"] = communication_s_;
  if (measured_s_ > 0) given["calibration"] = {{"step_s", measured_s_}, {"source", "--measured"}};
  return given;
}

// Returns false, after a line on the standard error, if a key of --config contradicts an option, or
// takes a default away.
bool ForecastCommand::goes_with_options(const Json& more) const {
  for (const auto& [key, value] : more.items())
    if (value.is_null()) {
      fmt::print(stderr, "fsccl-info: --config {}: \"{}\" is null: leave the key out\n", config_,
                 key);
      return false;
    }
  if (efficiency_ <= 0 || !more.contains("calibration")) return true;
  fmt::print(stderr,
             "fsccl-info: --efficiency and \"calibration\" of {} both say what part of the peak is "
             "reached: leave one of the two out\n",
             config_);
  return false;
}

int ForecastCommand::run() const {
  const auto model_file = find_named(model_, "model", fsccl::perf::model_folders());
  const auto on_file = machine_file();
  if (!model_file || !on_file) return 2;
  const std::optional<Json> more = config_.empty() ? Json::object() : read_json(config_);
  if (!more) return 1;
  if (!goes_with_options(*more)) return 2;
  const std::optional<Json> model = read_json(*model_file),
                            on = machine(*on_file, text_at(*more, "compute").value_or(compute_));
  if (!model || !on) return 1;
  Json given = configuration(*model, *on);
  if (!add_sizes(&given)) return 2;
  if (more->contains("calibration")) given.erase("calibration");  // it is not added to --measured
  given.merge_patch(*more);
  std::string configuration;
  try {
    configuration = given.dump();
  } catch (const Json::exception&) {
    fmt::print(stderr, "fsccl-info: an option has bytes that are not UTF-8: give another name\n");
    return 2;
  }
  for (const std::string& input : {*model_file, machine_, topology_, config_})
    if (replaces(report_, input)) return 2;
  std::optional<fsccl::perf::PageFile> page;
  if (!report_.empty()) page.emplace(report_);
  if (page && !page->open()) return 2;
  std::string text;
  if (fsccl_forecast(configuration.c_str(), keep_text, &text) != FSCCL_OK) {
    fmt::print(stderr, "fsccl-info: {}\nfsccl-info: the model is {}; the machine is {}{}\n",
               with_option_names(last_error()), *model_file, machine_,
               config_.empty() ? "" : "; the configuration also has the keys of " + config_);
    return 1;
  }
  const Json answer = Json::parse(text);
  fmt::print("{}", json_ ? text + "\n" : forecast_text(answer));
  return page && !page->write(forecast_page(answer)) ? 2 : 0;  // main() flushes
}
