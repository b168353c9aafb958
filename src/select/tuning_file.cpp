#include "select/tuning_file.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/hash.h"
#include "base/json_file.h"
#include "base/processor.h"

namespace fsccl {
namespace {

constexpr size_t kMostFileBytes = size_t{1} << 20, kMostCosts = 1000, kMostRules = 10'000;
constexpr size_t kMostPrices = 10'000, kMostPoints = 100;
constexpr double kMostNs = 1e9, kMostRanks = 1e6, kMostBytes = 1e15;

class Reader : JsonReader {
 public:
  explicit Reader(const std::string& source) : JsonReader(source) {}

  Result<Tuning> read(const Json& json) {
    if (!object(json, "the document", {"fsccl_tuning", "costs", "rules", "native"}) ||
        !version(json) || !costs(json) || !rules(json) || !native(json))
      return problem();
    return std::move(tuning_);
  }

 private:
  bool version(const Json& json) {
    return (json.contains("fsccl_tuning") && json["fsccl_tuning"] == 1) ||
           wrong(
               "\"fsccl_tuning\" must be 1, the version of the format that this library knows: "
               "write the file anew with "
               "`fsccl-perf "
               "tune`");
  }

  bool list(const Json& json, const char* key, size_t most) {
    if (!json[key].is_array()) return wrong("\"{}\" must be a list", key);
    return json[key].size() <= most || wrong("\"{}\" has more than {} entries", key, most);
  }

  bool costs(const Json& json) {
    if (!json.contains("costs")) return true;
    if (!list(json, "costs", kMostCosts)) return false;
    for (size_t i = 0; i < json["costs"].size(); i++)
      if (!measured(json["costs"][i], fmt::format("costs[{}]", i))) return false;
    return true;
  }

  bool measured(const Json& json, const std::string& place) {
    Tuning::Measured made;
    std::string link;
    if (!object(json, place, {"machine", "transport", "link", "measured"}) ||
        !text(json, "machine", place, true, &made.machine) ||
        !text(json, "transport", place, true, &made.transport) ||
        !text(json, "link", place, true, &link))
      return false;
    int known = 0;
    while (known < topo::kLinkClasses &&
           topo::traits(static_cast<topo::LinkClass>(known)).name != link)
      known++;
    if (known == topo::kLinkClasses)
      return wrong("{}.link \"{}\" is not a class of link", place, link);
    made.link = static_cast<topo::LinkClass>(known);
    if (!json.contains("measured")) return wrong("{} has no \"measured\"", place);
    const Json& values = json["measured"];
    const std::string inside = place + ".measured";
    if (!object(values, inside,
                {"exchange_ns", "message_ns", "sizes", "slots_ns", "slots_past_caches_ns",
                 "side_by_side", "read_ns", "read_to_slots", "read_written", "copy_ns_per_kib"}))
      return false;
    if (const Json& sizes = values["sizes"];
        !sizes.is_array() ||
        !std::equal(sizes.begin(), sizes.end(), Cost::kSizes.begin(), Cost::kSizes.end()))
      return wrong("{}.sizes must be [{}], the sizes that this library measures", inside,
                   fmt::join(Cost::kSizes, ","));
    Costs& costs = made.costs;
    costs.origin = CostsOrigin::tuning_file;
    double per_kib = costs.copy_per_byte * 1024;
    if (!number(values, "exchange_ns", inside, kMostNs, &costs.exchange) ||
        !number(values, "message_ns", inside, costs.exchange / 2, &costs.message) ||
        !number(values, "copy_ns_per_kib", inside, kMostNs, &per_kib) ||
        !cost(values, "slots_ns", inside, &costs.slot_cached) ||
        !cost(values, "slots_past_caches_ns", inside, &costs.slot_streaming))
      return false;
    costs.copy_per_byte = per_kib / 1024;
    std::string way(kSideBySide[0]);
    if (!text(values, "side_by_side", inside, false, &way)) return false;
    const auto found = std::find(kSideBySide.begin(), kSideBySide.end(), way);
    if (found == kSideBySide.end())
      return wrong("{}.side_by_side must be one of {}", inside, fmt::join(kSideBySide, ", "));
    costs.side_by_side = static_cast<SideBySide>(found - kSideBySide.begin());
    const bool reads = values.contains("read_ns") && !values["read_ns"].is_null();
    costs.can_read = reads;
    if (reads && !cost(values, "read_ns", inside, &costs.read)) return false;
    if (!number(values, "read_to_slots", inside, Costs::kMostToSlots, &costs.read_to_slots) ||
        !number(values, "read_written", inside, Costs::kMostWritten, &costs.read_written))
      return false;
    if (costs.read_to_slots > 0)
      costs.read_to_slots = std::max(costs.read_to_slots, Costs::kLeastToSlots);
    costs.read_written = std::max(costs.read_written, Costs::kLeastWritten);
    tuning_.costs.push_back(std::move(made));
    return true;
  }

