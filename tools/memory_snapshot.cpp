#include "memory_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/json_file.h"
#include "checked_json.h"

namespace fsccl::trace {
namespace {

using Json = nlohmann::json;

// Sums of as many values as a file holds stay within 64 bits.
constexpr uint64_t kMostBytes = uint64_t{1} << 44, kMostNumber = uint64_t{1} << 62;
constexpr uint64_t kLatest = uint64_t{1} << 53;  // in microseconds

// Reads a snapshot from JSON. A function that finds an error sets the text of the error and returns
// false.
class Reader {
 public:
  Reader(const std::string& source, std::string* error) : source_(source), error_(error) {}

  bool read(const Json& json, MemorySnapshot* snapshot) {
    snapshot_ = snapshot;
    const Json* own = nullptr;
    const Json* segments = nullptr;
    const Json* traces = nullptr;
    if (!json.is_object()) return wrong("the document", "an object", json);
    if (!json.contains("fsccl"))
      return wrong("the document",
                   "a snapshot that fsccl_pool_snapshot() wrote as JSON, which has a key \"fsccl\"",
                   json);
    if (!child(json, "fsccl", "", &own) || !facts(*own)) return false;
    if (!list(json, "segments", "", &segments)) return false;
    for (size_t i = 0; i < segments->size(); i++)
      if (!segment((*segments)[i], fmt::format("segments[{}]", i))) return false;
    if (!list(json, "device_traces", "", &traces)) return false;
    for (size_t device = 0; device < traces->size(); device++) {
      const std::string place = fmt::format("device_traces[{}]", device);
      if (!(*traces)[device].is_array()) return wrong(place, "a list", (*traces)[device]);
      for (size_t i = 0; i < (*traces)[device].size(); i++)
        if (!event((*traces)[device][i], fmt::format("{}[{}]", place, i))) return false;
    }
    return true;
  }

  bool wrong(const std::string& place, const std::string& expected, const Json& found) {
    std::string text = found.is_object() || found.is_array()
                           ? std::string("another ") + found.type_name()
                           : found.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > 60) text = text.substr(0, 60) + "...";
    *error_ = fmt::format("{}: {} must be {}, not {}", source_, place, expected, text);
    return false;
  }

 private:
  bool child(const Json& json, const char* key, const std::string& place, const Json** value) {
    const std::string where = place.empty() ? key : fmt::format("{}.{}", place, key);
    if (!json.is_object()) return wrong(place, "an object", json);
    const auto found = json.find(key);
    if (found == json.end()) {
      *error_ = fmt::format("{}: {} is missing", source_, where);
      return false;
    }
    *value = &*found;
    return true;
  }
  bool list(const Json& json, const char* key, const std::string& place, const Json** value) {
    if (!child(json, key, place, value)) return false;
    return (*value)->is_array() ||
           wrong(place.empty() ? key : place + "." + key, "a list", **value);
  }
  bool number(const Json& json, const char* key, const std::string& place, uint64_t most,
              uint64_t* value) {
    const Json* found = nullptr;
    return child(json, key, place, &found) && number(*found, place + "." + key, most, value);
  }
  bool number(const Json& json, const std::string& place, uint64_t most, uint64_t* value) {
    if (!json.is_number_unsigned() || json.get<uint64_t>() > most)
      return wrong(place, fmt::format("a whole number from 0 to {}", most), json);
    *value = json.get<uint64_t>();
    return true;
  }
  bool text(const Json& json, const char* key, const std::string& place, std::string* value) {
    const Json* found = nullptr;
    if (!child(json, key, place, &found)) return false;
    if (!found->is_string()) return wrong(place + "." + key, "a text", *found);
    *value = found->get<std::string>();
    return true;
  }
  uint32_t owner(std::string name) {
    const auto [found, is_new] =
        owners_.try_emplace(name, static_cast<uint32_t>(snapshot_->owners.size()));
    if (is_new) snapshot_->owners.push_back(std::move(name));
    return found->second;
  }

