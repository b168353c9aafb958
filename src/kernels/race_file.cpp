#include "kernels/race_file.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/json_file.h"
#include "base/processor.h"
#include "base/version.h"
#include "base/whole_file.h"

namespace fsccl {
namespace {

constexpr size_t kMostFileBytes = 64u << 10;
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

Status unusable(const std::string& path, const char* why) {
  return fail(FSCCL_ERR_SYSTEM, "{} is not used: {}", path, why);
}

Status check_file(const Fd& file, const std::string& path) {
  struct stat facts{};
  if (::fstat(file.get(), &facts) != 0) return fail_errno(errno, path);
  if (!S_ISREG(facts.st_mode)) return unusable(path, "it is no regular file");
  if (facts.st_uid != ::geteuid() || (facts.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return unusable(path, "others than its user can write it");
  if (facts.st_size > static_cast<off_t>(kMostFileBytes)) return unusable(path, "it is too large");
  return success();
}

}  // namespace

RaceKey race_key() {
  const std::string info = processor_info();
  const uint32_t version = library_version();
  return {processor_model(info), processor_field(info, "microcode"),
          fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)};
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
  FSCCL_ASSIGN(const nlohmann::json json, parse_json_text(text, source));
  return Reader(source).read(json);
}

std::string race_file_path(const RaceKey& key) {
  const auto folder = [](const char* name, const char* below) {
    const char* const value = ::secure_getenv(name);
    return value != nullptr && *value == '/' ? std::string(value) + below : std::string();
  };
  std::string path = folder("XDG_CACHE_HOME", "/fsccl");
  if (path.empty()) path = folder("HOME", "/.cache/fsccl");
  if (path.empty()) return "";
  // A home may be that of machines of several kinds.
  return fmt::format("{}/kernels-{:016x}.json", path,
                     hash_of(key.processor + '\n' + key.microcode + '\n' + key.library));
}

Result<RaceRecord> load_races(const std::string& path, const RaceKey& key) {
  // Not blocking, so that a FIFO is refused instead of waited for.
  const Fd file = make_fd([&] {
    return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW);
  });
  if (!file.valid()) return fail_errno(errno, path);
  FSCCL_TRY(check_file(file, path));
  std::string text(kMostFileBytes, '\0');
  size_t bytes = 0;
  for (ssize_t got = 0; bytes < text.size(); bytes += static_cast<size_t>(got)) {
    do got = ::read(file.get(), text.data() + bytes, text.size() - bytes);
    while (got < 0 && errno == EINTR);
    if (got < 0) return fail_errno(errno, path);
    if (got == 0) break;
  }
  text.resize(bytes);
  FSCCL_ASSIGN(RaceRecord record, parse_races(text, path));
  if (record.key != key) return unusable(path, "it is of another machine or library");
  return record;
}

Status save_races(const std::string& path, const RaceRecord& record) {
  const std::string folder = path.substr(0, path.rfind('/'));
  (void)::mkdir(folder.substr(0, folder.rfind('/')).c_str(), 0700);  // ~/.cache may not be there
  (void)::mkdir(folder.c_str(), 0700);
  FSCCL_ASSIGN(WholeFile file, WholeFile::create(path));
  file.append(to_json(record));
  return file.commit();
}

}  // namespace fsccl
