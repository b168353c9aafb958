// The choice of an algorithm for calls (select/native.h), and its description by fsccl_explain().
#include <algorithm>

#include "base/json_writer.h"
#include "comm/device/collectives.h"
#include "comm/device/nccl_collectives.h"
#include "plan/describe.h"
#include "select/unit_algorithm.h"

namespace fsccl {

// Finds the obstacle of each algorithm: the ranks lack something that it needs, or it does not do
// the operation as fsccl.h says.
NativeCall DeviceCollectives::native_call(const DeviceCall& call, uint64_t bytes) const {
  NativeCall made{call.op, bytes, comm_.size(), decision_.nccl, one_host_, {}};
  const auto against = [&](Algorithm algorithm) -> std::string_view& {
    return made.obstacles[static_cast<size_t>(algorithm)];
  };
  const bool sums = call.op == OpCode::reduce_scatter || call.op == OpCode::all_reduce;
  const bool narrow = dtype_size(call.dtype) == 2, reduces_any = reduces(call.op);
  const bool ordered = call.reduction.kind == FSCCL_OP_MIN || call.reduction.kind == FSCCL_OP_MAX;
  if (call.op == OpCode::send)
    against(Algorithm::nccl) = "two ranks of a message cannot agree on it without the others";
  else if (!decision_.nccl)
    against(Algorithm::nccl) = "not all ranks can use NCCL";
  else if (!not_by_nccl(call).empty())
    against(Algorithm::nccl) = "NCCL does not reduce 16-bit integers";
  else if (sums && narrow && can_sum_exchanged(call) && decision_.kernels)
    against(Algorithm::nccl) = "NCCL rounds sums of 16-bit floats at each step";
  else if (reduces_any && decision_.by_placement && dtype_float(call.dtype) && !ordered)
    against(Algorithm::nccl) = "FSCCL_REPRODUCIBLE=placement: NCCL sums in an order of its own";
  if (!ucx_)
    against(Algorithm::exchanged) =
        "not all ranks have UCX for memory of GPUs, or NCCL moves the bytes";
  else if (call.op == OpCode::send)
    against(Algorithm::exchanged) = "two ranks of a message cannot agree on it without the others";
  else if (call.op == OpCode::barrier || reduces_any)
    against(Algorithm::exchanged) = "an exchange only moves bytes";
  if (!sums)
    against(Algorithm::summed) = "only reduce_scatter and all_reduce are summed so";
  else if (!can_sum_exchanged(call))
    against(Algorithm::summed) = "only sums of floats are summed so";
  else if (!decision_.kernels)
    against(Algorithm::summed) = "not all ranks have this library's kernels for their GPU";
  else if (!decision_.nccl && !ucx_)
    against(Algorithm::summed) = "nothing exchanges memory of GPUs here";
  else if (!narrow && call.reduction.kind == FSCCL_OP_PREMUL_SUM)
    against(Algorithm::summed) = "a scaled sum of wider floats is rounded at each product";
  return made;
}

namespace {

// A candidate has a predicted time, or the obstacle that rules it out.
void explain_candidate(JsonWriter& json, std::string_view name, bool chosen,
                       std::string_view obstacle, double ns, bool measured) {
  json.begin_map();
  json.entry("plan", name);
  json.key("chosen");
  json.truth(chosen);
  if (obstacle.empty()) {
    json.entry("predicted_ns", static_cast<uint64_t>(ns));
    json.key("measured");
    json.truth(measured);
  } else {
    json.entry("obstacle", obstacle);
  }
  json.end_map();
}

// Describes the algorithms of a unit's gather. A unit learns when it is made whether its ranks
// reach each other's slots.
void explain_unit(JsonWriter& json, const UnitChoice& choice) {
  json.key("unit");
  json.begin_map();
  json.entry("why", choice.why);
  json.key("algorithms");
  json.begin_list();
  for (const UnitCandidate& one : choice.candidates)
    explain_candidate(json, kUnitAlgorithmNames[static_cast<size_t>(one.algorithm)],
                      one.algorithm == choice.algorithm, one.obstacle, one.ns, one.measured);
  json.end_list();
  json.end_map();
}

}  // namespace

std::string DeviceCollectives::explain(OpCode op, uint64_t bytes) const {
  if (!prepared()) return "";
  std::string text;
  JsonWriter json([&](std::string_view piece) { text += piece; });
  const auto feature = [&](const char* name, const nccl::Feature& one) {
    json.key(name);
    json.begin_map();
    json.key("usable");
    json.truth(one.usable);
    json.entry("why", one.why);
    json.end_map();
  };
  const bool ours = !staged() && decision_.kernels;
  json.begin_map();
  json.entry("transport", decision_.nccl ? "nccl" : ucx_ ? "ucx" : "staged");
  json.entry("why", decision_.nccl ? "all ranks can use NCCL" : decision_.why);
  if (!decision_.nccl)
    json.entry("ucx", ucx_ ? "all ranks have one for memory of GPUs" : why_not_ucx_);
  json.entry("gpu", device_->name());
  json.entry("messages", "staged");
  json.entry("sums_of_16_bit_floats",
             staged() || (ucx_ && !ours) ? "by the host, in fp32"
             : ours ? "exchanged, then by this library's kernel, in fp32"
                    : "by NCCL, rounded at each step: this library has no kernels for a GPU here");
  json.entry("sums_of_wider_floats",
             ucx_ && ours             ? "exchanged, then by this library's kernel, in rank order"
             : !decision_.nccl        ? "by the host"
             : decision_.by_placement ? "in rank order (FSCCL_REPRODUCIBLE=placement)"
                                      : "by NCCL, in the order of its rings and trees");
  if (decision_.nccl) {
    json.entry("version", nccl::version_text(decision_.facts.version));
    feature("windows", features_.windows);
    feature("copy_engine_all_gather", features_.copy_gather);
    feature("all_to_all", features_.all_to_all);
    feature("revoke", features_.revoke);
  }
  json.key("candidates");
  json.begin_map();
  for (const fsccl_dtype_t dtype : {FSCCL_FLOAT32, FSCCL_BFLOAT16}) {
    json.key(dtype_name(dtype));
    explain_call(json, op, dtype, bytes);
    if (!reduces(op)) break;
  }
  json.end_map();
  if (op == OpCode::all_gather)
    explain_unit(json,
                 choose_unit_algorithm(unit_call(bytes, comm_.size(), one_host_, decision_.asked,
                                                 one_host_ ? "" : "not all ranks are on one host"),
                                       comm_.collectives().options().select));
  json.end_map();
  json.finish();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// Describes the candidates of a call that sums or only moves bytes, and the steps of the chosen
// plan.
void DeviceCollectives::explain_call(JsonWriter& json, OpCode op, fsccl_dtype_t dtype,
                                     uint64_t bytes) const {
  const bool by_parts = op == OpCode::all_gather || op == OpCode::reduce_scatter ||
                        op == OpCode::gather || op == OpCode::scatter || op == OpCode::all_to_all;
  const uint64_t parts = by_parts ? static_cast<uint64_t>(comm_.size()) : 1;
  CollectiveCall call;
  call.op = op;
  call.dtype = dtype;
  call.count = bytes / parts / dtype_size(dtype);
  call.root = 0;
  const DeviceCall made = device_call(call, comm_.rank(), comm_.size(), nullptr);
  const NativeChoice choice =
      explain_native(native_call(made, bytes), comm_.collectives().options().select);
  json.begin_map();
  json.entry("why", choice.why);
  json.key("algorithms");
  json.begin_list();
  for (const NativeCandidate& one : choice.candidates)
    explain_candidate(json, kNativeNames[static_cast<size_t>(one.algorithm)], one.chosen,
                      one.obstacle, one.ns, one.measured);
  json.end_list();
  const Plan plan = make_plan(made, choice.algorithm);
  json.entry("plan", plan.name);
  json.key("steps");
  json.begin_list();
  for (const Step& step : plan.steps) json.text(describe(plan, step));
  json.end_list();
  json.end_map();
}

}  // namespace fsccl
