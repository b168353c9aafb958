#include "kernels/race_file.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/build.h"
#include "base/hash.h"
#include "base/json_file.h"
#include "base/kept_file.h"
#include "base/processor.h"

namespace fsccl {
namespace {

constexpr double kMostNs = 1e9;

class Reader : JsonReader {
 public:
  explicit Reader(const std::string& source) : JsonReader(source) {}

  Result<RaceRecord> read(const Json& json) {
    const std::string place = "the document";
    if (!object(json, place,
                {"fsccl_kernels", "processor", "microcode", "library", "by", "races"}) ||
        !version(json) || !text(json, "processor", place, true, &record_.key.processor) ||
        !text(json, "microcode", place, false, &record_.key.microcode) ||
        !text(json, "library", place, true, &record_.key.library) ||
        !text(json, "by", place, true, &record_.by) || !races(json))
      return problem();
    return std::move(record_);
  }

 private:
  bool version(const Json& json) {
    return (json.contains("fsccl_kernels") && json["fsccl_kernels"] == 1) ||
           wrong("\"fsccl_kernels\" must be 1");
  }

  bool races(const Json& json) {
    if (record_.by != "probes" && record_.by != "race")
      return wrong("\"by\" must be \"probes\" or \"race\"");
    if (!json.contains("races") || !json["races"].is_object())
      return wrong("\"races\" must be an object");
    for (const auto& [name, heats] : json["races"].items()) {
      const std::optional<Pass> pass = find_pass(name);
      if (!pass) return wrong("races has \"{}\", which is no pass", name);
      if (!race_of(*pass, heats)) return false;
    }
    return true;
  }

  bool race_of(Pass pass, const Json& json) {
    const std::string_view name = kPassNames[static_cast<size_t>(pass)];
    if (!json.is_object()) return wrong("races.{} must be an object", name);
    Race made{pass, {}, 0};
    const Chosen by_default = default_kernels()[static_cast<size_t>(pass)];
    for (const auto& [variant, times] : json.items()) {
      const std::optional<Chosen> chosen = find_variant(pass, variant);
      if (!chosen) return wrong("races.{} has \"{}\", which this processor lacks", name, variant);
      Heat heat{*chosen};
      if (!times.is_array() || times.size() != kRepeats ||
          !std::all_of(times.begin(), times.end(), [](const Json& one) {
            return one.is_number() && one.get<double>() > 0 && one.get<double>() <= kMostNs;
          }))
        return wrong("races.{}.{} must be {} times in ns", name, variant, kRepeats);
      std::transform(times.begin(), times.end(), heat.ns_per_kib.begin(),
                     [](const Json& one) { return one.get<double>(); });
      made.heats.insert(*chosen == by_default ? made.heats.begin() : made.heats.end(), heat);
    }
    if (made.heats.empty() || made.heats.front().chosen != by_default)
      return wrong("races.{} lacks \"{}\"", name, variant_name(by_default));
    made.winner = winner_of(made.heats);
    record_.races.push_back(std::move(made));
    return true;
  }

  RaceRecord record_;
};

}  // namespace

RaceKey race_key() {
  const std::string info = processor_info();
  return {processor_model(info), processor_field(info, "microcode"), library_build()};
}

KernelChoice choice_of(const std::vector<Race>& races) {
  KernelChoice choice = default_kernels();
  for (const Race& race : races)
    choice[static_cast<size_t>(race.pass)] = race.heats[race.winner].chosen;
  return choice;
}

std::string races_json(const std::vector<Race>& races) {
  std::string text = "{";
  for (const Race& race : races) {
    text += fmt::format(R"({}"{}":{{)", text.size() > 1 ? "," : "",
                        kPassNames[static_cast<size_t>(race.pass)]);
    for (const Heat& heat : race.heats)
      text += fmt::format(R"({}"{}":[{:.3f}])", &heat == race.heats.data() ? "" : ",",
                          variant_name(heat.chosen), fmt::join(heat.ns_per_kib, ","));
    text += "}";
  }
  return text + "}";
}

std::string to_json(const RaceRecord& record) {
  return fmt::format(R"({{"fsccl_kernels":1,"processor":"{}","microcode":"{}","library":"{}",)"
                     R"("by":"{}","races":{}}})"
                     "\n",
                     record.key.processor, record.key.microcode, record.key.library, record.by,
                     races_json(record.races));
}

Result<RaceRecord> parse_races(const std::string& text, const std::string& source) {
  FSCCL_ASSIGN(const JsonValue json, parse_json_text(text, source));
  return Reader(source).read(json);
}

std::string race_file_path(const RaceKey& key) {
  // The key is part of the name, because machines of several kinds may share a home directory.
  return kept_file_path(fmt::format(
      "kernels-{:016x}.json", hash_of(key.processor + '\n' + key.microcode + '\n' + key.library)));
}

Result<RaceRecord> load_races(const std::string& path, const RaceKey& key) {
  FSCCL_ASSIGN(const std::string text, read_kept_file(path));
  FSCCL_ASSIGN(RaceRecord record, parse_races(text, path));
  if (record.key != key)
    return fail(FSCCL_ERR_SYSTEM, "{} is not used: it is of another machine or library", path);
  return record;
}

Status save_races(const std::string& path, const RaceRecord& record) {
  return keep_file(path, to_json(record));
}

}  // namespace fsccl
