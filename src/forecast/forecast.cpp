#include "forecast/forecast.h"

#include <algorithm>

namespace fsccl::forecast {
namespace {

std::string places_key(const StepConfig& setup, const Machine& machine) {
  const Group group = shard_group(setup, machine);
  return fmt::format("{} {} {} {} {} {} {} {}", group.ranks, group.per_host,
                     static_cast<int>(setup.layout), setup.by_parameter,
                     static_cast<int>(setup.shard), static_cast<int>(setup.wire),
                     static_cast<int>(setup.reduce), static_cast<int>(setup.sharded_grad));
}
std::string prices_key(const StepConfig& setup, const Machine& machine) {
  return fmt::format("{} {} {} {} {}", places_key(setup, machine), setup.ranks, setup.codec_ratio,
                     setup.codec_gb_per_s, setup.carry_factor);
}
std::string slots_key(const StepConfig& setup, const Machine& machine) {
  return fmt::format("{} {} {}", places_key(setup, machine), setup.prefetch, setup.keep_bytes);
}

}  // namespace

Forecaster::Forecaster(Model model, Machine machine)
    : model_(std::move(model)), machine_(std::move(machine)) {
  for (size_t u = 0; u < model_.units.size(); u++) {
    const auto known = std::find_if(first_.begin(), first_.end(), [&](size_t first) {
      return model_.units[first].same_shapes(model_.units[u]);
    });
    kind_.push_back(static_cast<size_t>(known - first_.begin()));
    if (known == first_.end()) first_.push_back(u);
  }
  uncertainty.origin =
      !machine_.measured()        ? "not calibrated: computation at a typical share of the peak"
      : machine_.efficiency < 1.0 ? "communication within a host as measured on the machine; "
                                    "computation at a share of the peak, with no step measured"
                                  : "computation and communication within a host as measured on "
                                    "the machine, with no step measured";
}

std::string Forecaster::misfit(const StepConfig& setup) const {
  if (setup.ranks > machine_.ranks_per_host && machine_.network_from == NetworkFrom::nothing)
    return fmt::format(
        "more than {} ranks need a network between hosts, but {} no gb_per_s of network cards: "
        "give a topology of two or more hosts, or \"between\" beside \"topology\" in the machine",
        machine_.ranks_per_host,
        machine_.topology == "here"
            ? "this machine tells"
            : fmt::format("the topology {} has one host, and says", machine_.topology));
  if (machine_.carrier == Carrier::nccl &&
      (setup.by_parameter || setup.layout == FSCCL_LAYOUT_RAGGED))
    return fmt::format(
        "PyTorch over NCCL alone has no {}: leave that out, or let this library's plans carry the "
        "bytes (carrier \"plans\")",
        setup.by_parameter ? "slots by parameter" : "ragged layouts");
  return misfit_of(setup, machine_.ranks_per_host);
}

Result<const Forecaster::Layouts*> Forecaster::places_of(const StepConfig& setup) {
  const auto [at, made] = places_.try_emplace(places_key(setup, machine_));
  Layouts& places = at->second;
  if (!made) return &places;
  const Group group = shard_group(setup, machine_);
  for (const size_t first : first_) {
    Result<UnitLayout> unit = UnitLayout::make(model_.units[first], setup, group, !machine_.gpu);
    if (!unit.ok()) {
      places_.erase(at);
      return unit.take_status();
    }
    places.kinds.push_back(unit.take());
  }
  for (const size_t kind : kind_) places.units.push_back(&places.kinds[kind]);
  return &places;
}

Result<const std::vector<UnitPrice>*> Forecaster::prices_of(const StepConfig& setup,
                                                            const Layouts& places) {
  const auto [at, made] = prices_.try_emplace(prices_key(setup, machine_));
  if (made) {
    const Machine machine = machine_.with_ranks(setup.ranks);
    for (const UnitLayout& kind : places.kinds)
      at->second.push_back(price_unit(kind, setup, machine));
  }
  return &at->second;
}

Result<const Slots*> Forecaster::slots_of(const StepConfig& setup, const Layouts& places,
                                          const std::vector<Event>& events,
                                          const std::vector<bool>& kept) {
  const std::string key = slots_key(setup, machine_);
  if (const auto known = slots_.find(key); known != slots_.end()) return &known->second;
  FSCCL_ASSIGN(Slots slots, plan_slots_of(events, places.units, kept, setup.by_parameter));
  return &slots_.emplace(key, std::move(slots)).first->second;
}

std::vector<UnitTimes> Forecaster::times_of(const StepConfig& setup,
                                            const std::vector<UnitPrice>& prices) const {
  const Machine machine = machine_.with_ranks(setup.ranks);
  const double tokens = static_cast<double>(setup.batch) * setup.sequence,
               rate = machine.flops * machine.efficiency / setup.compute_factor;
  const std::vector<double> backward = model_.backward_flops_by_unit(setup.sequence);
  std::vector<UnitTimes> times;
  for (size_t u = 0; u < model_.units.size(); u++) {
    const ModelUnit& unit = model_.units[u];
    UnitTimes made;
    made.price = prices[kind_[u]];
    made.kept_ns = machine.within_costs.exchange;
    made.forward_ns = tokens *
                      (unit.forward_flops + unit.forward_flops_per_context * setup.sequence) /
                      rate * 1e9;
    made.backward_ns = tokens * backward[u] / rate * 1e9;
    if (unit.is_layer() && made.backward_ns > 0) {
      if (setup.checkpoint == Checkpoint::full) made.recompute_ns = made.forward_ns;
      if (setup.checkpoint == Checkpoint::selective)
        made.recompute_ns = tokens * unit.selective_flops / rate * 1e9;
    }
    times.push_back(std::move(made));
  }
  return times;
}

Timeline Forecaster::timeline(const Forecast& forecast, const std::vector<UnitTimes>& units) const {
  const double shard = static_cast<double>(forecast.memory.sharded_gradients) /
                       static_cast<double>(dtype_size(forecast.setup.sharded_grad));
  const double optimizer = machine_.memory_gb_per_s > 0
                               ? machine_.with_ranks(forecast.setup.ranks).ranks_per_core * shard *
                                     forecast.setup.optimizer_touches() / machine_.memory_gb_per_s
                               : 0;  // in ns, because it divides bytes by GB/s
  return simulate(forecast.events, units, forecast.kept, forecast.setup.accumulate, machine_.gpu,
                  optimizer);
}

Status Forecaster::interval(Forecast* forecast, const Layouts& places) {
  for (const int side : {-1, 1}) {
    StepConfig setup = forecast->setup;
    setup.compute_factor *= 1 + side * uncertainty.compute;
    FSCCL_ASSIGN(const std::vector<UnitPrice>* prices, prices_of(setup, places));
    std::vector<UnitTimes> units = times_of(setup, *prices);
    for (UnitTimes& unit : units) unit.price.scale(1 + side * uncertainty.communication);
    (side < 0 ? forecast->low_ns : forecast->high_ns) = timeline(*forecast, units).step_ns;
  }
  return success();
}

Result<Forecast> Forecaster::run(const StepConfig& setup) {
  if (const std::string why = misfit(setup); !why.empty())
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "forecast: {}", why);
  Forecast forecast;
  forecast.setup = setup;
  forecast.memory_limit = memory_limit(setup);
  FSCCL_ASSIGN(const Layouts* places, places_of(setup));
  FSCCL_ASSIGN(const std::vector<UnitPrice>* prices, prices_of(setup, *places));
  std::vector<uint64_t> slot_bytes;
  for (const UnitLayout* unit : places->units) slot_bytes.push_back(unit->parameters.bytes);
  forecast.events = step_events(model_, setup.prefetch, setup.by_parameter);
  forecast.kept = kept_units(model_, slot_bytes, setup.keep_bytes);
  FSCCL_ASSIGN(const Slots* slots, slots_of(setup, *places, forecast.events, forecast.kept));
  forecast.slots = *slots;
  forecast.points =
      memory_points(model_, setup, machine_, forecast.events, places->units, forecast.kept, *slots);
  forecast.memory = memory_of(setup, machine_, places->units, *slots, forecast.points);
  forecast.units = times_of(setup, *prices);
  forecast.line = timeline(forecast, forecast.units);
  for (const Event& event : forecast.events) {
    const UnitPrice& price = forecast.units[event.unit].price;
    const auto moves = [&](const Carried& carried) {
      forecast.within_bytes += carried.within_bytes * setup.accumulate;
      forecast.between_bytes += carried.between_bytes * setup.accumulate;
    };
    if (event.kind == EventKind::gather && !(event.backward && forecast.kept[event.unit]))
      moves(price.gather);
    if (event.kind == EventKind::reduce) moves(price.reduction(event.param));
  }
  FSCCL_TRY(interval(&forecast, *places));
  return forecast;
}