  bool facts(const Json& json) {
    MemorySnapshot& s = *snapshot_;
    const Json* found = nullptr;
    const std::string place = "fsccl";
    uint64_t version = 0;
    if (!number(json, "version", place, kMostNumber, &version)) return false;
    if (version != 1)
      return wrong("fsccl.version", "1: take fsccl-trace of the version that wrote it",
                   json["version"]);
    if (!child(json, "dry_run", place, &found)) return false;
    if (!found->is_boolean()) return wrong("fsccl.dry_run", "true or false", *found);
    s.dry_run = found->get<bool>();
    if (!text(json, "pool", place, &s.pool) || !number(json, "rank", place, kMostNumber, &s.rank) ||
        !number(json, "ranks", place, kMostNumber, &s.ranks) ||
        !number(json, "shared_host", place, kMostNumber, &s.shared_host) ||
        !number(json, "time_us", place, kLatest, &s.time_us) ||
        !number(json, "limit_bytes", place, kMostNumber, &s.limit_bytes) ||
        !number(json, "reserved_bytes", place, kMostNumber, &s.reserved_bytes) ||
        !number(json, "live_peak_bytes", place, kMostNumber, &s.live_peak_bytes) ||
        !number(json, "plan_hits", place, kMostNumber, &s.plan_hits) ||
        !number(json, "plan_misses", place, kMostNumber, &s.plan_misses) ||
        !number(json, "growths", place, kMostNumber, &s.growths) ||
        !number(json, "steps", place, kMostNumber, &s.steps) ||
        !number(json, "events_lost", place, kMostNumber, &s.events_lost))
      return false;
    if (!list(json, "parts", place, &found)) return false;
    for (size_t i = 0; i < found->size(); i++)
      if (!part((*found)[i], fmt::format("fsccl.parts[{}]", i))) return false;
    if (!list(json, "uses", place, &found)) return false;
    for (size_t i = 0; i < found->size(); i++)
      if (!use((*found)[i], fmt::format("fsccl.uses[{}]", i))) return false;
    if (!list(json, "step_times_us", place, &found)) return false;
    for (size_t i = 0; i < found->size(); i++) {
      uint64_t time = 0;
      const std::string where = fmt::format("fsccl.step_times_us[{}]", i);
      if (!number((*found)[i], where, kLatest, &time)) return false;
      if (i && time < s.step_times_us.back())
        return wrong(where, "no earlier than the one before", (*found)[i]);
      s.step_times_us.push_back(time);
    }
    return true;
  }

  bool part(const Json& json, const std::string& place) {
    MemoryPart part;
    if (!text(json, "name", place, &part.name) ||
        !number(json, "address", place, kMostNumber, &part.address) ||
        !number(json, "bytes", place, kMostBytes, &part.bytes) ||
        !number(json, "reserved_bytes", place, kMostBytes, &part.reserved_bytes) ||
        !number(json, "planned_bytes", place, kMostBytes, &part.planned_bytes) ||
        !number(json, "live_bound_bytes", place, kMostBytes, &part.live_bound_bytes) ||
        !number(json, "clique_bound_bytes", place, kMostBytes, &part.clique_bound_bytes))
      return false;
    snapshot_->parts.push_back(std::move(part));
    return snapshot_->parts.size() <= 64 || wrong(place, "the last: a pool has few parts", json);
  }

  bool use(const Json& json, const std::string& place) {
    MemoryUse use;
    if (!text(json, "kind", place, &use.kind) || !text(json, "unit", place, &use.unit) ||
        !number(json, "stream", place, UINT64_MAX, &use.stream) ||
        !number(json, "live_bytes", place, kMostNumber, &use.live_bytes) ||
        !number(json, "peak_bytes", place, kMostNumber, &use.peak_bytes) ||
        !number(json, "allocations", place, kMostNumber, &use.allocations) ||
        !number(json, "frees", place, kMostNumber, &use.frees) ||
        !number(json, "allocated_bytes", place, UINT64_MAX, &use.allocated_bytes))
      return false;
    snapshot_->uses.push_back(std::move(use));
    return true;
  }

