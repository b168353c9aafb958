#include "select/rules.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <mutex>
#include <set>

#include "base/config.h"
#include "base/config_value.h"
#include "base/immortal.h"
#include "base/log.h"

namespace fsccl {
namespace {

constexpr std::array kRuled{OpCode::all_gather, OpCode::reduce_scatter, OpCode::all_reduce,
                            OpCode::broadcast,  OpCode::reduce,         OpCode::gather,
                            OpCode::scatter,    OpCode::all_to_all,     OpCode::send,
                            OpCode::unshard};
constexpr uint64_t kLeastChunk = 4096, kMostChunk = 1u << 30;

struct Named {
  const char* name;
  Algorithm algorithm;
};

std::vector<Named> plans_of(OpCode op) {
  if (op == OpCode::unshard)
    return {{"p2p", Algorithm::p2p}, {"collectives", Algorithm::collectives}};
  std::vector<Named> plans;
  plans.reserve(12);
  plans.push_back({"slots", Algorithm::slots});
  const bool whole = op == OpCode::all_reduce || op == OpCode::reduce,
             one_buffer = op == OpCode::broadcast || op == OpCode::send;
  if (whole) plans.push_back({"small_slots", Algorithm::small_slots});
  plans.push_back({one_buffer ? "balanced" : "direct", Algorithm::direct});
  if (op != OpCode::reduce) plans.push_back({"read", Algorithm::read});
  const bool hierarchical = op == OpCode::all_gather || op == OpCode::reduce_scatter ||
                            op == OpCode::all_reduce || op == OpCode::broadcast;
  if (hierarchical)
    plans.insert(plans.end(), {{"2_steps", Algorithm::steps_2},
                               {"3_steps", Algorithm::steps_3},
                               {"4_steps", Algorithm::steps_4},
                               {"by_hosts", Algorithm::by_hosts},
                               {"flat", Algorithm::flat}});
  if (op != OpCode::send)
    plans.insert(
        plans.end(),
        {{"nccl", Algorithm::nccl}, {"ucx", Algorithm::ucx}, {"staged", Algorithm::staged}});
  if (op == OpCode::all_reduce || op == OpCode::reduce_scatter)
    plans.push_back({"summed", Algorithm::summed});
  return plans;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  return begin == text.npos ? std::string_view()
                            : text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

// Cuts the text at the separator, and sets *after to what follows it. Returns false if there is
// none.
bool cut(std::string_view* text, char separator, std::string_view* after) {
  const size_t at = text->find(separator);
  if (at == text->npos) return false;
  *after = text->substr(at + 1);
  *text = text->substr(0, at);
  return true;
}

bool parse_bytes(std::string_view text, uint64_t* bytes) {
  static constexpr ConfigSpec kBytes{"", ConfigType::kBytes, "0", 0, int64_t{1} << 58};
  const Result<ConfigValue> value = parse_config_value(kBytes, text);
  if (value.ok()) *bytes = static_cast<uint64_t>(value.value().number);
  return value.ok();
}

bool parse_range(std::string_view text, Rule* rule) {
  std::string_view to;
  if (!cut(&text, '-', &to)) return false;
  return (text.empty() || parse_bytes(text, &rule->from)) &&
         (to.empty() || parse_bytes(to, &rule->to)) && rule->from <= rule->to;
}

bool parse_number(std::string_view text, int* number) {
  if (text == "*") return true;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return code == std::errc() && end == text.data() + text.size() && *number > 0;
}

bool parse_host_shape(std::string_view text, Rule* rule) {
  std::string_view per_host;
  return cut(&text, 'x', &per_host) && parse_number(text, &rule->hosts) &&
         parse_number(per_host, &rule->per_host);
}

template <class Condition>
const Rule* first(const std::vector<Rule>& rules, const RuledCall& call,
                  const Condition& condition) {
  const OpCode op = even_form(call.op);
  const auto found = std::find_if(rules.begin(), rules.end(), [&](const Rule& rule) {
    return rule.op == op && rule.from <= call.bytes && call.bytes <= rule.to &&
           (!rule.hosts || rule.hosts == call.host_shape.hosts) &&
           (!rule.per_host || rule.per_host == call.host_shape.per_host) && condition(rule);
  });
  return found == rules.end() ? nullptr : &*found;
}

}  // namespace

OpCode even_form(OpCode op) {
  return op == OpCode::all_gather_v       ? OpCode::all_gather
         : op == OpCode::reduce_scatter_v ? OpCode::reduce_scatter
                                          : op;
}

Result<Rule> parse_rule(std::string_view text) {
  const auto refuse = [&](const std::string& what) {
    return fail(FSCCL_ERR_CONFIG,
                "rule {}: {}. A rule is operation[@HOSTSxRANKS][:FROM-TO]=plan[/PIECE], such as "
                "all_gather@2x4:64K-1M=slots/32K",
                quote(text), what);
  };
  std::string_view left = trimmed(text), plan, chunk, range, host_shape;
  if (!cut(&left, '=', &plan)) return refuse("it has no \"=\"");
  const bool pieces = cut(&plan, '/', &chunk), ranges = cut(&left, ':', &range),
             shaped = cut(&left, '@', &host_shape);
  const std::string_view operation = trimmed(left);
  plan = trimmed(plan);

  const auto op = std::find_if(kRuled.begin(), kRuled.end(),
                               [&](OpCode one) { return op_name(one) == operation; });
  if (op == kRuled.end()) {
    std::vector<const char*> names;
    for (const OpCode one : kRuled) names.push_back(op_name(one));
    return refuse(
        fmt::format("operation {} is not one of {}", quote(operation), fmt::join(names, ", ")));
  }
  Rule rule;
  rule.op = *op;
  const std::vector<Named> plans = plans_of(*op);
  // The plans of `send` are those of a broadcast on two ranks.
  for (const OpCode prefix : {*op, *op == OpCode::send ? OpCode::broadcast : *op})
    if (const std::string before = std::string(op_name(prefix)) + '_'; plan.starts_with(before))
      plan.remove_prefix(before.size());
  const auto known =
      std::find_if(plans.begin(), plans.end(), [&](const Named& one) { return plan == one.name; });
  if (known == plans.end()) {
    std::vector<const char*> names;
    for (const Named& one : plans) names.push_back(one.name);
    return refuse(fmt::format("plan {} is not one of {}", quote(plan), fmt::join(names, ", ")));
  }
  rule.algorithm = known->algorithm;
  if (shaped && !parse_host_shape(trimmed(host_shape), &rule))
    return refuse(fmt::format("{} is not HOSTSxRANKS, like 2x4 or 2x*", quote(host_shape)));
  if (ranges && !parse_range(trimmed(range), &rule))
    return refuse(fmt::format("{} is not FROM-TO, like 64K-1M, 64K- or -1M", quote(range)));
  if (!pieces) return rule;
  if (rule.of_hosts() || rule.in_steps() || rule.algorithm == Algorithm::read || rule.of_device())
    return refuse(fmt::format("{} does not go in pieces", known->name));
  if (!parse_bytes(trimmed(chunk), &rule.chunk) || rule.chunk < kLeastChunk ||
      rule.chunk > kMostChunk || rule.chunk % 64)
    return refuse(fmt::format("piece {} is not a multiple of 64 from 4K to 1G", quote(chunk)));
  return rule;
}

Result<std::vector<Rule>> parse_rules(std::string_view text, const std::string& origin) {
  std::vector<Rule> rules;
  for (std::string_view rest = text; !trimmed(rest).empty();) {
    std::string_view one = rest, after;
    rest = cut(&one, ',', &after) ? after : std::string_view();
    Result<Rule> rule = parse_rule(one);
    if (!rule.ok()) return fail(FSCCL_ERR_CONFIG, "{}: {}", origin, rule.status().text());
    rules.push_back(rule.take());
    rules.back().origin = origin;
  }
  return rules;
}

const Rule* rule_of_hosts(const std::vector<Rule>& rules, const RuledCall& call) {
  return first(rules, call, [](const Rule& rule) {
    return rule.of_hosts() || (rule.flat && !rule.of_device());
  });
}
const Rule* rule_of_plan(const std::vector<Rule>& rules, const RuledCall& call) {
  return first(rules, call, [](const Rule& rule) { return !rule.of_hosts() && !rule.of_device(); });
}
const Rule* rule_of_device(const std::vector<Rule>& rules, const RuledCall& call) {
  return first(rules, call, [](const Rule& rule) { return rule.of_device(); });
}

void announce_ignored(const Rule& rule, OpCode op, std::string_view reason) {
  static std::mutex mutex;
  static Immortal<std::set<std::string>> announced;
  const std::string file = rule.origin.ends_with("FSCCL_TUNING_FILE")
                               ? fmt::format(" ({})", config()->tuning_file)
                               : std::string();
  std::string text = fmt::format("{}{} is not followed for {}: {}; the cost model chooses",
                                 rule.origin, file, op_name(op), reason);
  const std::lock_guard lock(mutex);
  if (announced.get().insert(text).second) FSCCL_LOG(kWarn, "{}", text);
}

}  // namespace fsccl
