#include "forecast/machine.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "base/json_file.h"
#include "topo/discover.h"
#include "topo/file.h"
#include "transports/transports.h"

namespace fsccl::forecast {
namespace {

// Rates below the least ones make times that no number holds.
constexpr double kLeastRate = 1e-6, kMostRate = 1e9, kMostNs = 1e9, kMostBytes = 1e18;
constexpr double kMostTflops = 1e5;  // no rank has more
constexpr double kSameRate = 1e-9;   // sums of the same rates in another order differ by less
constexpr int kMostPerHost = 4096;

Status unknown(const std::string& name, const char* what, const char* advice) {
  return fail(FSCCL_ERR_INVALID_ARGUMENT, "machine {}: {} is unknown: {}", name, what, advice);
}

topo::Connection typical(topo::LinkClass link) {
  const topo::LinkTraits& traits = topo::traits(link);
  return {link, traits.ns, traits.gb_per_s, {}};
}

class MachineReader : JsonReader {
 public:
  MachineReader(const std::string& type, int ranks)
      : JsonReader("machine"), type_(type), ranks_(ranks) {}

  Result<Machine> read(const Json& json) {
    if (!fields(json)) return problem();
    machine_.within = typical(machine_.gpu ? topo::LinkClass::nvlink : topo::LinkClass::cache);
    machine_.between = typical(topo::LinkClass::network);
    machine_.network_from = NetworkFrom::typical;
    if (!topology_.empty()) FSCCL_TRY(from_topology());
    if (!whole(json, "ranks_per_host", kPlace, kMostPerHost, &per_host_) ||
        !whole(json, "cores_per_host", kPlace, kMostPerHost, &cores_) || !links(json))
      return problem();
    FSCCL_TRY(fits_topology());
    if (json.contains("cores_per_host") && machine_.gpu)
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "machine {}: ranks compute on GPUs: leave \"cores_per_host\" out", machine_.name);
    if (json.contains("cores_per_host") && cores_ < 1)
      return unknown(machine_.name, "how many cores a host has",
                     "give \"cores_per_host\" of 1 or more, or leave it out");
    machine_.ranks_per_host = static_cast<int>(per_host_);
    machine_.cores_per_host = cores_;
    if (machine_.ranks_per_host < 1)
      return unknown(machine_.name, "how many ranks a host has",
                     "give \"ranks_per_host\" or \"topology\"");
    if (machine_.tflops <= 0)
      return unknown(machine_.name, ("what a rank computes in " + type_).c_str(),
                     "give \"tflops\" for this type, such as {\"bf16\": 989}");
    machine_.link_costs = typical_costs(machine_.within);
    if (json.contains("measured") && !measured(json["measured"])) return problem();
    machine_.link_costs.can_read = false;
    const char* const network = preferred_network();
    machine_.network = network ? network : "tcp";
    return machine_.with_ranks(ranks_);
  }

 private:
  static constexpr const char* kPlace = "the machine";