double Forecaster::mfu(const Forecast& forecast) const {
  const double sequence = forecast.setup.sequence;
  const double flops =
      (model_.forward_flops(sequence) + model_.backward_flops(sequence)) * forecast.setup.tokens();
  return flops / (forecast.line.step_ns * 1e-9) / machine_.with_ranks(forecast.setup.ranks).flops;
}

Status Forecaster::calibrate(const StepConfig& measured, double step_s, double spread,
                             const std::string& source) {
  FSCCL_ASSIGN(const Forecast found, run(measured));
  FSCCL_ASSIGN(const Layouts* places, places_of(measured));
  FSCCL_ASSIGN(const std::vector<UnitPrice>* prices, prices_of(measured, *places));
  const auto step_at = [&](double efficiency) {
    machine_.efficiency = efficiency;
    return timeline(found, times_of(measured, *prices)).step_ns * 1e-9;
  };
  const double before = machine_.efficiency;
  double low = kLeastEfficiency, high = 1;
  if (step_at(high) > step_s) {
    const double least = step_at(high);
    machine_.efficiency = before;
    return fail(
        FSCCL_ERR_INVALID_ARGUMENT,
        "calibration: the measured step took {:.4g} s, but this machine needs {:.4g} s at its "
        "peak: its operations or its "
        "network are faster than the machine says; correct \"tflops\", \"within\" or \"between\"",
        step_s, least);
  }
  if (const double most = step_at(low); most < step_s) {
    machine_.efficiency = before;
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "calibration: the measured step took {:.4g} s, but even at {} of its peak this "
                "machine needs only {:.4g} s: give seconds (not ms) of a step of just this setup",
                step_s, low, most);
  }
  for (int i = 0; i < 60; i++) {
    const double middle = (low + high) / 2;
    (step_at(middle) > step_s ? low : high) = middle;
  }
  machine_.efficiency = high;
  uncertainty = {spread, std::min(uncertainty.communication, 0.25),
                 "calibrated by one measured step: " + source};
  return success();
}

}  // namespace fsccl::forecast
