// fsccl-trace shows what FSCCL wrote about a run: memory as a page, recordings as a verdict or as a
// timeline. It needs no job, because it only reads files.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "base/program.h"
#include "fsccl/fsccl.h"
#include "memory_page.h"
#include "memory_snapshot.h"
#include "own_input.h"
#include "timeline_page.h"
#include "trace_hang.h"
#include "trace_timeline.h"

namespace {

int failed(const std::string& why) {
  fmt::print(stderr, "fsccl-trace: {}\n", why);
  return 1;
}

// Writes to a file, or to the standard output if the path is "-".
int write_out(const std::string& text, const std::string& path) {
  if (path == "-") {
    fmt::print("{}", text);
    return 0;
  }
  if (const fsccl::Status written = fsccl::write_output(path, text); !written.ok())
    return failed(written.text());
  fmt::print("{}\n", path);
  return 0;
}

struct MemoryOptions {
  std::string snapshot, page, axis = "time";
  uint64_t steps = 2;
};

int write_memory_page(const MemoryOptions& options) {
  std::string error;
  const std::optional<fsccl::trace::MemorySnapshot> snapshot =
      fsccl::trace::read_memory_snapshot(options.snapshot, &error);
  if (!snapshot) return failed(error);
  const std::string path = options.page.empty() ? options.snapshot + ".html" : options.page;
  if (replaces(path, options.snapshot)) return 2;
  return write_out(memory_page(*snapshot, {options.steps, options.axis == "events"}), path);
}

struct RecordingOptions {
  std::string folder, page;
  bool json = false, perfetto = false;
  double last_ms = 0;
};

// Returns the recordings of the job that was active last. If there are none, prints why and returns
// an empty list.
std::vector<fsccl::trace::Recording> read_job(const RecordingOptions& options) {
  std::string error;
  int others = 0;
  std::vector<std::string> unreadable;
  std::vector<fsccl::trace::Recording> job =
      fsccl::trace::read_recordings(options.folder, &others, &unreadable, &error);
  for (const std::string& why : unreadable)
    fmt::print(stderr, "fsccl-trace: {}; {}remove this file\n", why,
               job.empty() ? "" : "the other recordings are used: ");
  if (job.empty()) failed(error);
  if (others)
    fmt::print(stderr,
               "fsccl-trace: {} holds {} other job(s), too; this is the one that was active last\n",
               options.folder, others);
  return job;
}

// Returns the numbers of the ranks without a recording, as in "1, 3 and 60 more".
std::string missing_ranks(const std::vector<fsccl::trace::Recording>& job) {
  constexpr size_t kMostNamed = 16;
  std::set<int> there;
  for (const fsccl::trace::Recording& one : job) there.insert(one.rank);
  std::vector<int> named;
  size_t missing = 0;
  for (int rank = 0; rank < job.front().ranks; rank++) {
    if (there.contains(rank)) continue;
    if (++missing <= kMostNamed) named.push_back(rank);
  }
  return fmt::format("{}{}", fmt::join(named, ", "),
                     missing > kMostNamed ? fmt::format(" and {} more", missing - kMostNamed) : "");
}

int tell_cause(const RecordingOptions& options) {
  const std::vector<fsccl::trace::Recording> job = read_job(options);
  if (job.empty()) return 1;
  const fsccl::trace::Verdict verdict = find_cause(job);
  if (options.json) {
    fmt::print("{}\n", as_json(verdict));
    return 0;
  }
  fmt::print("{}\n\n", verdict.text);
  for (const std::string& line : verdict.ranks) fmt::print("{}\n", line);
  if (static_cast<int>(job.size()) < job.front().ranks)
    fmt::print("\n{} of {} ranks have left a recording here; missing: {}.\n", job.size(),
               job.front().ranks, missing_ranks(job));
  return 0;
}

int write_timeline(const RecordingOptions& options) {
  const std::vector<fsccl::trace::Recording> job = read_job(options);
  if (job.empty()) return 1;
  std::string page = options.page;
  if (page.empty())
    page = options.folder + (options.perfetto ? "/timeline.json" : "/timeline.html");
  // No recording is replaced, of whatever job it is and whether it can be read or not.
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(options.folder, failed))
    if (entry.path().extension() == ".ring" && replaces(page, entry.path().string())) return 2;
  return write_out(options.perfetto ? as_perfetto(job) : timeline_page(job, options.last_ms), page);
}