  bool fields(const Json& json) {
    std::string device = "cpu", carrier = "plans";
    double memory = 0, of_host = 0, context = 0;
    if (!object(json, kPlace,
                {"name", "source", "device", "ranks_per_host", "cores_per_host", "memory_bytes",
                 "host_memory_bytes", "memory_gb_per_s", "tflops", "efficiency", "context_bytes",
                 "carrier", "within", "between", "topology", "measured", "note"}) ||
        !text(json, "name", kPlace, true, &machine_.name) ||
        !text(json, "source", kPlace, false, &machine_.source) ||
        !text(json, "device", kPlace, false, &device) ||
        !text(json, "carrier", kPlace, false, &carrier) ||
        !text(json, "topology", kPlace, false, &topology_) ||
        !number(json, "memory_bytes", kPlace, kMostBytes, &memory) ||
        !number(json, "host_memory_bytes", kPlace, kMostBytes, &of_host) ||
        !number(json, "context_bytes", kPlace, kMostBytes, &context) ||
        !number_from(json, "memory_gb_per_s", kPlace, kLeastRate, kMostRate,
                     &machine_.memory_gb_per_s) ||
        !number_from(json, "efficiency", kPlace, kLeastEfficiency, 1, &machine_.efficiency))
      return false;
    if (device != "gpu" && device != "cpu")
      return wrong("device is \"{}\": give gpu or cpu", device);
    if (carrier != "plans" && carrier != "nccl")
      return wrong("carrier is \"{}\": give plans or nccl", carrier);
    machine_.gpu = device == "gpu";
    machine_.carrier = carrier == "nccl" ? Carrier::nccl : Carrier::plans;
    if (machine_.carrier == Carrier::nccl && !machine_.gpu)
      return wrong("NCCL carries bytes of GPUs: give a machine with GPUs (\"device\": \"gpu\")");
    machine_.memory_bytes = static_cast<uint64_t>(memory);
    machine_.host_memory_bytes = static_cast<uint64_t>(memory > 0 ? 0 : of_host);
    machine_.context_bytes = static_cast<uint64_t>(context);
    if (json.contains("tflops")) {
      if (!json["tflops"].is_object())
        return wrong("tflops must be an object, such as {{\"bf16\": 989}}");
      if (!number_from(json["tflops"], type_.c_str(), "tflops", kLeastRate, kMostTflops,
                       &machine_.tflops))
        return false;
    }
    return true;
  }

  bool link(const Json& json, const char* key, topo::Connection* way) {
    if (!json.contains(key)) return true;
    std::string name(topo::traits(way->link).name);
    if (!object(json[key], key, {"link", "gb_per_s", "ns"}) ||
        !text(json[key], "link", key, false, &name) ||
        !number_from(json[key], "gb_per_s", key, kLeastRate, kMostRate, &way->gb_per_s) ||
        !number(json[key], "ns", key, kMostNs, &way->ns))
      return false;
    for (int i = 0; i < topo::kLinkClasses; i++)
      if (topo::traits(static_cast<topo::LinkClass>(i)).name == name) {
        way->link = static_cast<topo::LinkClass>(i);
        return way->gb_per_s > 0 || wrong("{}.gb_per_s must be above 0", key);
      }
    return wrong("{}.link is \"{}\", which is no class of links: `fsccl-info topology` shows them",
                 key, name);
  }
  bool links(const Json& json) {
    if (json.contains("within") && json["within"].is_object() &&
        json["within"].contains("gb_per_s"))
      machine_.within_given = true;
    if (!link(json, "within", &machine_.within) || !link(json, "between", &machine_.between))
      return false;
    if (!json.contains("between")) return true;
    if (json["between"].contains("gb_per_s")) machine_.network_from = NetworkFrom::given;
    machine_.latency_given = json["between"].contains("ns");
    return true;
  }
  // Refuses more ranks than a host of the topology has GPUs. Cores are shared.
  Status fits_topology() const {
    if (places_ == 0 || !machine_.gpu || per_host_ <= static_cast<double>(places_))
      return success();
    return fail(
        FSCCL_ERR_INVALID_ARGUMENT,
        "machine {}: \"ranks_per_host\" is {}, but a host of {} has {} GPUs: give {} or less, "
        "or leave it out",
        machine_.name, per_host_, topology_, places_, places_);
  }

