#include "record/recording.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/fd.h"
#include "base/json_writer.h"
#include "base/threads.h"
#include "plan/fingerprint.h"
#include "plan/plan.h"
#include "wire/messages.h"

namespace fsccl::recording {
namespace {

constexpr double kMostNs = 1e18;  // thirty years
// The latest time since 1970 that is believed. Differences of such times do not overflow.
constexpr int64_t kLatestNs = int64_t{1} << 62;
constexpr uint64_t kMostSilentMs = 1'000'000'000'000;  // thirty years
constexpr const char* kEventNames[] = {"none",  "submitted", "completed", "blocked", "failed",
                                       "lost",  "left",      "suspect",   "alive",   "at_once",
                                       "waits", "goes_on",   "native"};

// Returns the printable text of a field. Anybody may have written the file, so the text may lack
// its end, or have any bytes.
template <size_t N>
std::string text_of(const char (&field)[N]) {
  std::string text(field, strnlen(field, N));
  std::replace_if(text.begin(), text.end(), [](unsigned char c) { return c < 32 || c > 126; }, '?');
  return text;
}

template <class T>
T at(const std::vector<std::byte>& bytes, size_t offset) {
  T value;
  std::memcpy(static_cast<void*>(&value), bytes.data() + offset, sizeof value);
  return value;
}

// A file that another process may be writing. Each word that is read is whole, but several words
// need not be of one moment.
class File {
 public:
  static Result<File> open(const std::string& path) {
    File file;
    file.path_ = path;
    file.fd_ = make_fd([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
    if (!file.fd_.valid()) return fail_errno(errno, path + ": cannot be opened");
    return file;
  }
  Status read(size_t offset, void* to, size_t bytes) const {
    for (size_t done = 0; done < bytes;) {
      const ssize_t got = pread(fd_.get(), static_cast<std::byte*>(to) + done, bytes - done,
                                static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return fail_errno(errno, path_ + ": cannot be read");
      if (got == 0)
        return fail(FSCCL_ERR_INVALID_ARGUMENT,
                    "{} is not a recording of this version of FSCCL: it is cut off", path_);
      done += static_cast<size_t>(got);
    }
    return success();
  }

 private:
  std::string path_;
  Fd fd_;
};

Status check(const Header& header, const std::string& path) {
  const auto wrong = [&](const char* what) {
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is not a recording of this version of FSCCL: {}",
                path, what);
  };
  if (header.magic != kMagic) return wrong("it does not begin as one");
  if (header.record_bytes != sizeof(Record) || header.communicators != kCommunicators)
    return wrong("its records have another form");
  if (header.records == 0 || header.records > kMostRecords ||
      (header.records & (header.records - 1)) != 0)
    return wrong("its number of records");
  if (header.ranks > kMaxRanks) return wrong("its number of ranks");
  if (header.rank < 0 || header.rank >= header.ranks) return wrong("its rank");
  if (header.last.ticks < header.begin.ticks) return wrong("its clock runs backwards");
  for (const int64_t ns : {header.begin_unix_ns, header.begin.steady_ns, header.last.steady_ns})
    if (ns < 0 || ns > kLatestNs) return wrong("its clock");
  return success();
}

// Returns the header and the table as they were at one moment: no change was being made when the
// reads began, and none had begun when they ended. There may be no such moment. If the writer was
// killed or stopped in the middle of a change, the entry itself says that it is being written. If
// the writer makes changes all the time, the entries that were seen to change are returned empty.
Result<std::vector<std::byte>> read_begin(const File& file) {
  std::vector<std::byte> begin(kAtOnceAt), before;
  std::array<bool, kCommunicators> changed{};
  for (int tries = 0; tries < 1000; tries++) {
    Header after;
    FSCCL_TRY(file.read(0, begin.data(), begin.size()));
    FSCCL_TRY(file.read(0, &after, sizeof after));
    const auto changes = at<Header>(begin, 0).changes;
    if (changes % 2 == 0 && changes == after.changes) return begin;
    for (size_t i = 0; i < kCommunicators && tries > 0; i++) {
      const size_t entry = kTableAt + i * sizeof(Communicator);
      changed[i] |=
          std::memcmp(begin.data() + entry, before.data() + entry, sizeof(Communicator)) != 0;
    }
    before = begin;
    yield_core();
  }
  for (size_t i = 0; i < kCommunicators; i++)
    if (changed[i])
      std::memset(begin.data() + kTableAt + i * sizeof(Communicator), 0, sizeof(Communicator));
  return begin;
}

// Reads up to 64 consecutive places. A record that is not whole is returned empty.
Status read_places(const File& file, size_t offset, size_t count, std::array<Record, 64>* found) {
  std::array<Record, 64> before, after;
  for (auto* part : {&before, found, &after})
    FSCCL_TRY(file.read(offset, part->data(), count * sizeof(Record)));
  for (size_t i = 0; i < count; i++) {
    Record& now = (*found)[i];
    if (before[i].stamp != now.stamp || after[i].stamp != now.stamp ||
        now.communicator >= kCommunicators)
      now = {};
  }
  return success();
}

// Reads the records from number `first` to `next`, the oldest first, because the oldest are
// overwritten. Counts the records that are not whole.
Result<std::vector<Record>> read_records(const File& file, uint32_t records, uint64_t first,
                                         uint64_t next, uint64_t* torn) {
  std::vector<Record> found;
  std::array<Record, 64> part;
  while (first < next) {
    const uint64_t place = first % records;
    const size_t count = std::min({uint64_t{64}, next - first, records - place});
    FSCCL_TRY(read_places(file, kRecordsAt + place * sizeof(Record), count, &part));
    for (size_t i = 0; i < count; i++, first++)
      if (part[i].stamp == stamp_of(first / records))
        found.push_back(part[i]);
      else
        ++*torn;
  }
  return found;
}

Status read_at_once(const File& file, std::vector<Record>* found) {
  static_assert(kAtOnce == 64);
  std::array<Record, 64> part;
  for (uint32_t communicator = 0; communicator < kCommunicators; communicator++) {
    FSCCL_TRY(
        read_places(file, kAtOnceAt + communicator * kAtOnce * sizeof(Record), kAtOnce, &part));
    for (const Record& record : part)
      if (record.event == Event::at_once && record.communicator == communicator)
        found->push_back(record);
  }
  return success();
}

Communicator entry_of(const std::vector<std::byte>& begin, uint32_t communicator) {
  return at<Communicator>(begin, kTableAt + communicator * sizeof(Communicator));
}

// Drops the events of communicators whose entries others have taken since.
void drop_of_earlier(const std::vector<std::byte>& begin, std::vector<Record>* records) {
  std::array<uint64_t, kCommunicators> since{};
  for (uint32_t i = 0; i < kCommunicators; i++) since[i] = entry_of(begin, i).since_ticks;
  std::erase_if(*records,
                [&](const Record& record) { return record.ticks < since[record.communicator]; });
}

// Converts the recorder's counter to nanoseconds since 1970. The rate is that of CLOCK_MONOTONIC
// between the two moments of the header. A recorder that has looked at the clock only once has
// equal moments; a tick then counts as one nanosecond.
class Times {
 public:
  explicit Times(const Header& header) : header_(header) {
    const auto ticks = static_cast<double>(header.last.ticks - header.begin.ticks);
    const auto ns = static_cast<double>(header.last.steady_ns - header.begin.steady_ns);
    if (ticks > 0 && ns > 0) ns_per_tick_ = ns / ticks;
  }
  int64_t unix_ns(uint64_t ticks) const {
    const double ns =
        (static_cast<double>(ticks) - static_cast<double>(header_.begin.ticks)) * ns_per_tick_;
    const auto since_ns = static_cast<int64_t>(std::clamp(ns, -kMostNs, kMostNs));
    return std::clamp(header_.begin_unix_ns + since_ns, int64_t{0}, kLatestNs);
  }

 private:
  const Header& header_;
  double ns_per_tick_ = 1;
};

// The keys of every object are written in alphabetical order.
void write_communicators(const Header& header, const std::vector<std::byte>& begin,
                         JsonWriter& out) {
  out.begin_list();
  for (uint32_t i = 0; i < kCommunicators; i++) {
    const Communicator entry = entry_of(begin, i);
    if (entry.state == 0) continue;
    out.begin_map();
    if (entry.code)
      out.entry("error", [&] {
        out.map({{"code", entry.code}, {"peer", entry.peer}, {"text", text_of(entry.text)}});
      });
    out.entries(
        {{"id", i},
         {"lives", entry.state == 1},
         {"name", text_of(entry.name)},
         {"rank", entry.rank},
         {"since_ns", Times(header).unix_ns(std::max(entry.since_ticks, header.begin.ticks))},
         {"size", entry.size},
         {"tag", fmt::format("{:016x}", entry.tag)}});
    out.end_map();
  }
  out.end_list();
}

void write_event(const Record& record, int64_t at_ns, JsonWriter& out) {
  const auto duty = static_cast<Duty>(record.kind);
  const bool for_slot = record.event == Event::blocked && duty == Duty::release_slot;
  const bool of_silence = record.event == Event::suspect || record.event == Event::alive;
  out.begin_map();
  out.entry("at_ns", at_ns);
  if (record.event == Event::native && record.kind < kNativeNames.size())
    out.entry("by", kNativeNames[record.kind]);
  out.entry("communicator", record.communicator);
  if (record.op) {
    if (!for_slot) out.entry("count", record.count);
    out.entry("dtype", dtype_name(static_cast<fsccl_dtype_t>(record.dtype)));
  }
  if (record.event == Event::waits || for_slot) out.entry("duty", duty_name(duty));
  out.entry("event", event_name(record.event));
  if (for_slot && record.count) out.entry("freed_by", record.count);
  if (record.op) out.entry("operation", op_name(static_cast<OpCode>(record.op)));
  out.entry("peer", record.peer);
  if (record.sequence) out.entry("sequence", record.sequence);
  if (of_silence)
    out.entries(
        {{"silent_ms", std::min(record.count, kMostSilentMs)}, {"stopped", record.kind == 1}});
  out.end_map();
}

// Writes the events in the order of their times. An operation of the fast path becomes two events;
// if it left the fast path, its later events follow.
void write_events(const Header& header, std::vector<Record> records, JsonWriter& out) {
  const Times times(header);
  std::stable_sort(records.begin(), records.end(),
                   [](const Record& a, const Record& b) { return a.ticks < b.ticks; });
  std::vector<bool> done(records.size());
  std::array<uint32_t, kCommunicators> later{};  // sequence of the operation told of next
  for (size_t i = records.size(); i-- > 0;)
    if (records[i].sequence)
      done[i] =
          std::exchange(later[records[i].communicator], records[i].sequence) != records[i].sequence;
  out.begin_list();
  for (size_t i = 0; i < records.size(); i++) {
    Record& record = records[i];
    if (record.event == Event::at_once) {
      if (!done[i]) continue;
      record.event = Event::submitted;
      write_event(record, times.unix_ns(record.ticks), out);
      record.event = Event::completed;
      record.peer = -1;
    }
    write_event(record, times.unix_ns(record.ticks), out);
  }
  out.end_list();
}

}  // namespace

const char* duty_name(Duty duty) {
  return duty == Duty::release_slot      ? "release a slot"
         : duty == Duty::give_descriptor ? "give a descriptor"
                                         : "unknown";
}

const char* event_name(Event event) {
  const auto index = static_cast<size_t>(event);
  return index < std::size(kEventNames) ? kEventNames[index] : "unknown";
}

Result<std::string> read(const std::string& path) {
  FSCCL_ASSIGN(const File file, File::open(path));
  FSCCL_ASSIGN(const std::vector<std::byte> begin, read_begin(file));
  const auto header = at<Header>(begin, 0);
  FSCCL_TRY(check(header, path));
  Record last;
  FSCCL_TRY(file.read(file_bytes(header.records) - sizeof last, &last, sizeof last));
  const auto next = at<uint64_t>(begin, kNextAt);
  const uint64_t first = next > header.records ? next - header.records : 0;
  uint64_t torn = 0;
  FSCCL_ASSIGN(std::vector<Record> records, read_records(file, header.records, first, next, &torn));
  FSCCL_TRY(read_at_once(file, &records));
  drop_of_earlier(begin, &records);
  return write_json([&](JsonWriter& out) {
    out.map({{"communicators", [&] { write_communicators(header, begin, out); }},
             {"events", [&] { write_events(header, std::move(records), out); }},
             {"fsccl_recording", 1},
             {"host", text_of(header.host)},
             {"job", fmt::format("{:016x}", header.job)},
             {"last_look_ns", Times(header).unix_ns(header.last.ticks)},
             {"overwritten", first},
             {"pid", header.pid},
             {"rank", header.rank},
             {"ranks", header.ranks},
             {"torn", torn}});
  });
}

}  // namespace fsccl::recording