  bool cost(const Json& json, const char* key, const std::string& place, Cost* cost) {
    const auto fits = [](const Json& one) {
      return one.is_number() && one.get<double>() >= 0 && one.get<double>() <= kMostNs;
    };
    if (!json.contains(key) || !json[key].is_array() || json[key].size() != cost->ns.size() ||
        !std::all_of(json[key].begin(), json[key].end(), fits))
      return wrong("{}.{} must be {} numbers from 0 to {}", place, key, cost->ns.size(), kMostNs);
    for (size_t i = 0; i < cost->ns.size(); i++) cost->ns[i] = json[key][i].get<double>();
    return true;
  }

  bool rules(const Json& json) {
    if (!json.contains("rules")) return true;
    if (!list(json, "rules", kMostRules)) return false;
    for (size_t i = 0; i < json["rules"].size(); i++) {
      const Json& rule = json["rules"][i];
      if (!rule.is_string()) return wrong("rules[{}] must be a text", i);
      Result<Rule> parsed = parse_rule(rule.get<std::string>());
      if (!parsed.ok()) return wrong("rules[{}]: {}", i, parsed.status().text());
      tuning_.rules.push_back(parsed.take());
      tuning_.rules.back().origin = fmt::format("rule {} of FSCCL_TUNING_FILE", i);
    }
    return true;
  }

  bool native(const Json& json) {
    if (!json.contains("native")) return true;
    if (!list(json, "native", kMostPrices)) return false;
    for (size_t i = 0; i < json["native"].size(); i++)
      if (!price(json["native"][i], fmt::format("native[{}]", i))) return false;
    return true;
  }

  bool price(const Json& json, const std::string& place) {
    NativePrice made;
    std::string operation, algorithm;
    double hosts = 1, per_host = 1;
    if (!object(json, place,
                {"operation", "hosts", "ranks_per_host", "algorithm", "sizes", "ns"}) ||
        !text(json, "operation", place, true, &operation) ||
        !text(json, "algorithm", place, true, &algorithm) ||
        !number(json, "hosts", place, kMostRanks, &hosts) ||
        !number(json, "ranks_per_host", place, kMostRanks, &per_host))
      return false;
    // parse_rule() knows which operations have the algorithm.
    const Result<Rule> known = parse_rule(operation + "=" + algorithm);
    if (!known.ok() || !known.value().of_device())
      return wrong("{}: operation \"{}\" has no algorithm \"{}\" on memory of GPUs", place,
                   operation, algorithm);
    made.op = known.value().op;
    made.algorithm = known.value().algorithm;
    made.hosts = static_cast<int>(hosts), made.per_host = static_cast<int>(per_host);
    if (!points(json, place, &made)) return false;
    tuning_.native.push_back(std::move(made));
    return true;
  }

  bool points(const Json& json, const std::string& place, NativePrice* price) {
    const auto numbers = [&](const char* key) {
      return json.contains(key) && json[key].is_array() && !json[key].empty() &&
             json[key].size() <= kMostPoints &&
             std::all_of(json[key].begin(), json[key].end(), [](const Json& one) {
               return one.is_number() && one.get<double>() >= 0 && one.get<double>() <= kMostBytes;
             });
    };
    if (!numbers("sizes") || !numbers("ns") || json["sizes"].size() != json["ns"].size())
      return wrong("{}: sizes and ns must be lists of as many numbers, 1 to {}", place,
                   kMostPoints);
    for (size_t i = 0; i < json["sizes"].size(); i++) {
      price->points.push_back(
          {static_cast<uint64_t>(json["sizes"][i].get<double>()), json["ns"][i].get<double>()});
      if (i && price->points[i].bytes <= price->points[i - 1].bytes)
        return wrong("{}.sizes must grow from one to the next", place);
    }
    return true;
  }