  bool measured(const Json& json) {
    Costs& costs = machine_.link_costs;
    double per_kib = 0, network_per_kib = 0;
    if (!json.is_object() || !json.contains("slots_ns") || !json["slots_ns"].is_array() ||
        json["slots_ns"].size() != costs.slot_cached.ns.size() ||
        !number(json, "exchange_ns", "measured", kMostNs, &costs.exchange) ||
        !number(json, "copy_ns_per_kib", "measured", kMostNs, &per_kib) ||
        !number(json, "network_ns_per_kib", "measured", kMostNs, &network_per_kib) ||
        !passes(json, "gather", &machine_.gather) || !passes(json, "reduce", &machine_.reduce))
      return wrong(
          "measured must have exchange_ns, slots_ns and copy_ns_per_kib, as `fsccl-info explain "
          "--json` says them");
    for (size_t i = 0; i < costs.slot_cached.ns.size(); i++) {
      const double ns = json["slots_ns"][i].is_number() ? json["slots_ns"][i].get<double>() : -1;
      if (!(ns >= 0 && ns <= kMostNs))
        return wrong("measured.slots_ns must be numbers from 0 to {}", kMostNs);
      costs.slot_cached.ns[i] = ns;
      costs.slot_streaming.ns[i] = costs.slot_cached.ns[i] * 1.6;
    }
    costs.copy_per_byte = per_kib / 1024;
    machine_.network_per_byte = network_per_kib / 1024;
    costs.origin = CostsOrigin::calibration;
    return true;
  }

  bool passes(const Json& json, const std::string& name, PassCosts* passes) {
    double streaming = 0, cached = 0, bytes = 0;
    if (!number(json, (name + "_ns_per_kib").c_str(), "measured", kMostNs, &streaming) ||
        !number(json, (name + "_cached_ns_per_kib").c_str(), "measured", kMostNs, &cached) ||
        !number(json, "streaming_bytes", "measured", kMostBytes, &bytes))
      return false;
    passes->streaming_per_byte = streaming / 1024;
    passes->cached_per_byte = (cached > 0 ? cached : streaming) / 1024;
    passes->streaming_bytes = static_cast<uint64_t>(bytes);
    return true;
  }

  // Takes the links from a topology. Ranks are on the GPUs of a host if it has some and the device
  // is "gpu", and else on its cores.
  Status from_topology() {
    Result<topo::Topology> loaded =
        topology_ == "here" ? Result<topo::Topology>(topo::discover()) : topo::load_file(topology_);
    if (!loaded.ok()) return loaded.take_status();
    const topo::Topology& topology = loaded.value();
    const topo::Kind kind = machine_.gpu ? topo::Kind::gpu : topo::Kind::core;
    const std::vector<int> hosts = topology.all(topo::Kind::host),
                           places = topology.all(kind, hosts.front());
    const std::vector<HostFacts> facts = facts_of_hosts(topology, kind);
    const HostFacts& first = facts[static_cast<size_t>(hosts.front())];
    if (places.empty())
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "machine {}: {} has no {} on its first host: give another \"device\" or topology",
                  machine_.name, topology_ == "here" ? "this machine" : topology_,
                  machine_.gpu ? "GPU" : "core");
    for (const int host : hosts)
      if (const HostFacts& one = facts[static_cast<size_t>(host)];
          one.places != first.places ||
          std::abs(one.gb_per_s - first.gb_per_s) > kSameRate * first.gb_per_s)
        return fail(
            FSCCL_ERR_INVALID_ARGUMENT,
            "machine {}: the hosts of {} differ: {} has {} place(s) for ranks and {} GB/s to "
            "the network, {} has {} and {} GB/s; a forecast is for hosts that are alike, so "
            "give one of their kinds",
            machine_.name, topology_, topology.path(hosts.front()), first.places, first.gb_per_s,
            topology.path(host), one.places, one.gb_per_s);
    machine_.topology = topology_;
    machine_.network_from = hosts.size() == 1 ? NetworkFrom::nothing : NetworkFrom::typical;
    places_ = places.size();
    per_host_ = static_cast<double>(places_);
    if (!machine_.gpu) cores_ = per_host_;
    const topo::Graph graph(topology);
    if (places.size() > 1) {
      machine_.within = slowest_way(graph, places);
      machine_.within_given =
          machine_.within.gb_per_s != topo::traits(machine_.within.link).gb_per_s;
      FSCCL_TRY(alike_within(graph, topology, hosts));
    }
    machine_.within.vertices.clear();
    if (hosts.size() > 1) {
      const std::vector<topo::Connection> reach = graph.from(places.front());
      const auto way_to = [&](int host) -> const topo::Connection& {
        return reach[static_cast<size_t>(facts[static_cast<size_t>(host)].first_place)];
      };
      for (const int host : hosts)
        if (host != hosts.front() && way_to(host).gb_per_s <= 0)
          return fail(FSCCL_ERR_INVALID_ARGUMENT,
                      "machine {}: {} has no way from {} to {}: add their links", machine_.name,
                      topology_, topology.path(hosts.front()), topology.path(host));
      const topo::Connection& way = way_to(hosts[1]);
      machine_.between = way;
      if (way.gb_per_s != topo::traits(way.link).gb_per_s)
        machine_.network_from = NetworkFrom::given;
      machine_.between.vertices.clear();
    }
    if (first.gb_per_s > 0) {
      machine_.between.gb_per_s = std::min(first.gb_per_s, reach_of_cards(graph, topology, hosts));
      machine_.network_from = hosts.size() == 1 ? NetworkFrom::cards : NetworkFrom::given;
    }
    if (machine_.within.gb_per_s <= 0)
      machine_.within.gb_per_s = topo::traits(machine_.within.link).gb_per_s;
    return success();
  }

