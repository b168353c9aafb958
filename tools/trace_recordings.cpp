#include "trace_recordings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "fsccl/fsccl.h"
#include "fsccl/insight.h"
#include "kept_text.h"

namespace fsccl::trace {
namespace {

using Json = nlohmann::json;

// The library has checked the file, so its JSON has the form that it promises.
Recording parse(const std::string& text, const std::string& file) {
  const Json json = Json::parse(text);
  Recording made;
  made.file = file;
  made.job = json["job"];
  made.host = json["host"];
  made.rank = json["rank"];
  made.ranks = json["ranks"];
  made.pid = json["pid"];
  made.last_look_ns = json["last_look_ns"];
  made.overwritten = json["overwritten"];
  for (const Json& one : json["communicators"]) {
    RecordedCommunicator& to = made.communicators[one["id"]];
    to.tag = one["tag"];
    to.name = one["name"];
    to.rank = one["rank"];
    to.size = one["size"];
    to.lives = one["lives"];
    to.since_ns = one["since_ns"];
    if (one.contains("error"))
      to.error_code = one["error"]["code"], to.error = one["error"]["text"];
  }
  for (const Json& one : json["events"]) {
    Event& to = made.events.emplace_back();
    to.at_ns = one["at_ns"];
    to.kind = one["event"];
    to.communicator = one["communicator"];
    to.peer = one["peer"];
    to.sequence = one.value("sequence", uint64_t{0});
    to.operation = one.value("operation", "");
    to.count = one.value("count", uint64_t{0});
    to.dtype = one.value("dtype", "");
    to.silent_ms = one.value("silent_ms", int64_t{0});
    to.stopped = one.value("stopped", false);
    to.duty = one.value("duty", "");
    to.freed_by = one.value("freed_by", uint64_t{0});
  }
  return made;
}

}  // namespace

std::vector<Recording> read_recordings(const std::string& folder, int* other_jobs,
                                       std::vector<std::string>* unreadable, std::string* error) {
  std::error_code code;
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code))
    if (entry.path().extension() == ".ring") files.push_back(entry.path().string());
  if (code) {
    *error = fmt::format("{}: {}", folder, code.message());
    return {};
  }
  std::sort(files.begin(), files.end());
  std::map<std::string, std::vector<Recording>> jobs;
  for (const std::string& file : files) {
    std::string json;
    if (!std::filesystem::is_regular_file(file, code)) {
      unreadable->push_back(file + " is not a regular file");
      continue;
    }
    if (fsccl_trace_read(file.c_str(), keep_text, &json) != FSCCL_OK) {
      fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
      fsccl_last_error(&info);
      unreadable->push_back(info.text);
      continue;
    }
    Recording one = parse(json, file);
    const std::string job = one.job;
    jobs[job].push_back(std::move(one));
  }
  if (jobs.empty() && !unreadable->empty()) {
    *error = fmt::format("none of the files {}/*.ring is a whole recording", folder);
    return {};
  }
  if (jobs.empty()) {
    *error = fmt::format("{} holds no recordings (*.ring): run the job with FSCCL_TRACE_DIR={}",
                         folder, folder);
    return {};
  }
  const auto last = [](const std::vector<Recording>& job) {
    int64_t at = 0;
    for (const Recording& one : job)
      at = std::max({at, one.last_look_ns, one.events.empty() ? 0 : one.events.back().at_ns});
    return at;
  };
  const auto newest = std::max_element(
      jobs.begin(), jobs.end(), [&](auto& a, auto& b) { return last(a.second) < last(b.second); });
  *other_jobs = static_cast<int>(jobs.size()) - 1;
  std::vector<Recording> found = std::move(newest->second);
  std::sort(found.begin(), found.end(),
            [](const Recording& a, const Recording& b) { return a.rank < b.rank; });
  return found;
}

std::string describe(const Event& event) {
  if (!event.duty.empty()) return fmt::format("a wait for a rank that has to {}", event.duty);
  if (event.operation.empty()) return fmt::format("operation {}", event.sequence);
  if (event.operation == "barrier") return fmt::format("barrier (operation {})", event.sequence);
  return fmt::format("{} of {} {} (operation {})", event.operation, event.count, event.dtype,
                     event.sequence);
}

}  // namespace fsccl::trace
