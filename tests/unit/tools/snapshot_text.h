// A small snapshot as a pool writes it, over two steps, with slots of two units, gradients, and a
// block.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace fsccl::trace {

inline nlohmann::json event(const std::string& action, uint64_t address, uint64_t size,
                            uint64_t time_us, const std::string& owner) {
  return {{"action", action},
          {"addr", address},
          {"size", size},
          {"stream", 0},
          {"time_us", time_us},
          {"user_metadata", owner},
          {"frames", {{{"filename", "pool"}, {"line", 0}, {"name", owner}}}}};
}

inline nlohmann::json block(uint64_t address, uint64_t size, const std::string& owner) {
  nlohmann::json frames = nlohmann::json::array();
  if (!owner.empty()) frames.push_back({{"filename", "pool"}, {"line", 0}, {"name", owner}});
  return {{"address", address},
          {"size", size},
          {"requested_size", size},
          {"state", owner.empty() ? "inactive" : "active_allocated"},
          {"frames", frames}};
}

// Returns the snapshot. Shared slots have addresses from 0x10000, private ones from 0x20000, and
// blocks from 0x30000. A page has 0x1000 bytes.
inline nlohmann::json sample_snapshot() {
  const std::string a = "unit a, parameters", b = "unit b, parameters", grads = "unit a, gradients",
                    block_of_nobody = "block";
  nlohmann::json traces = {
      event("segment_map", 0x10000, 0x3000, 1000, "shared slots"),
      event("alloc", 0x10000, 0x2000, 1000, a),
      // The block was taken before the first event.
      event("free_requested", 0x31000, 0x1000, 1100, block_of_nobody),
      event("free_completed", 0x31000, 0x1000, 1100, block_of_nobody),
      event("alloc", 0x12000, 0x1000, 1200, b),
      event("segment_map", 0x20000, 0x1000, 1250, "own slots"),
      event("alloc", 0x20000, 0x1000, 1300, grads),
      event("free_requested", 0x10000, 0x2000, 1400, a),
      event("free_completed", 0x10000, 0x2000, 1400, a),
      event("oom", 0, uint64_t{1} << 47, 1450, b),
      event("free_requested", 0x20000, 0x1000, 1500, grads),
      event("free_completed", 0x20000, 0x1000, 1500, grads),
      event("alloc", 0x10000, 0x2000, 2600, a),
  };
  const auto part = [](const char* name, uint64_t address, uint64_t bytes,
                       uint64_t planned) -> nlohmann::json {
    return {{"name", name},
            {"address", address},
            {"bytes", bytes},
            {"reserved_bytes", bytes},
            {"planned_bytes", planned},
            {"live_bound_bytes", planned},
            {"clique_bound_bytes", planned}};
  };
  const auto use = [](const char* kind, const char* unit, uint64_t live,
                      uint64_t peak) -> nlohmann::json {
    return {{"kind", kind},       {"unit", unit},     {"stream", 0}, {"live_bytes", live},
            {"peak_bytes", peak}, {"allocations", 2}, {"frees", 1},  {"allocated_bytes", 2 * peak}};
  };
  return {
      {"segments",
       {{{"address", 0x10000}, {"blocks", {block(0x10000, 0x2000, a), block(0x12000, 0x1000, b)}}},
        {{"address", 0x20000}, {"blocks", {block(0x20000, 0x1000, "")}}},
        {{"address", 0x30000},
         {"blocks", {block(0x30000, 0x1000, block_of_nobody), block(0x31000, 0x1000, "")}}}}},
      {"device_traces", {traces}},
      {"fsccl",
       {{"version", 1},
        {"library", "0.1.0"},
        {"pool", "weights"},
        {"rank", 0},
        {"ranks", 2},
        {"shared_host", 0},
        {"dry_run", false},
        {"time_us", 3000},
        {"limit_bytes", 1 << 20},
        {"reserved_bytes", 0x6000},
        {"live_peak_bytes", 0x5000},
        {"plan_hits", 3},
        {"plan_misses", 1},
        {"growths", 2},
        {"steps", 2},
        {"events_lost", 5},
        {"parts",
         {part("shared slots", 0x10000, 0x3000, 0x3000), part("own slots", 0x20000, 0x1000, 0x1000),
          part("blocks", 0x30000, 0x2000, 0)}},
        {"uses",
         {use("parameters", "a", 0x2000, 0x2000), use("parameters", "b", 0x1000, 0x1000),
          use("gradients", "a", 0, 0x1000), use("block", "", 0x1000, 0x2000)}},
        {"step_times_us", {2000, 2700}}}}};
}

}  // namespace fsccl::trace
