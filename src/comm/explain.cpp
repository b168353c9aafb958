#include "comm/explain.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/config.h"
#include "codec/custom.h"
#include "codec/price.h"
#include "comm/hierarchy.h"
#include "kernels/start.h"
#include "select/tuning_file.h"
#include "topo/discover.h"
#include "topo/file.h"
#include "transports/shm/shm.h"
#include "transports/transports.h"

namespace fsccl {
namespace {

constexpr std::array kExplained{OpCode::all_gather, OpCode::reduce_scatter, OpCode::all_reduce,
                                OpCode::broadcast,  OpCode::reduce,         OpCode::gather,
                                OpCode::scatter,    OpCode::all_to_all,     OpCode::send,
                                OpCode::barrier};
constexpr std::array kFrom{"table", "calibration", "tuning file"};
constexpr int kMostImagined = 1 << 16;

std::string text_of(const std::vector<Stage>& stages) {
  std::string text;
  for (const Stage& stage : stages)
    text += fmt::format(
        R"({}{{"between_hosts":{},"operation":"{}","plan":"{}","predicted_us":{:.3f}}})",
        text.empty() ? "" : ",", stage.between_hosts, op_name(stage.op), stage.plan,
        stage.ns / 1000);
  return text;
}

// The cores on which ranks would run, one each, and how far they are from each other.
struct Seats {
  size_t cores = 0;  // cores of a host
  // the farthest from the first, in its host; the same place on the next host
  topo::Connection within, across;
};
topo::Connection typical(topo::LinkClass link) {
  return {link, topo::traits(link).ns, topo::traits(link).gb_per_s, {}};
}

Seats seats_of(const topo::Topology& topology, size_t per_host) {
  const std::vector<int> hosts = topology.all(topo::Kind::host),
                         cores = topology.all(topo::Kind::core, hosts.front());
  Seats seats{cores.size(), typical(topo::LinkClass::core), typical(topo::LinkClass::network)};
  if (cores.empty()) return seats;
  const std::vector<topo::Connection> reach = topo::Graph(topology).from(cores.front());
  for (size_t i = 1; i < std::min(cores.size(), per_host); i++)
    if (const topo::Connection& way = reach[static_cast<size_t>(cores[i])];
        way.link >= seats.within.link)
      seats.within = way;
  const std::vector<int> next =
      hosts.size() > 1 ? topology.all(topo::Kind::core, hosts[1]) : std::vector<int>();
  if (!next.empty() && reach[static_cast<size_t>(next.front())].gb_per_s > 0)
    seats.across = reach[static_cast<size_t>(next.front())];
  return seats;
}

CodingRanks coding_ranks(const GroupShape& whole) {
  return {whole.select.host_shape.hosts, whole.per_host()};
}

const char* reason(const CodecPrice& price) {
  return price.declines() ? "coding takes longer than the link needs for the bytes that it saves"
                          : "the bytes that it saves take the link longer than coding";
}

// Describes a gather of 16-bit words between hosts with a codec: its bytes and time, and the memory
// that it costs.
std::string text_of_codec(uint64_t bytes, const GroupShape& whole) {
  const Costs& costs = whole.select.costs;
  const double byte_ns = costs.slot_cached.ns.back() / static_cast<double>(Cost::kSizes.back());
  const CodecPrice price = price_delta(bytes, coding_ranks(whole), byte_ns, costs.exchange);
  return fmt::format(
      R"(,"gather_codec":{{"kind":"delta","form":"{}","of":"units of 16-bit floats",)"
      R"("bytes_plain":{},"bytes_coded":{},)"
      R"("plain_us":{:.3f},"coded_us":{:.3f},"copy_bytes_per_host":{},"declines":{},"why":"{}"}})",
      price.nibbles ? "nibbles" : "coded", price.plain_bytes, price.coded_bytes,
      price.plain_ns / 1000, price.coded_ns / 1000, price.copy_bytes, price.declines(),
      reason(price));
}

// The same for the custom codecs of this process's units. How long their functions take is not
// known: `link_us` is the time of the coded bytes alone.
std::string text_of_custom(double bytes, double word_bytes, const char* comma, int hosts,
                           double byte_ns) {
  std::string text;
  for (const CustomCodecInUse& one : custom_codecs_in_use()) {
    const double plain = bytes * (1 - 1.0 / hosts),
                 coded = plain / word_bytes * (one.bytes + 1) / one.block;  // 1: for the library
    text += fmt::format(R"({}{{"kind":"custom","name":"{}","version":{},"bound":{:.5f},)"
                        R"("bytes_plain":{:.0f},"bytes_coded":{:.0f},)"
                        R"("plain_us":{:.3f},"link_us":{:.3f}}})",
                        comma, one.name, one.version, one.bound, plain, coded,
                        plain * byte_ns / 1000, coded * byte_ns / 1000);
    comma = ",";
  }
  return text;
}

// The same for codecs that lose something: of a gather of bf16 words, and of a sum of fp32 words.
std::string text_of_blocks(OpCode op, uint64_t bytes, const GroupShape& whole) {
  const bool sums = op == OpCode::reduce_scatter;
  const double byte_ns =
      whole.select.costs.slot_cached.ns.back() / static_cast<double>(Cost::kSizes.back());
  const double word_bytes = sums ? 4 : 2;
  std::string text = sums ? R"(,"reduce_codecs":[)" : R"(,"block_codecs":[)";
  const char* comma = "";
  for (const BlockPrice& one : sums ? kBlockSums : kBlockGathers) {
    const CodecPrice price = price_blocks(one, static_cast<double>(bytes) / word_bytes, word_bytes,
                                          coding_ranks(whole), byte_ns, sums);
    text +=
        fmt::format(R"({}{{"kind":"{}","bound":{:.5f},"bytes_plain":{},"bytes_coded":{},)"
                    R"("plain_us":{:.3f},"coded_us":{:.3f},"pays":{},"why":"{}"}})",
                    comma, one.kind, one.bound, price.plain_bytes, price.coded_bytes,
                    price.plain_ns / 1000, price.coded_ns / 1000, !price.declines(), reason(price));
    comma = ",";
  }
  return text +
         text_of_custom(static_cast<double>(bytes), word_bytes, comma,
                        whole.select.host_shape.hosts, byte_ns) +
         "]";
}

// In shared memory of a machine that is only known from a file.
uint64_t typical_slot_bytes(int ranks) {
  return std::clamp<uint64_t>((4u << 20) / static_cast<uint64_t>(ranks), 16u << 10, 128u << 10);
}

}  // namespace

Result<OpCode> explained_operation(std::string_view name) {
  const auto* found = std::find_if(kExplained.begin(), kExplained.end(),
                                   [&](OpCode op) { return op_name(op) == name; });
  if (found != kExplained.end()) return *found;
  std::vector<const char*> names;
  for (const OpCode op : kExplained) names.push_back(op_name(op));
  return fail(FSCCL_ERR_INVALID_ARGUMENT, "operation \"{}\" is not one of {}", name,
              fmt::join(names, ", "));
}

Result<std::string> explanation(OpCode op, uint64_t bytes, const Circumstances& where) {
  if (bytes >> 58)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} bytes are beyond the address space", bytes);
  GroupShape whole = where.whole;
  if (op == OpCode::send) whole.ranks = 2;
  const bool one_buffer = op == OpCode::all_reduce || op == OpCode::broadcast ||
                          op == OpCode::reduce || op == OpCode::send;
  Shape shape =
      whole.shape(one_buffer ? bytes : bytes / static_cast<uint64_t>(whole.ranks), FSCCL_UINT8);
  shape.root = 0;
  std::vector<Candidate> candidates;
  const Selection selection = select(op, shape, whole.select, &candidates);
  HostsChoice hosts;
  if (where.by_hosts) hosts = choose_by_hosts(op, shape, whole, where.mode);
  // Plans were chosen among each other at the price that a byte has if a rank uses the link alone.
  // Beside an operation in two levels they are shown with the prices of that comparison, in which
  // the ranks of a host share the link.
  std::vector<Candidate> shared;
  if (!hosts.stages.empty())
    (void)select(op, shape, sharing_link(whole.select, whole.per_host()), &shared);
  for (Candidate& candidate : candidates)
    for (const Candidate& same : shared)
      if (same.plan == candidate.plan && same.chunk == candidate.chunk &&
          std::string_view(same.memory) == candidate.memory)
        candidate.ns = same.ns;
  const char* const crossing =
      hosts.by_hosts && reduces(op)
          ? "; sums of 16-bit floats cross between hosts in fp32, twice their bytes"
          : "";
  const std::string why = hosts.stages.empty() ? selection.why
                          : hosts.by_hosts || hosts.asked
                              ? hosts.why + crossing
                              : selection.why + ", and flat: " + hosts.why;

