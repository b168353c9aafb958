// Fuzzes files that users write or exchange: topologies, tuning files, races of kernels, traces of
// memory, and the bytes of a unique id. The first byte chooses the kind of file. trace_fuzz.cpp has
// the files that fsccl-trace reads.
#include <algorithm>
#include <cstring>

#include "bootstrap/unique_id.h"
#include "fuzz.h"
#include "kernels/race_file.h"
#include "perf/pool/trace.h"
#include "select/tuning_file.h"
#include "topo/discover.h"
#include "topo/file.h"

namespace {

using namespace fsccl;

void read_topology(const Result<topo::Topology>& topology) {
  if (topology.ok()) FUZZ_REQUIRE(topo::parse_json(topo::to_json(topology.value()), "again").ok());
}

// Reads a machine as load_file() does: the reader of JSON checks which objects may hang below which
// others.
void read_machine(const std::string& text) {
  const Result<topo::Topology> machine = topo::parse_xml(text, "fuzzed");
  if (machine.ok()) read_topology(topo::parse_json(topo::to_json(machine.value()), "fuzzed"));
}

// Reads a file of races. If it is valid, it chooses only kernels that run on this machine, and what
// is written from it can be read again.
void read_races(const std::string& text) {
  const Result<RaceRecord> record = parse_races(text, "fuzzed");
  if (!record.ok()) return;
  const KernelChoice choice = choice_of(record.value().races);
  for (size_t pass = 0; pass < kPasses; pass++) FUZZ_REQUIRE(usable(Pass(pass), choice[pass]));
  const Result<RaceRecord> again = parse_races(to_json(record.value()), "again");
  FUZZ_REQUIRE(again.ok() && again.value().key == record.value().key);
}

constexpr std::string_view kMachine = R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
<object type="Machine" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1"
 complete_nodeset="0x1"><info name="HostName" value="a&amp;b"/>
<object type="Package" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1"
 complete_nodeset="0x1"><info name="CPUModel" value="m"/>
<object type="NUMANode" os_index="0" cpuset="0xf...f,0x3" complete_cpuset="0x3" nodeset="0x1"
 complete_nodeset="0x1" local_memory="1024"/>
<object type="L2Cache" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1"
 complete_nodeset="0x1" cache_size="64">
<object type="Core" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1"
 complete_nodeset="0x1">
<object type="PU" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1"
 complete_nodeset="0x1"/></object></object>
<object type="Bridge" bridge_type="0-1">
<object type="PCIDev" pci_type="0302 [10de:2330] a1" pci_link_speed="15.7"/>
<object type="PCIDev" pci_type="0200 [15b3:1021]">
<object type="OSDev" name="mlx5_0" osdev_type="3"/></object></object>
</object></object><!-- end --></topology>
)";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  switch (data[0] % 6) {
    case 5:
      read_races(text);
      break;
    case 0:
      read_topology(topo::parse_json(text, "fuzzed"));
      break;
    case 4:
      read_machine(text);
      break;
    case 1:
      (void)parse_tuning(text, "fuzzed").ok();
      break;
    case 2: {
      std::string error;
      const auto trace = perf::parse_trace(text, "fuzzed", &error);
      FUZZ_REQUIRE(trace || !error.empty());
      break;
    }
    default: {
      fsccl_unique_id_t id{};
      std::memcpy(id.bytes, text.data(), std::min(text.size(), sizeof id.bytes));
      (void)decode_unique_id(id).ok();
    }
  }
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  const auto add = [&](uint8_t kind, std::string_view text) {
    seeds.push_back(seed_of(kind, text));
  };
  add(0,
      R"({"fsccl_topology": 1, "hosts": [{"name": "a{}", "repeat": 2,
"children": [{"kind": "package", "name": "p0", "children": [
      {"kind": "numa", "name": "n0", "bytes": 1024}, {"kind": "cache", "name": "L3", "bytes": 64,
"children": [
      {"kind": "core", "name": "core{}", "repeat": 4}]}]}]}], "switches": [], "links": []})");
  add(1,
      R"({"fsccl_tuning": 1, "costs": [{"machine": "m", "transport": "shm", "link": "cache",
"measured": {"exchange_ns": 110,
      "sizes": [256, 2048, 131072], "slots_ns": [60, 250, 11000], "slots_past_caches_ns": [400,
700, 18000],
      "read_ns": [1200, 1400, 15000], "read_to_slots": 0.7, "read_written": 1.5,
      "copy_ns_per_kib": 40.96}}],
"rules": ["all_gather@1x2:64K-1M=slots/32K"]})");
  add(2, R"({"op":"meta","name":"t"}
{"op":"alloc","id":7,"bytes":4096,"stream":"ag","kind":"ag_out","key":"3/ag"}
{"op":"event","id":4,"stream":"ag"}
{"op":"wait","stream":"compute","event":4}
{"op":"use","id":7,"stream":"compute"}
{"op":"free","id":7,"stream":"compute"}
{"op":"mark","what":"step_end"}
)");
  UniqueId id;
  id.job = 5;
  const fsccl_unique_id_t bytes = encode(id);
  add(3, {reinterpret_cast<const char*>(bytes.bytes), sizeof bytes.bytes});
  add(4, kMachine);
  RaceRecord record{{"a processor", "0x1", "0.1.0"}, "race", {}};
  for (const Pass pass : {Pass::copy, Pass::reduce_norm_past}) {
    record.races.push_back({pass, {}, 0});
    for (const Chosen one : usable_variants(pass))
      record.races.back().heats.push_back({one, {10, 11, 12}});
  }
  add(5, to_json(record));
  return seeds;
}