  // Returns the slowest of the ways between the GPUs of a host: of the worst class of links, and of
  // the least rate. The cores of a host differ too little for more than the ways from the first.
  topo::Connection slowest_way(const topo::Graph& graph, const std::vector<int>& places) const {
    std::optional<topo::Connection> slowest;
    for (size_t from = 0; from < (machine_.gpu ? places.size() : 1); from++) {
      const std::vector<topo::Connection> reach = graph.from(places[from]);
      for (const int to : places) {
        const topo::Connection& way = reach[static_cast<size_t>(to)];
        if (to != places[from] && (!slowest || way.link > slowest->link ||
                                   (way.link == slowest->link && way.gb_per_s < slowest->gb_per_s)))
          slowest = way;
      }
    }
    return *slowest;
  }

  // Refuses hosts whose GPUs or cores reach each other at another rate than those of the first one.
  // Only hosts whose own links have other rates are followed.
  Status alike_within(const topo::Graph& graph, const topo::Topology& topology,
                      const std::vector<int>& hosts) const {
    std::map<int, std::multiset<double>> rates;
    for (const topo::Link& link : topology.links)
      if (const int host = topology.host_of(link.a); host == topology.host_of(link.b))
        rates[host].insert(link.gb_per_s);
    const topo::Kind kind = machine_.gpu ? topo::Kind::gpu : topo::Kind::core;
    const topo::Connection& first = machine_.within;
    for (const int host : hosts) {
      if (rates[host] == rates[hosts.front()]) continue;
      const topo::Connection way = slowest_way(graph, topology.all(kind, host));
      if (way.link == first.link && way.gb_per_s == first.gb_per_s) continue;
      return fail(
          FSCCL_ERR_INVALID_ARGUMENT,
          "machine {}: the hosts of {} differ: {} has {} GB/s by {} between its places for "
          "ranks, {} has {} GB/s by {}; a forecast is for hosts that are alike, so give one "
          "of their kinds",
          machine_.name, topology_, topology.path(hosts.front()), first.gb_per_s,
          topo::traits(first.link).name, topology.path(host), way.gb_per_s,
          topo::traits(way.link).name);
    }
    return success();
  }