  std::string text = fmt::format(
      R"({{"operation":"{}","bytes":{},"ranks":{},"measured":{},"costs_from":"{}",)"
      R"("machine":"{}","transport":"{}",{}{}"link":"{}",)"
      R"("hosts":{},"ranks_per_host":{},"why":"{}","candidates":[)",
      op_name(op), bytes, whole.ranks, costs_json(whole.select.costs),
      kFrom[static_cast<size_t>(whole.select.costs.origin)], where.machine, where.transport,
      where.path ? fmt::format(R"("path":"{}",)", where.path) : "",
      where.why_transport.empty() ? ""
                                  : fmt::format(R"("transport_why":"{}",)", where.why_transport),
      topo::traits(where.link).name, whole.select.host_shape.hosts,
      whole.select.host_shape.per_host, why);
  for (const Candidate& candidate : candidates)
    text += fmt::format(
        R"({}{{"plan":"{}","chunk":{},"memory":"{}","predicted_us":{:.3f},"chosen":{}}})",
        &candidate == candidates.data() ? "" : ",", candidate.plan, candidate.chunk,
        candidate.memory, candidate.ns / 1000, candidate.chosen && !hosts.by_hosts);
  if (!hosts.stages.empty())
    text += fmt::format(R"(,{{"plan":"by_hosts","chunk":0,"memory":"any","predicted_us":{:.3f},)"
                        R"("chosen":{},"stages":[{}]}})",
                        hosts.ns / 1000, hosts.by_hosts, text_of(hosts.stages));
  text += "]";
  if (!where.kernels.empty()) text += R"(,"kernels":)" + where.kernels;
  if (where.streaming_bytes) text += fmt::format(R"(,"streaming_bytes":{})", where.streaming_bytes);
  if (op == OpCode::all_gather && whole.select.host_shape.hosts > 1)
    text += text_of_codec(bytes, whole);
  if ((op == OpCode::all_gather || op == OpCode::reduce_scatter) &&
      whole.select.host_shape.hosts > 1)
    text += text_of_blocks(op, bytes, whole);
  return text + "}";
}

