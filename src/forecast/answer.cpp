#include "forecast/answer.h"

#include "base/dtype.h"
#include "forecast/advice.h"
#include "forecast/search.h"
#include "forecast/startup.h"

namespace fsccl::forecast {
namespace {

constexpr double kS = 1e-9, kMs = 1e-6;
constexpr size_t kMostChoices = 10, kMostSpans = 20'000;

const char* type_name(fsccl_dtype_t type) {
  return type == FSCCL_FLOAT32 ? "fp32" : type == FSCCL_BFLOAT16 ? "bf16" : "fp16";
}

// Returns what is left of a time without a part of it. Rounding errors are 0.
double rest_of(double all, double part) { return all - part > 1e-9 * all ? all - part : 0; }

void write_memory(const Forecast& forecast, JsonWriter& out) {
  const Memory& memory = forecast.memory;
  out.map({{"shards_bytes", memory.shards},
           {"sharded_gradients_bytes", memory.sharded_gradients},
           {"optimizer_bytes", memory.optimizer},
           {"parameter_slots_bytes", memory.parameter_slots},
           {"gradient_slots_bytes", memory.gradient_slots},
           {"activations_bytes", memory.activations},
           {"transports_bytes", memory.transports},
           {"context_bytes", memory.context},
           {"total_bytes", memory.total()},
           {"at_once_bytes", memory.at_once},
           {"limit_bytes", forecast.memory_limit},
           {"fits", forecast.fits()},
           {"host_parameter_slots_bytes", memory.host_slots},
           {"planned_slots_bytes", forecast.slots.parameters + forecast.slots.gradients}});
}

void write_setup(const StepConfig& setup, JsonWriter& out) {
  out.map({{"ranks", setup.ranks},
           {"shard_over", setup.shared_by()},
           {"batch", setup.batch},
           {"sequence", setup.sequence},
           {"accumulate", setup.accumulate},
           {"shard_type", type_name(setup.shard)},
           {"wire", type_name(setup.wire)},
           {"reduce", type_name(setup.reduce)},
           {"gradient_type", type_name(setup.sharded_grad)},
           {"compute", setup.compute},
           {"optimizer", setup.optimizer},
           {"optimizer_bytes", setup.optimizer_bytes},
           {"layout", setup.layout == FSCCL_LAYOUT_FLAT     ? "flat"
                      : setup.layout == FSCCL_LAYOUT_RAGGED ? "ragged"
                                                            : "per_param"},
           {"prefetch", setup.prefetch},
           {"keep_bytes", setup.keep_bytes},
           {"by_parameter", setup.by_parameter},
           {"checkpoint", name_of(setup.checkpoint)},
           {"loss", setup.fused_loss ? "fused" : "fp32"},
           {"codec_ratio", setup.codec_ratio},
           {"codec_gb_per_s", setup.codec_gb_per_s}});
}

void write_step(const Forecaster& forecaster, const Forecast& forecast, JsonWriter& out) {
  const Timeline& line = forecast.line;
  const std::string_view within = topo::traits(forecaster.machine().within.link).name;
  const auto bytes = [&] {
    out.begin_map();
    const bool shared = within == "network";  // one link carries both
    if (!shared) out.entry(within, forecast.within_bytes);
    out.entry("network", forecast.between_bytes + (shared ? forecast.within_bytes : 0));
    out.end_map();
  };
  out.map({{"step_s", line.step_ns * kS},
           {"low_s", forecast.low_ns * kS},
           {"high_s", forecast.high_ns * kS},
           {"compute_s", line.compute_ns * kS},
           {"communication_s", line.communication_ns * kS},
           {"exposed_s", line.exposed_ns * kS},
           {"hidden_s", rest_of(line.communication_ns, line.exposed_ns) * kS},
           {"optimizer_s", line.optimizer_ns * kS},
           {"tokens_per_s", forecast.tokens_per_s_per_rank() * forecast.setup.ranks},
           {"tokens_per_s_per_rank", forecast.tokens_per_s_per_rank()},
           {"mfu", forecaster.mfu(forecast)},
           {"efficiency", forecaster.machine().efficiency},
           {"bytes_per_rank", bytes}});
}

void write_units(const Forecaster& forecaster, const Forecast& forecast, JsonWriter& out) {
  out.begin_list();
  for (size_t u = 0; u < forecast.units.size(); u++) {
    const UnitReport& unit = forecast.line.units[u];
    out.map({{"name", forecaster.model().units[u].name},
             {"parameters", forecaster.model().units[u].elements()},
             {"gather_ms", forecast.units[u].price.gather.ns * kMs},
             {"reduce_ms",
              (forecast.units[u].price.reduce.ns + forecast.units[u].price.replicas.ns) * kMs},
             {"compute_ms", unit.compute_ns * kMs},
             {"exposed_ms", unit.exposed_ns * kMs},
             {"hidden_ms", rest_of(unit.communication_ns, unit.exposed_ns) * kMs},
             {"gather", forecast.units[u].price.gather.how},
             {"reduce", forecast.units[u].price.reduce.how},
             {"replicas", forecast.units[u].price.replicas.how}});
  }
  out.end_list();
}

void write_spans(const Forecaster& forecaster, const Forecast& forecast, JsonWriter& out) {
  constexpr std::array kNames{"forward", "backward", "gather", "reduce", "optimizer"};
  out.begin_list();
  for (size_t i = 0; i < std::min(forecast.line.spans.size(), kMostSpans); i++) {
    const Span& span = forecast.line.spans[i];
    out.map(
        {{"what", kNames[static_cast<size_t>(span.of)]},
         {"unit", span.of == Span::Of::optimizer ? "" : forecaster.model().units[span.unit].name},
         {"begin_ms", span.begin_ns * kMs},
         {"end_ms", span.end_ns * kMs}});
  }
  out.end_list();
}

void write_memory_line(const Forecast& forecast, JsonWriter& out) {
  const Memory& all = forecast.memory;
  const uint64_t still = all.shards + all.optimizer + all.transports + all.context;
  out.begin_list();
  for (const MemoryPoint& point : forecast.points) {
    const size_t over = point.before ? point.event : point.event + 1;  // events that are over
    out.map({{"at_ms", over > 0 ? forecast.line.event_ns[over - 1] * kMs : 0},
             {"still_bytes", still + point.sharded_gradients},
             {"slots_bytes", point.parameter_slots + point.gradient_slots},
             {"activations_bytes", point.activations}});
  }
  out.end_list();
}

// Writes the best choices, and the present setup wherever it ranks.
void write_search(const std::vector<Choice>& choices, const StepConfig& setup, JsonWriter& out) {
  out.begin_list();
  for (size_t i = 0; i < choices.size(); i++) {
    const Choice& choice = choices[i];
    const bool now = alike(choice.setup, setup);
    if (i >= kMostChoices && !now) continue;
    out.map({{"now", now},
             {"place", i + 1},
             {"batch", choice.setup.batch},
             {"accumulate", choice.setup.accumulate},
             {"shard_over", choice.setup.shared_by()},
             {"keep_bytes", choice.setup.keep_bytes},
             {"prefetch", choice.setup.prefetch},
             {"by_parameter", choice.setup.by_parameter},
             {"codec_ratio", choice.setup.codec_ratio},
             {"checkpoint", name_of(choice.setup.checkpoint)},
             {"step_s", choice.step_ns * kS},
             {"exposed_s", choice.exposed_ns * kS},
             {"tokens_per_s_per_rank", choice.tokens_per_s_per_rank},
             {"memory_bytes", choice.memory},
             {"fits", choice.fits}});
  }
  out.end_list();
}

// Writes what there is a forecast of, and adds the rest to `left_out`, with the reasons.
void write_what_if(const std::vector<WhatIf>& answers, double now_ns, JsonWriter& out,
                   std::vector<std::string>* left_out) {
  out.begin_list();
  for (const WhatIf& one : answers)
    if (one.misfit.empty())
      out.map({{"what", one.what},
               {"step_s", one.step_ns * kS},
               {"against", one.step_ns / now_ns},
               {"fits", one.fits}});
    else
      left_out->push_back(fmt::format("what if {}: {}", one.what, one.misfit));
  out.end_list();
}

// The same for numbers of ranks. Successive ones with the same reason share a text.
void write_scaling(const std::vector<ScalePoint>& points, JsonWriter& out,
                   std::vector<std::string>* left_out) {
  std::string ranks, misfit;
  const auto add_left_out = [&] {
    if (!ranks.empty()) left_out->push_back(fmt::format("scaling to {} ranks: {}", ranks, misfit));
    ranks.clear();
  };
  out.begin_list();
  for (const ScalePoint& one : points) {
    if (one.misfit != misfit) add_left_out();
    misfit = one.misfit;
    if (misfit.empty())
      out.map({{"ranks", one.ranks},
               {"shard_over", one.shard_over},
               {"step_s", one.step_ns * kS},
               {"exposed_s", one.exposed_ns * kS},
               {"tokens_per_s_per_rank", one.tokens_per_s_per_rank},
               {"memory_bytes", one.memory},
               {"fits", one.fits}});
    else
      ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", one.ranks);
  }
  add_left_out();
  out.end_list();
}

void write_startup(int ranks, const Startup& start, JsonWriter& out) {
  out.map({{"ranks", ranks},
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
           {"time_s", start.ns() * kS}});
}

void write_network_unknown(const Machine& machine, JsonWriter& out) {
  std::vector<std::string> assumed;
  if (machine.network_from == NetworkFrom::nothing) return;  // no figure is of several hosts
  if (machine.network_from == NetworkFrom::typical)
    assumed.push_back(fmt::format("a typical {:.4g} GB/s a host", machine.between.gb_per_s));
  if (machine.network_from == NetworkFrom::cards)
    assumed.push_back(fmt::format("{:.4g} GB/s a host, as the cards of the one host of {} have",
                                  machine.between.gb_per_s, machine.topology));
  if (!machine.latency_given)
    assumed.push_back(fmt::format("a typical latency of {:.4g} us", machine.between.ns / 1000));
  if (!assumed.empty())
    out.text(
        fmt::format("the network between hosts: assumed are {}, because \"between\" of the "
                    "machine does not say it",
                    fmt::join(assumed, ", and ")));
}

// Writes which costs the figures leave out. `more_hosts`: some of them are of several hosts.
void write_unknown(const Forecaster& forecaster, const StepConfig& setup, bool more_hosts,
                   JsonWriter& out) {
  out.begin_list();
  if (forecaster.model().estimated)
    out.text(
        "operations and activations: estimated from the shapes of the parameters "
        "(fsccl_torch.export_model() counts them)");
  if (setup.checkpoint == Checkpoint::selective)
    out.text(
        "what selective checkpointing keeps and computes again: estimated from the shapes of "
        "matrices; the result of attention counts where the name of its output projection is known "
        "(o_proj, out_proj, attention.wo, attn.c_proj)");
  if (!forecaster.model().without_attention.empty())
    out.text(fmt::format(
        "attention of {}: no parameter has the name of an output projection (o_proj, out_proj, "
        "attention.wo, attn.c_proj), so the operations that grow with the sequence are left out; "
        "give forward_flops_per_context",
        forecaster.model().without_attention));
  if (const std::string& one = forecaster.model().convolution; !one.empty())
    out.text(fmt::format(
        "operations and activations of {} and other convolutions, which depend on the size of "
        "their input: give forward_flops and activation_bytes of their units, which "
        "fsccl_torch.export_model() counts",
        one));
  if (const double counted = forecaster.model().counted_at;
      counted > 0 && counted != setup.sequence)
    out.text(fmt::format("activations at {} tokens: the model's file has those of {} tokens",
                         setup.sequence, counted));
  out.text(forecaster.machine().gpu
               ? "how much kernels that communicate slow down those that compute beside them"
               : "how much communication and computation take from each other's caches");
  if (const Machine& machine = forecaster.machine();
      machine.gpu && !machine.within_given && std::min(setup.ranks, machine.ranks_per_host) > 1)
    out.text(
        fmt::format("the links within a host: assumed is a typical {:.4g} GB/s by {}, because "
                    "neither \"within\" of the machine nor a topology says it",
                    machine.within.gb_per_s, topo::traits(machine.within.link).name));
  if (more_hosts) {
    out.text("other traffic of the network, and how its switches are over-subscribed");
    write_network_unknown(forecaster.machine(), out);
  }
  if (forecaster.machine().memory_gb_per_s <= 0)
    out.text(forecaster.machine().gpu
                 ? "the time of the optimizer's update, and of copies within a GPU: the machine "
                   "has no memory_gb_per_s"
                 : "the time of the optimizer's update: the machine has no memory_gb_per_s");
  out.text("the time of reading data, of writing checkpoints and of evaluation");
  if (const std::string& unit = forecaster.model().without_loss; !unit.empty() && !setup.fused_loss)
    out.text(fmt::format(
        "memory of the loss: {} gives its activations, but not the \"loss_bytes\" that the "
        "gradients of its logits take (fsccl_torch.export_model() counts them; 0 for none)",
        unit));
  else if (activations_of(forecaster.model(), setup).loss > 0)
    out.text(
        "memory of a loss that is computed in parts, or in another type: counted is that of "
        "torch's "
        "cross_entropy() in fp32 (loss \"fused\" counts the logits alone)");
  out.text("memory that a framework's own allocator loses to fragments");
  out.end_list();
}

bool wanted(const JsonValue& json, const char* part) {
  return json.contains(part) && json[part].get<bool>();
}

}  // namespace

void write_answer(const JsonValue& given, const Forecaster& forecaster, const Forecast& forecast,
                  JsonWriter& out) {
  const StepConfig& setup = forecast.setup;
  const Model& model = forecaster.model();
  const Machine& machine = forecaster.machine();
  const bool more_hosts =
      setup.ranks > machine.ranks_per_host || wanted(given, "scaling") || wanted(given, "what_if");
  const auto of_model = [&] {
    out.map({{"name", model.name},
             {"parameters", model.elements()},
             {"trained_parameters", model.trained_elements()},
             {"units", model.units.size()},
             {"flops_per_token",
              model.forward_flops(setup.sequence) + model.backward_flops(setup.sequence)},
             {"estimated", model.estimated}});
  };
  const auto of_machine = [&] {
    out.map({{"name", machine.name},
             {"source", machine.source},
             {"ranks_per_host", machine.ranks_per_host},
             {"hosts", std::max(1, setup.ranks / machine.ranks_per_host)},
             {"tflops", machine.flops * 1e-12},
             {"within", topo::traits(machine.within.link).name},
             {"within_gb_per_s", machine.within.gb_per_s},
             {"between_gb_per_s", machine.between.gb_per_s},
             {"carrier", machine.carrier == Carrier::nccl ? "nccl" : "plans"},
             {"measured", machine.measured()},
             {"topology", machine.topology}});
  };
  const auto interval = [&] {
    out.map({{"computation", forecaster.uncertainty.compute},
             {"communication", forecaster.uncertainty.communication},
             {"from", forecaster.uncertainty.origin}});
  };
  out.entries({{"fsccl_forecast", 1},
               {"model", of_model},
               {"machine", of_machine},
               {"setup", [&] { write_setup(setup, out); }},
               {"memory", [&] { write_memory(forecast, out); }},
               {"step", [&] { write_step(forecaster, forecast, out); }},
               {"interval", interval},
               {"units", [&] { write_units(forecaster, forecast, out); }},
               {"not_known", [&] { write_unknown(forecaster, setup, more_hosts, out); }}});
}

Status write_extras(const JsonValue& given, Forecaster& forecaster, const Forecast& forecast,
                    double call_us, JsonWriter& out) {
  std::vector<Choice> choices;
  if (wanted(given, "search") || !forecast.fits()) {
    FSCCL_ASSIGN(choices, search(forecaster, forecast.setup));
    out.entry("search", [&] { write_search(choices, forecast.setup, out); });
  }
  FSCCL_ASSIGN(const std::string advice, advice_of(forecaster, forecast, choices));
  if (!advice.empty()) out.entry("advice", advice);
  std::vector<std::string> left_out;
  if (wanted(given, "what_if")) {
    FSCCL_ASSIGN(const std::vector<WhatIf> answers, what_if(forecaster, forecast.setup));
    out.entry("what_if", [&] { write_what_if(answers, forecast.line.step_ns, out, &left_out); });
  }
  if (wanted(given, "scaling")) {
    FSCCL_ASSIGN(const std::vector<ScalePoint> points, scaling(forecaster, forecast.setup));
    out.entry("scaling", [&] { write_scaling(points, out, &left_out); });
  }
  if (!left_out.empty())
    out.entry("left_out", [&] { out.list(left_out, [&](const auto& one) { out.text(one); }); });
  const int ranks = forecast.setup.ranks;
  if (wanted(given, "startup")) {
    FSCCL_ASSIGN(const Startup start, startup_of(ranks, forecaster.machine(), call_us * 1e3));
    out.entry("startup", [&] { write_startup(ranks, start, out); });
  }
  if (wanted(given, "timeline"))
    out.entry("timeline", [&] {
      out.map({{"spans", [&] { write_spans(forecaster, forecast, out); }},
               {"memory", [&] { write_memory_line(forecast, out); }}});
    });
  return success();
}

}  // namespace fsccl::forecast