  Tuning tuning_;
};

}  // namespace

const Costs* Tuning::find(const std::string& machine, std::string_view transport,
                          topo::LinkClass link) const {
  const auto found = std::find_if(costs.begin(), costs.end(), [&](const Measured& one) {
    return (machine.empty() || one.machine == machine) && one.transport == transport &&
           one.link == link;
  });
  return found == costs.end() ? nullptr : &found->costs;
}

Result<Tuning> parse_tuning(const std::string& text, const std::string& source) {
  FSCCL_ASSIGN(const JsonValue json, parse_json_text(text, source));
  Result<Tuning> tuning = Reader(source).read(json);
  if (tuning.ok()) tuning.value().hash = hash_of(text);
  return tuning;
}

void write_costs(JsonWriter& out, const Costs& costs) {
  const auto whole = [&out](double ns) { out.number(static_cast<uint64_t>(std::nearbyint(ns))); };
  const auto exact = [&](double ns) {
    return [&, ns] { ns == std::nearbyint(ns) ? whole(ns) : out.value(ns); };
  };
  const auto rounded = [&](const Cost& cost) { return [&] { out.list(cost.ns, whole); }; };
  out.map({{"exchange_ns", exact(costs.exchange)},
           {"message_ns", exact(costs.message)},
           {"sizes", [&] { out.list(Cost::kSizes, [&](size_t bytes) { out.number(bytes); }); }},
           {"slots_ns", rounded(costs.slot_cached)},
           {"slots_past_caches_ns", rounded(costs.slot_streaming)},
           {"side_by_side", kSideBySide[static_cast<size_t>(costs.side_by_side)]},
           {"read_ns", [&] { costs.can_read ? out.list(costs.read.ns, whole) : out.null(); }},
           {"read_to_slots", costs.read_to_slots},
           {"read_written", costs.read_written},
           {"copy_ns_per_kib", std::nearbyint(costs.copy_per_byte * 10240) / 10}});
}

std::string costs_json(const Costs& costs) {
  return write_json([&](JsonWriter& out) { write_costs(out, costs); });
}

Result<Tuning> load_tuning(const std::string& path) {
  if (path.empty()) return Tuning{};
  Result<std::string> text = read_text_file(path, kMostFileBytes);
  Result<Tuning> parsed = text.ok() ? parse_tuning(text.value(), path) : text.take_status();
  if (!parsed.ok())
    return fail(FSCCL_ERR_CONFIG, "FSCCL_TUNING_FILE: the tuning file {}", parsed.status().text());
  return parsed;
}

Result<std::shared_ptr<const std::vector<Rule>>> rules_in_force(const Config& settings,
                                                                const Tuning& tuning) {
  FSCCL_ASSIGN(std::vector<Rule> rules, parse_rules(settings.plan, "FSCCL_PLAN"));
  const bool free_hosts = settings.hierarchy == HierarchyMode::kAuto;
  const bool free_plans =
      settings.eager_bytes == kConfigAuto && settings.single_copy != SingleCopy::kOn;
  for (const Rule& rule : tuning.rules) {
    if (!(rule.of_device() || (rule.of_hosts() ? free_hosts : free_plans))) continue;
    rules.push_back(rule);
    rules.back().flat = free_hosts;
  }
  return std::make_shared<const std::vector<Rule>>(std::move(rules));
}

std::string machine_name() {
  const std::string info = processor_info();
  std::string name;
  for (const char* const key : {"model name", "Processor", "CPU part"})
    if (name.empty()) name = processor_field(info, key);
  return fmt::format("{}, {} processors", name.empty() ? "unknown processor" : name,
                     sysconf(_SC_NPROCESSORS_CONF));
}

}  // namespace fsccl