Result<std::string> explanation_for(std::string_view operation, uint64_t bytes,
                                    const Imagined& ranks) {
  FSCCL_ASSIGN(const OpCode op, explained_operation(operation));
  if (ranks.hosts < 1 || ranks.per_host < 1 || ranks.hosts > kMostImagined / ranks.per_host)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{} hosts with {} ranks each: give 1 to {} ranks in all", ranks.hosts,
                ranks.per_host, kMostImagined);
  FSCCL_TRY(config_status());
  const ConfigRef settings = config();
  FSCCL_ASSIGN(const Tuning tuning,
               load_tuning(ranks.tuning.empty() ? settings->tuning_file : ranks.tuning));
  FSCCL_ASSIGN(const auto rules, rules_in_force(*settings, tuning));
  Result<topo::Topology> topology =
      ranks.topology.empty() ? topo::discover() : topo::load_file(ranks.topology);
  if (!topology.ok()) return topology.take_status();
  const std::string machine = ranks.topology.empty() ? machine_name() : "";
  const Seats seats = seats_of(topology.value(), static_cast<size_t>(ranks.per_host));

  const char* const asked = asked_network(*settings);
  const char* const network_name = asked ? asked : preferred_network();
  const char* const between = own_name(network_name);
  const bool one_peer = signals_one(network_name);
  const auto party = [&](int hosts, int per_host) {
    const bool network = hosts > 1 || forces_network(settings->transport);
    const topo::Connection& link = hosts > 1 ? seats.across : seats.within;
    GroupShape made;
    made.ranks = hosts * per_host;
    made.slot_bytes = settings->slot_bytes != kConfigAuto
                          ? static_cast<uint64_t>(settings->slot_bytes)
                      : network ? network_slot_bytes(between, static_cast<size_t>(made.ranks))
                      : ranks.topology.empty() ? shm_slot_bytes(made.ranks)
                                               : typical_slot_bytes(made.ranks);
    made.mirrored = network;
    const Costs* const known = tuning.find(machine, network ? between : "shm", link.link);
    made.select.sockets = network && std::string_view(between) == "tcp";
    made.select.costs = known ? *known : typical_costs(link, made.select.sockets);
    made.select.costs.can_read = made.select.costs.can_write =
        !network && settings->single_copy != SingleCopy::kOff;
    made.select.costs.apply_to(made.mirrored,
                               static_cast<double>(ranks.per_host) /
                                   static_cast<double>(std::max<size_t>(seats.cores, 1)));
    made.select.eager_bytes = settings->eager_bytes;
    made.select.always_read = settings->single_copy == SingleCopy::kOn;
    made.select.rules = rules;
    made.select.host_shape = {hosts, per_host};
    made.select.only_slots = settings->checksum;
    made.select.signals_one = one_peer;
    return made;
  };
  Circumstances where{party(ranks.hosts, ranks.per_host)};
  where.by_hosts = ranks.hosts > 1 && ranks.per_host > 1 &&
                   settings->hierarchy != HierarchyMode::kOff &&
                   (!reduces(op) || settings->reproducible == Reproducible::kRun);
  where.mode = settings->hierarchy;
  where.machine = machine;
  where.transport = where.whole.mirrored ? between : "shm";
  if (where.whole.mirrored) where.why_transport = why_network(*settings);
  where.link = ranks.hosts > 1 ? seats.across.link : seats.within.link;
  if (ranks.topology.empty())
    where.kernels = kernels_json(find_kernels(settings->kernels, 0), true);
  return explanation(op, bytes, where);
}

Result<std::string> Collectives::explain(std::string_view operation, uint64_t bytes) const {
  FSCCL_ASSIGN(const OpCode op, explained_operation(operation));
  Circumstances where{group_shape()};
  where.machine = machine_name();
  where.transport = engine_.options().channel->traits().transport;
  where.path = options_.path;
  where.link = options_.link;
  where.by_hosts = hierarchy_ && (!reduces(op) || config()->reproducible == Reproducible::kRun);
  where.mode = config()->hierarchy;
  where.kernels = kernels_json(running_kernels(), false);
  where.streaming_bytes = options_.streaming_bytes;
  return explanation(op, bytes, where);
}

}  // namespace fsccl