int run(int argc, char** argv) {
  CLI::App app("Shows what FSCCL wrote about a run. A page is one file that loads nothing else.",
               "fsccl-trace");
  app.require_subcommand(1);
  app.set_version_flag("--version", fmt::format("fsccl-trace {}.{}.{}", FSCCL_VERSION / 10000,
                                                FSCCL_VERSION / 100 % 100, FSCCL_VERSION % 100));
  MemoryOptions memory;
  CLI::App* command = app.add_subcommand(
      "memory", "who has which byte of a pool, over time and against the bounds of its plan");
  command->add_option("snapshot", memory.snapshot, "what fsccl_pool_snapshot() wrote as JSON")
      ->required()
      ->type_name("SNAPSHOT");
  command
      ->add_option("-o,--output", memory.page,
                   "where the page goes; -: to the standard output; default: SNAPSHOT.html")
      ->type_name("PAGE");
  command
      ->add_option("--steps", memory.steps,
                   "show the last N steps of the history on the map; 0: all of it")
      ->capture_default_str()
      ->type_name("N");
  command
      ->add_option("--axis", memory.axis,
                   "the map's axis: time, or events in their order, which shows short steps better")
      ->check(CLI::IsMember({"time", "events"}))
      ->capture_default_str();
  command->footer(
      "A snapshot has a history if the job ran with FSCCL_POOL_HISTORY=N: the last N events. Each "
      "rank writes its own snapshot.\n"
      "PyTorch's viewer (pytorch.org/memory_viz) reads the same snapshot written to a path that "
      "ends in .pickle.");
  constexpr const char* kFolder =
      "where the ranks' recordings are: what FSCCL_TRACE_DIR named, or fsccl_trace_dump() was "
      "given";
  RecordingOptions recordings;
  CLI::App* hang = app.add_subcommand(
      "hang", "explains a hang or a crash: the rank at fault, the operation and the cause");
  hang->add_option("folder", recordings.folder, kFolder)->required()->type_name("DIR");
  hang->add_flag("--json", recordings.json,
                 "an object instead of text: cause, guilty, communicator, operation, text, ranks");
  hang->footer("Also while the job runs, and after ranks were killed.");
  CLI::App* timeline =
      app.add_subcommand("timeline", "what each rank did when, and who waited for whom");
  timeline->add_option("folder", recordings.folder, kFolder)->required()->type_name("DIR");
  timeline
      ->add_option("-o,--output", recordings.page,
                   "where it goes; -: to the standard output; default: DIR/timeline.html")
      ->type_name("PAGE");
  CLI::Option* const last =
      timeline->add_option("--last", recordings.last_ms, "the last so many milliseconds only")
          ->type_name("MS")
          ->check([](const std::string& text) -> std::string {
            double value = 0;
            const bool good =
                CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value > 0;
            return good ? "" : fmt::format("{} is no number above 0", text);
          });
  timeline
      ->add_flag("--perfetto", recordings.perfetto,
                 "JSON for ui.perfetto.dev instead of a page (default: DIR/timeline.json), of all "
                 "that was recorded")
      ->excludes(last);
  timeline->footer(
      "A recording has the last FSCCL_TRACE_EVENTS events of its rank. Ranks of several hosts are "
      "put together by their clocks.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (hang->parsed()) return tell_cause(recordings);
  if (timeline->parsed()) return write_timeline(recordings);
  return write_memory_page(memory);
}

}  // namespace

int main(int argc, char** argv) { return fsccl::run_program("fsccl-trace", argc, argv, run); }
