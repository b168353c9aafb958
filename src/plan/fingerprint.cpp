#include "plan/fingerprint.h"

#include <fmt/format.h>

namespace fsccl {
namespace {

constexpr const char* kOpNames[] = {"none",
                                    "barrier",
                                    "all_gather",
                                    "reduce_scatter",
                                    "all_reduce",
                                    "broadcast",
                                    "unit_create",
                                    "unit_unshard",
                                    "unit_reduce_grads",
                                    "unit_broadcast_state",
                                    "pool_create",
                                    "pool_schedule",
                                    "reduce",
                                    "gather",
                                    "scatter",
                                    "all_to_all",
                                    "all_gather_v",
                                    "reduce_scatter_v",
                                    "all_to_all_v",
                                    "all_gather_list",
                                    "reduce_scatter_list",
                                    "broadcast_list",
                                    "send"};
constexpr const char* kKindNames[] = {"sum", "avg", "min", "max", "prod", "premul_sum"};

const char* kind_name(uint8_t kind) {
  return kind < std::size(kKindNames) ? kKindNames[kind] : "unknown operator";
}
bool by_parts(OpCode op) { return op == OpCode::all_gather_v || op == OpCode::reduce_scatter_v; }

bool by_tensors(OpCode op) {
  return op == OpCode::all_gather_list || op == OpCode::reduce_scatter_list ||
         op == OpCode::broadcast_list;
}

// Returns true for a reduction of some of a unit's gradients: `root` is the first one, and `count`
// is their number.
bool by_parameter(const Fingerprint& f) { return f.op == OpCode::reduce_grads && f.root >= 0; }
std::string parameters(const Fingerprint& f) {
  if (f.root < 0) return "all parameters";
  return f.count ? fmt::format("parameters {} .. {}", f.root,
                               static_cast<uint64_t>(f.root) + f.count - 1)
                 : "no parameters";
}

// Names what the history of this operation has besides a call site. The text is empty if there is
// nothing else.
std::string beside_site(const Fingerprint& f) {
  const bool scaled = reduces(f.op) && f.kind == FSCCL_OP_PREMUL_SUM;
  const std::string parts = by_parts(f.op)     ? "the counts of the ranks' parts"
                            : by_tensors(f.op) ? "the types or parts of the tensors"
                                               : "";
  if (scaled) return parts + (parts.empty() ? "" : ", or ") + "the scale of fsccl_premul_sum()";
  return parts;
}

std::string in_history(const Fingerprint& f) {
  const std::string parts = beside_site(f);
  if (!parts.empty()) return parts;
  return "the history of collective memory events (units taken and given back in another order, "
         "other definitions, or another "
         "scale), or the call site (fsccl_comm_set_site)";
}

// Returns the keys of both call sites. The key of the peer is right only if no other part of the
// history differs.
std::string sites(const Fingerprint& a, const Fingerprint& b, uint64_t mine) {
  const std::string text =
      fmt::format("site {:#018x} and site {:#018x}", mine, mine ^ a.history ^ b.history);
  const std::string others = a.op == b.op ? beside_site(a) : "";
  return others.empty() ? text : text + ", or " + others;
}

std::string describe_sizes(const Fingerprint& f) {
  if (by_tensors(f.op)) return fmt::format(" of {} tensors", f.count);
  const char* dtype = dtype_name(static_cast<fsccl_dtype_t>(f.dtype));
  return by_parameter(f) ? fmt::format(" of {} in {}", parameters(f), dtype)
                         : fmt::format(" of {} {}", f.count, dtype);
}

}  // namespace

std::string describe(const Fingerprint& f) {
  std::string text = op_name(called(f));
  if (is_stage(f)) text += fmt::format(", in its stage {}", op_name(f.op));
  if (f.op != OpCode::barrier) text += describe_sizes(f);
  if (reduces(f.op)) text += fmt::format(" with {}", kind_name(f.kind));
  if (f.op == OpCode::send)
    text += fmt::format(" with tag {}", static_cast<int32_t>(f.history));
  else if (f.root >= 0 && !by_parameter(f))
    text += fmt::format(" from root {}", f.root);
  return text + fmt::format(" (operation {})", f.sequence);
}

const char* op_name(OpCode op) {
  const auto index = static_cast<size_t>(op);
  return index < std::size(kOpNames) ? kOpNames[index] : "unknown operation";
}

std::string difference(const Fingerprint& a, const Fingerprint& b, const HistoryParts& parts) {
  std::string text;
  auto add = [&](auto&& part) { text += (text.empty() ? "" : ", ") + part; };
  if (called(a) != called(b))
    add(fmt::format("operation {} and {}", op_name(called(a)), op_name(called(b))));
  else if (a.op != b.op)
    add(fmt::format("stage {} and {}", op_name(a.op), op_name(b.op)));
  const bool ranges = a.op == b.op && (by_parameter(a) || by_parameter(b));
  if (ranges && (a.root != b.root || a.count != b.count))
    add(fmt::format("{} and {}", parameters(a), parameters(b)));
  if (!ranges && a.count != b.count) add(fmt::format("count {} and {}", a.count, b.count));
  if (a.dtype != b.dtype)
    add(fmt::format("dtype {} and {}", dtype_name(static_cast<fsccl_dtype_t>(a.dtype)),
                    dtype_name(static_cast<fsccl_dtype_t>(b.dtype))));
  if (a.kind != b.kind)
    add(fmt::format("operator {} and {}", kind_name(a.kind), kind_name(b.kind)));
  if (!ranges && a.root != b.root) add(fmt::format("root {} and {}", a.root, b.root));
  if (a.flags != b.flags && !is_stage(a) && !is_stage(b))
    add(fmt::format("mode {} and {}", a.flags, b.flags));
  if (a.sequence != b.sequence)
    add(fmt::format("sequence number {} and {}", a.sequence, b.sequence));
  if (parts.site != 0 && parts.unheard == 0 && a.history != b.history) add(sites(a, b, parts.site));
  if (!text.empty() || a.history == b.history) return text;
  if (a.op == OpCode::send)
    return fmt::format("tag {} and {}: messages between two ranks match in the order of the calls",
                       static_cast<int32_t>(a.history), static_cast<int32_t>(b.history));
  if (parts.unheard)
    text = fmt::format(
        "a call from operation {} on, which ranks that did not wait for each other have not "
        "compared, or in ",
        parts.unheard);
  return text + in_history(a);
}

}  // namespace fsccl
