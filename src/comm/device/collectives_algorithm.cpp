// Which way calls go (select/native.h), and what fsccl_explain() says of it.
#include <algorithm>

#include "base/json_writer.h"
#include "comm/device/collectives.h"
#include "comm/device/nccl_collectives.h"

namespace fsccl {

// Finds the obstacle of each way: the ranks lack something that it needs, or it does not do the
// operation as fsccl.h says.
NativeCall DeviceCollectives::native_call(const DeviceCall& call, uint64_t bytes) const {
  NativeCall made{call.op, bytes, comm_.size(), decision_.nccl, one_host_, {}};
  const auto against = [&](Algorithm algorithm) -> std::string_view& {
    return made.obstacles[static_cast<size_t>(algorithm)];
  };
  const bool sums = call.op == OpCode::reduce_scatter || call.op == OpCode::all_reduce;
  const bool narrow = dtype_size(call.dtype) == 2, reduces_any = reduces(call.op);
  const bool ordered = call.reduction.kind == FSCCL_OP_MIN || call.reduction.kind == FSCCL_OP_MAX;
  if (!decision_.nccl)
    against(Algorithm::nccl) = "not all ranks can use NCCL";
  else if (!not_by_nccl(call).empty())
    against(Algorithm::nccl) = "NCCL does not reduce 16-bit integers";
  else if (sums && narrow && can_sum_exchanged(call) && decision_.kernels)
    against(Algorithm::nccl) = "NCCL rounds sums of 16-bit floats at each step";
  else if (reduces_any && decision_.by_placement && dtype_float(call.dtype) && !ordered)
    against(Algorithm::nccl) = "FSCCL_REPRODUCIBLE=placement: NCCL sums in an order of its own";
  if (!exchanges_)
    against(Algorithm::exchanged) =
        "not all ranks have UCX for memory of GPUs, or NCCL moves the bytes";
  else if (call.op == OpCode::barrier || reduces_any)
    against(Algorithm::exchanged) = "an exchange only moves bytes";
  if (!sums)
    against(Algorithm::summed) = "only reduce_scatter and all_reduce are summed so";
  else if (!can_sum_exchanged(call))
    against(Algorithm::summed) = "only sums of floats are summed so";
  else if (!decision_.kernels)
    against(Algorithm::summed) = "not all ranks have this library's kernels for their GPU";
  else if (!decision_.nccl && !exchanges_)
    against(Algorithm::summed) = "nothing exchanges memory of GPUs here";
  else if (!narrow && call.reduction.kind == FSCCL_OP_PREMUL_SUM)
    against(Algorithm::summed) = "a scaled sum of wider floats is rounded at each product";
  return made;
}

DeviceCollectives::Algorithm DeviceCollectives::algorithm(const DeviceCall& call) const {
  uint64_t send = 0, receive = 0;
  for (const CallPart& part : call.sends) send += part.count;
  for (const CallPart& part : call.receives) receive += part.count;
  return choose_native(native_call(call, std::max(send, receive) * call.element()),
                       comm_.collectives().options().select);
}

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
  json.entry("transport", decision_.nccl ? "nccl" : exchanges_ ? "ucx" : "staged");
  json.entry("why", decision_.nccl ? "all ranks can use NCCL" : decision_.why);
  if (!decision_.nccl)
    json.entry("ucx", exchanges_ ? "all ranks have one for memory of GPUs" : why_not_exchanges_);
  json.entry("gpu", device_->name());
  json.entry("messages", "staged");
  json.entry("sums_of_16_bit_floats",
             staged() || (exchanges_ && !ours) ? "by the host, in fp32"
             : ours ? "exchanged, then by this library's kernel, in fp32"
                    : "by NCCL, rounded at each step: this library has no kernels for a GPU here");
  json.entry("sums_of_wider_floats",
             exchanges_ && ours       ? "exchanged, then by this library's kernel, in rank order"
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
    DeviceCall call;
    call.op = op;
    call.dtype = dtype;
    const NativeChoice choice =
        explain_native(native_call(call, bytes), comm_.collectives().options().select);
    json.key(dtype_name(dtype));
    json.begin_map();
    json.entry("why", choice.why);
    json.key("algorithms");
    json.begin_list();
    for (const NativeCandidate& one : choice.candidates) {
      json.begin_map();
      json.entry("plan", native_name(one.algorithm));
      json.key("chosen");
      json.truth(one.chosen);
      if (one.obstacle.empty())
        json.entry("predicted_ns", static_cast<uint64_t>(one.ns));
      else
        json.entry("obstacle", one.obstacle);
      json.end_map();
    }
    json.end_list();
    json.end_map();
    if (!reduces(op)) break;
  }
  json.end_map();
  json.end_map();
  json.finish();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace fsccl
