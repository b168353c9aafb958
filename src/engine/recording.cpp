#include "engine/recording.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/dtype.h"
#include "base/json_file.h"
#include "engine/fingerprint.h"

namespace fsccl::recording {
namespace {

using Json = nlohmann::json;

constexpr double kMostNs = 1e18;                       // thirty years
constexpr int64_t kLatestNs = int64_t{1} << 62;        // since 1970; so the difference of any two moments is a number
constexpr uint64_t kMostSilentMs = 1'000'000'000'000;  // thirty years
constexpr const char* kEventNames[] = {"none", "submitted", "completed", "blocked", "failed", "lost", "left", "suspect", "alive"};

// Text from a file that anybody may have written: ends within its field, printable.
template <size_t N>
std::string text_of(const char (&field)[N]) {
  std::string text(field, strnlen(field, N));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 32 || c > 126; }, '?');
  return text;
}

template <class T>
T at(const std::string& file, size_t offset) {
  T value;
  std::memcpy(static_cast<void*>(&value), file.data() + offset, sizeof value);
  return value;
}

Status check(const Header& header, const std::string& file, const std::string& path) {
  const auto wrong = [&](const char* what) {
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is not a recording of this version of FSCCL: {}", path, what);
  };
  if (header.magic != kMagic) return wrong("it does not begin as one");
  if (header.record_bytes != sizeof(Record) || header.communicators != kCommunicators)
    return wrong("its records have another form");
  if (header.records == 0 || header.records > kMostRecords || (header.records & (header.records - 1)) != 0)
    return wrong("its number of records");
  if (file.size() < file_bytes(header.records)) return wrong("it is cut off");
  if (header.rank < 0 || header.rank >= header.ranks) return wrong("its rank");
  if (header.last.ticks < header.begin.ticks) return wrong("its clock runs backwards");
  for (const int64_t unix_ns : {header.begin.unix_ns, header.last.unix_ns})
    if (unix_ns < 0 || unix_ns > kLatestNs) return wrong("its clock");
  return success();
}

Json communicators_of(const std::string& file) {
  Json list = Json::array();
  for (uint32_t i = 0; i < kCommunicators; i++) {
    const auto entry = at<Communicator>(file, kTableAt + i * sizeof(Communicator));
    if (entry.state == 0) continue;
    Json one = {{"id", i},
                {"tag", fmt::format("{:016x}", entry.tag)},
                {"name", text_of(entry.name)},
                {"rank", entry.rank},
                {"size", entry.size},
                {"lives", entry.state == 1}};
    if (entry.code) one["error"] = {{"code", entry.code}, {"peer", entry.peer}, {"text", text_of(entry.text)}};
    list.push_back(std::move(one));
  }
  return list;
}

// Nanoseconds a tick, from the two moments; a recorder that was never asked again has only the first: then a tick counts as one.
double tick_ns(const Header& header) {
  const auto ticks = static_cast<double>(header.last.ticks - header.begin.ticks);
  const auto ns = static_cast<double>(header.last.unix_ns) - static_cast<double>(header.begin.unix_ns);
  return ticks > 0 && ns > 0 ? ns / ticks : 1;
}

Json event_of(const Header& header, const Record& record, double ns_per_tick) {
  const double ns = (static_cast<double>(record.ticks) - static_cast<double>(header.begin.ticks)) * ns_per_tick;
  const int64_t since_ns = static_cast<int64_t>(std::clamp(ns, -kMostNs, kMostNs));
  const int64_t at_ns = std::clamp(header.begin.unix_ns + since_ns, int64_t{0}, kLatestNs);
  Json event = {
      {"at_ns", at_ns}, {"event", event_name(record.event)}, {"communicator", record.communicator}, {"peer", record.peer}};
  if (record.sequence) event["sequence"] = record.sequence;
  if (record.op) {
    event["operation"] = op_name(static_cast<OpCode>(record.op));
    event["count"] = record.count;
    event["dtype"] = dtype_name(static_cast<fsccl_dtype_t>(record.dtype));
  }
  if (record.event == Event::suspect || record.event == Event::alive) {
    event["silent_ms"] = std::min(record.count, kMostSilentMs);
    event["stopped"] = record.kind == 1;
  }
  return event;
}

}  // namespace

const char* event_name(Event event) {
  const auto index = static_cast<size_t>(event);
  return index < std::size(kEventNames) ? kEventNames[index] : "unknown";
}

Result<std::string> read(const std::string& path) {
  FSCCL_ASSIGN(const std::string file, read_text_file(path, file_bytes(kMostRecords)));
  if (file.size() < kRecordsAt) return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is too short for a recording", path);
  const auto header = at<Header>(file, 0);
  FSCCL_TRY(check(header, file, path));
  const uint64_t first = header.next > header.records ? header.next - header.records : 0;
  const double ns_per_tick = tick_ns(header);
  Json events = Json::array();
  uint64_t torn = 0;
  for (uint64_t number = first; number < header.next; number++) {
    const auto record = at<Record>(file, kRecordsAt + number % header.records * sizeof(Record));
    const bool whole = record.stamp == stamp_of(number, header.records) && record.communicator < kCommunicators;
    if (!whole)
      torn++;
    else
      events.push_back(event_of(header, record, ns_per_tick));
  }
  return Json{{"fsccl_recording", 1},
              {"job", fmt::format("{:016x}", header.job)},
              {"rank", header.rank},
              {"ranks", header.ranks},
              {"pid", header.pid},
              {"host", text_of(header.host)},
              {"last_look_ns", header.last.unix_ns},
              {"overwritten", first},
              {"torn", torn},
              {"communicators", communicators_of(file)},
              {"events", std::move(events)}}
      .dump();
}

}  // namespace fsccl::recording