  bool segment(const Json& json, const std::string& place) {
    const Json* blocks = nullptr;
    if (!list(json, "blocks", place, &blocks)) return false;
    for (size_t i = 0; i < blocks->size(); i++) {
      const Json& block = (*blocks)[i];
      const std::string where = fmt::format("{}.blocks[{}]", place, i);
      LiveMemory live;
      std::string state;
      if (!text(block, "state", where, &state) ||
          !number(block, "address", where, kMostNumber, &live.address) ||
          !number(block, "size", where, kMostBytes, &live.bytes))
        return false;
      if (state != "active_allocated") continue;
      const Json* frames = nullptr;
      std::string name;
      if (!list(block, "frames", where, &frames)) return false;
      if (!frames->empty() && !text((*frames)[0], "name", where + ".frames[0]", &name))
        return false;
      live.owner = owner(std::move(name));
      snapshot_->live.push_back(live);
    }
    return true;
  }

  bool event(const Json& json, const std::string& place) {
    static const std::map<std::string, MemoryEvent::Action, std::less<>> kActions = {
        {"alloc", MemoryEvent::Action::kTaken},
        {"free_completed", MemoryEvent::Action::kGivenBack},
        {"oom", MemoryEvent::Action::kRefused},
        {"segment_map", MemoryEvent::Action::kGrown},
        {"segment_unmap", MemoryEvent::Action::kReleased}};
    std::string action, name;
    MemoryEvent event;
    if (!text(json, "action", place, &action) ||
        !number(json, "addr", place, kMostNumber, &event.address) ||
        !number(json, "size", place, action == "oom" ? kMostNumber : kMostBytes, &event.bytes) ||
        !number(json, "time_us", place, kLatest, &event.time_us) ||
        !text(json, "user_metadata", place, &name))
      return false;
    const auto known = kActions.find(action);
    if (known == kActions.end())
      return action == "free_requested" ||  // free_completed follows it
             wrong(place + ".action", "an action of a pool, such as alloc", json["action"]);
    if (!snapshot_->events.empty() && event.time_us < snapshot_->events.back().time_us)
      return wrong(place + ".time_us", "no earlier than that of the event before", json["time_us"]);
    event.action = known->second;
    event.owner = owner(std::move(name));
    snapshot_->events.push_back(event);
    return true;
  }

  const std::string& source_;
  std::string* error_;
  MemorySnapshot* snapshot_ = nullptr;
  std::unordered_map<std::string, uint32_t> owners_;
};

}  // namespace

std::optional<MemorySnapshot> parse_memory_snapshot(std::string_view text,
                                                    const std::string& source, std::string* error) {
  if (text.starts_with('\x80')) {
    *error = fmt::format(
        "{}: this is a pickle, not JSON: give fsccl_pool_snapshot() a path that does not end in "
        ".pickle",
        source);
    return std::nullopt;
  }
  const Result<Json> json = parse_checked(std::string(text), source);
  if (!json.ok()) {
    *error = json.status().text();
    return std::nullopt;
  }
  std::optional<MemorySnapshot> snapshot(std::in_place);
  if (!Reader(source, error).read(json.value(), &*snapshot)) return std::nullopt;
  return snapshot;
}

std::optional<MemorySnapshot> read_memory_snapshot(const std::string& path, std::string* error) {
  const Result<std::string> text = read_text_file(path, kMostFileBytes);
  if (text.ok()) return parse_memory_snapshot(text.value(), path, error);
  *error = text.status().text();
  if (text.status().code() == FSCCL_ERR_INVALID_ARGUMENT)
    *error += "; take the snapshot with a smaller FSCCL_POOL_HISTORY";
  return std::nullopt;
}

}  // namespace fsccl::trace
