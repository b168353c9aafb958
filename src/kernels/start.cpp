#include "kernels/start.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>

#include "base/clock.h"
#include "base/log.h"
#include "kernels/race_file.h"

namespace fsccl {
namespace {

constexpr const char* kByProbes = "probes";
constexpr size_t kCourseBytes = 4u << 20, kPieceBytes = 512u << 10, kSamples = 4;

// The passes whose winners differ most between processors, with the variants that have won on some
// of them. The pass that differs most comes first, in case the time does not suffice for all.
struct Probe {
  Pass pass;
  std::vector<const char*> against;
};
std::vector<Probe> probes() {
  return {{Pass::cast_past, {"nt*4", "nt*4+16K", "nt+1K"}},
          {Pass::reduce_norm_past, {"nt+1K", "nt+2K"}},
          {Pass::copy_past, {"nt*4", "nt*4+16K", "nt+1K"}}};
}

// Returns the probes that are missing in `races`.
std::vector<Probe> missing_in(const std::vector<Race>& races) {
  std::vector<Probe> missing = probes();
  std::erase_if(missing, [&](const Probe& probe) {
    return std::any_of(races.begin(), races.end(),
                       [&](const Race& race) { return race.pass == probe.pass; });
  });
  return missing;
}

// Adds races of `missing` to `races`, the first of them whole and the others in what is left of
// `probe_ms`. Returns whether it added any.
bool run_probes(const std::vector<Probe>& missing, int64_t probe_ms, std::vector<Race>* races) {
  const Deadline end = Deadline::in_ms(probe_ms);
  const size_t before = races->size();
  if (!Course::flushes()) return false;
  Course course(kCourseBytes, kPieceBytes);
  if (!course.valid()) return false;
  const auto sample = [&](Pass pass, Chosen chosen) { return course.sample(pass, chosen); };
  for (const Probe& probe : missing) {
    std::vector<Chosen> contenders{default_kernels()[static_cast<size_t>(probe.pass)]};
    for (const char* const name : probe.against)
      if (const auto chosen =
              find_variant(probe.pass, std::string(name) + '@' + instruction_sets().front()))
        contenders.push_back(*chosen);
    // A processor on which one pass takes longer than `probe_ms` would otherwise never keep any.
    const bool first = races->size() == before;
    auto run =
        race(probe.pass, contenders, kSamples, sample, [&] { return !first && end.passed(); });
    if (!run) break;
    races->push_back(std::move(*run));
  }
  return races->size() > before;
}

struct Running {
  std::mutex mutex;
  KernelStart start;
};
Running& running() {
  static Running* const one = new Running;  // never freed: usable until the process ends
  return *one;
}

void find_into(KernelStart* start, std::string_view words, int64_t probe_ms) {
  bool automatic = false;
  KernelChoice given = default_kernels();
  if (!parse_kernels(words, &given, &automatic).ok()) return;
  if (!automatic) {
    start->choice = given;
    if (words != "default") start->from = "setting";
    return;
  }
  const RaceKey key = race_key();
  start->file = race_file_path(key);
  std::vector<Probe> missing = probes();
  if (!start->file.empty()) {
    Result<RaceRecord> known = load_races(start->file, key);
    if (known.ok()) {
      start->races = std::move(known.value().races);
      start->choice = choice_of(start->races);
      start->from = "file";
      missing = known.value().by == kByProbes ? missing_in(start->races) : std::vector<Probe>();
    } else {
      FSCCL_LOG(kDebug, "{}", known.take_status().text());
    }
  }
  // If no file can be kept, an earlier race of this process serves, so that it measures only once.
  if (KernelStart before = running_kernels(); start->races.empty() && before.from == kByProbes) {
    *start = std::move(before);
    return;
  }
  if (missing.empty() || probe_ms == 0 || !run_probes(missing, probe_ms, &start->races)) return;
  start->choice = choice_of(start->races);
  start->from = kByProbes;
  if (start->file.empty()) return;
  if (const Status saved = save_races(start->file, {key, kByProbes, start->races}); !saved.ok())
    FSCCL_LOG(kInfo, "what was measured of kernels is not kept: {}", saved.text());
}

}  // namespace

Status parse_kernels(std::string_view words, KernelChoice* choice, bool* automatic) {
  *automatic = words == "auto";
  *choice = default_kernels();
  if (*automatic || words == "default") return success();
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(','));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    const size_t equals = word.find('=');
    const std::optional<Pass> pass = find_pass(word.substr(0, equals));
    if (!pass || equals == word.npos)
      return fail(FSCCL_ERR_CONFIG,
                  "FSCCL_KERNELS: \"{}\" is not auto, default, or pass=variant with one of the "
                  "passes {}",
                  word, fmt::join(kPassNames, ", "));
    const std::optional<Chosen> chosen = find_variant(*pass, word.substr(equals + 1));
    if (!chosen) {
      std::vector<std::string> names;
      for (const Chosen known : usable_variants(*pass)) names.push_back(variant_name(known));
      return fail(FSCCL_ERR_CONFIG, "FSCCL_KERNELS: \"{}\" is not one of {}, which run here", word,
                  fmt::join(names, ", "));
    }
    (*choice)[static_cast<size_t>(*pass)] = *chosen;
  }
  return success();
}

KernelStart find_kernels(std::string_view words, int64_t probe_ms) noexcept {
  try {
    KernelStart start;
    find_into(&start, words, probe_ms);
    return start;
  } catch (const std::exception&) {  // there was no memory for the race
    return {};
  }
}

void run_kernels(KernelStart start) {
  use_kernels(start.choice);
  FSCCL_LOG(kDebug, "kernels from the {}: {}", start.from, kernels_json(start, true));
  const std::lock_guard lock(running().mutex);
  running().start = std::move(start);
}

KernelStart running_kernels() {
  const std::lock_guard lock(running().mutex);
  return running().start;
}

std::string kernels_json(const KernelStart& start, bool races) {
  std::string passes;
  for (size_t pass = 0; pass < kPasses; pass++)
    passes += fmt::format(R"({}"{}":"{}")", pass ? "," : "", kPassNames[pass],
                          variant_name(start.choice[pass]));
  return fmt::format(R"({{"from":"{}","passes":{{{}}}{}}})", start.from, passes,
                     races ? R"(,"races":)" + races_json(start.races) : "");
}

}  // namespace fsccl