  // Returns the sum of the rates at which the cards of the first host reach the second one, because
  // switches between them may be slower than they are. A rate that is not given is no limit.
  static double reach_of_cards(const topo::Graph& graph, const topo::Topology& topology,
                               const std::vector<int>& hosts) {
    constexpr double kNoLimit = std::numeric_limits<double>::infinity();
    double sum = 0;
    if (hosts.size() < 2) return kNoLimit;
    for (const int card : topology.all(topo::Kind::nic, hosts[0])) {
      if (topology.vertices[static_cast<size_t>(card)].down) continue;
      const std::vector<topo::Connection> reach = graph.from(card);
      double widest = 0;
      for (const int other : topology.all(topo::Kind::nic, hosts[1]))
        widest = std::max(widest, reach[static_cast<size_t>(other)].gb_per_s);
      if (widest == topo::traits(topo::LinkClass::network).gb_per_s) return kNoLimit;
      sum += widest;
    }
    return sum > 0 ? sum : kNoLimit;
  }

  // A host has places for ranks, and cards that reach the network at some rate together.
  struct HostFacts {
    size_t places = 0;
    int first_place = -1;
    double gb_per_s = 0;
  };
  // Returns the facts of each host, at the index of its vertex. A card is no faster than the
  // fastest of its links.
  static std::vector<HostFacts> facts_of_hosts(const topo::Topology& topology, topo::Kind kind) {
    std::vector<HostFacts> facts(topology.vertices.size());
    std::vector<double> links(facts.size());  // by card; 0: nothing is known of its links
    for (const topo::Link& link : topology.links)
      for (const int end : {link.a, link.b}) {
        double& best = links[static_cast<size_t>(end)];
        best = std::max(best, link.gb_per_s);
      }
    for (size_t i = 0; i < facts.size(); i++) {
      const topo::Vertex& vertex = topology.vertices[i];
      if (vertex.kind != kind && vertex.kind != topo::Kind::nic) continue;
      HostFacts& host = facts[static_cast<size_t>(topology.host_of(static_cast<int>(i)))];
      if (vertex.kind == kind && host.places++ == 0) host.first_place = static_cast<int>(i);
      if (vertex.kind != topo::Kind::nic || vertex.down) continue;
      const bool slower = links[i] > 0 && links[i] < vertex.gb_per_s;
      host.gb_per_s += slower ? links[i] : vertex.gb_per_s;
    }
    return facts;
  }

  const std::string type_;
  const int ranks_;
  Machine machine_;
  std::string topology_;
  size_t places_ = 0;  // places for ranks on a host of the topology; 0: there is none
  double per_host_ = 0;
  double cores_ = 0;  // cores of a host; 0: one or more for each rank
};

}  // namespace

Costs PassCosts::of(uint64_t read, uint64_t written) const {
  const uint64_t moved = read + written;
  const double per_byte = moved < streaming_bytes ? cached_per_byte : streaming_per_byte;
  Costs found = costs;
  if (per_byte > 0 && read > 0) {
    found.copy_per_byte = per_byte * static_cast<double>(moved) / static_cast<double>(read);
    found.own_per_byte.reset();  // the measured time is that of all bytes
  }
  return found;
}

Machine Machine::with_ranks(int ranks) const {
  Machine made = *this;
  const int on_host = std::min(ranks_per_host, ranks);
  if (host_memory_bytes > 0) made.memory_bytes = host_memory_bytes / static_cast<uint64_t>(on_host);
  made.ranks_per_core = cores_per_host > 0 ? std::max(1.0, on_host / cores_per_host) : 1;
  made.flops = tflops * 1e12 / made.ranks_per_core;
  made.within_costs = link_costs;
  made.within_costs.apply_to(false, made.ranks_per_core);
  made.gather.costs = made.reduce.costs = made.within_costs;
  // The link carries no copy within the memory of a GPU. Cores copy what is theirs and what is
  // their peers' at the same rate.
  if (gpu)  // without the rate of its memory, such a copy takes no time
    made.gather.costs.own_per_byte = made.reduce.costs.own_per_byte =
        memory_gb_per_s > 0 ? 1 / memory_gb_per_s : 0;
  return made;
}

Result<Machine> read_machine(const JsonValue& json, const std::string& type, int ranks) {
  return MachineReader(type, ranks).read(json);
}

}  // namespace fsccl::forecast
