// Files that people hand over: topologies, tuning files, traces of memory, and the bytes of a unique id. The first byte chooses.
// What fsccl-trace reads: trace_fuzz.cpp.
#include <algorithm>
#include <cstring>

#include "bootstrap/unique_id.h"
#include "engine/tuning_file.h"
#include "fuzz.h"
#include "pool/trace.h"
#include "topo/file.h"

namespace {

using namespace fsccl;

void read_topology(const std::string& text) {
  const Result<topo::Topology> topology = topo::parse_json(text, "fuzzed");
  if (!topology.ok()) return;
  FUZZ_REQUIRE(topo::parse_json(topo::to_json(topology.value()), "again").ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  switch (data[0] % 4) {
    case 0:
      read_topology(text);
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
  const auto add = [&](uint8_t kind, std::string_view text) { seeds.push_back(seed_of(kind, text)); };
  add(0,
      R"({"fsccl_topology": 1, "hosts": [{"name": "a{}", "repeat": 2, "children": [{"kind": "package", "name": "p0", "children": [
      {"kind": "numa", "name": "n0", "bytes": 1024}, {"kind": "cache", "name": "L3", "bytes": 64, "children": [
      {"kind": "core", "name": "core{}", "repeat": 4}]}]}]}], "switches": [], "links": []})");
  add(1, R"({"fsccl_tuning": 1, "costs": [{"machine": "m", "transport": "shm", "link": "cache", "measured": {"exchange_ns": 110,
      "sizes": [256, 2048, 131072], "slots_ns": [60, 250, 11000], "slots_past_caches_ns": [400, 700, 18000],
      "read_ns": [1200, 1400, 15000], "copy_ns_per_kib": 40.96}}], "rules": ["all_gather@1x2:64K-1M=slots/32K"]})");
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
  return seeds;
}
