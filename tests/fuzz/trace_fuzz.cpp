// Fuzzes the files that fsccl-trace reads: recordings of the ranks of a job, from which it makes a
// verdict, a timeline and a page, and snapshots of the memory of a pool. Whatever a file contains,
// it is read, or refused with a reason. The first byte chooses the kind.
//
// Files of recordings are mostly empty. So an input has only their header, the first entries of the
// table of communicators, and the records, end to end. It is divided into as many files of equal
// size as its second byte says.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fuzz.h"
#include "record/recording.h"
#include "tools/memory_page.h"
#include "tools/memory_snapshot.h"
#include "tools/timeline_page.h"
#include "tools/trace_hang.h"
#include "tools/trace_timeline.h"

namespace {

using namespace fsccl;

constexpr uint32_t kRecords = 64;
constexpr size_t kEntries = 3, kMostFiles = 3;
// The bytes of an entry that an input has. The texts of the entry end there.
constexpr size_t kEntryBytes = offsetof(recording::Communicator, name) + 8;

class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "fsccl-fuzz-XXXXXX";
    FUZZ_REQUIRE(mkdtemp(name.data()));
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string file_of(std::string_view input) {
  std::string file(recording::file_bytes(kRecords), '\0');
  const auto place = [&](size_t at, size_t bytes) {
    bytes = std::min(bytes, input.size());
    input.copy(file.data() + at, bytes);
    input.remove_prefix(bytes);
  };
  place(0, sizeof(recording::Header));
  place(recording::kNextAt, sizeof(uint64_t));
  for (size_t i = 0; i < kEntries; i++)
    place(recording::kTableAt + i * sizeof(recording::Communicator), kEntryBytes);
  place(recording::kRecordsAt, kRecords * sizeof(recording::Record));
  return file;
}

void read_recordings(std::string_view input) {
  static const Folder folder;
  if (input.empty()) return;
  const size_t files = 1 + static_cast<uint8_t>(input[0]) % kMostFiles;
  input.remove_prefix(1);
  for (size_t i = 0; i < kMostFiles; i++) {
    const std::string path = folder.path() + "/" + std::to_string(i) + ".ring";
    std::filesystem::remove(path);
    const size_t part = input.size() / files;
    if (i < files) std::ofstream(path, std::ios::binary) << file_of(input.substr(i * part, part));
  }
  int others = 0;
  std::string error;
  std::vector<std::string> unreadable;
  const std::vector<trace::Recording> job =
      trace::read_recordings(folder.path(), &others, &unreadable, &error);
  FUZZ_REQUIRE(job.empty() != error.empty());
  if (job.empty()) return;
  const trace::Verdict verdict = find_cause(job);
  FUZZ_REQUIRE(!verdict.cause.empty() && !verdict.text.empty() &&
               verdict.ranks.size() <= job.size());
  FUZZ_REQUIRE(!nlohmann::json::parse(as_json(verdict), nullptr, false).is_discarded());
  FUZZ_REQUIRE(!nlohmann::json::parse(as_perfetto(job), nullptr, false).is_discarded());
  for (const double last_ms : {0., 1., 1e30}) FUZZ_REQUIRE(!timeline_page(job, last_ms).empty());
}

void read_snapshot(std::string_view text) {
  std::string error;
  const auto snapshot = trace::parse_memory_snapshot(text, "fuzzed", &error);
  FUZZ_REQUIRE(snapshot.has_value() == error.empty());
  if (!snapshot) return;
  for (const bool by_events : {false, true})
    FUZZ_REQUIRE(!memory_page(*snapshot, {1, by_events}).empty());
}

// A recording of a rank that is in the second of two operations, the first of which it has
// completed.
std::string recording_seed(int rank, int ranks) {
  recording::Header header;
  header.record_bytes = sizeof(recording::Record);
  header.records = kRecords;
  header.rank = rank;
  header.ranks = ranks;
  header.begin = {100, 1'000'000'000};
  header.last = {3'000'000'100, 2'000'000'000};
  header.begin_unix_ns = 1'700'000'000'000'000'000;
  recording::Communicator communicator;
  communicator.tag = 5;
  communicator.rank = rank;
  communicator.size = ranks;
  communicator.state = 1;
  std::memcpy(communicator.name, "world", 6);
  uint64_t next = 0;
  std::string records;
  const auto record = [&](recording::Event event, uint32_t sequence, int peer) {
    recording::Record one;
    one.ticks = 1000 * next;
    one.count = 16;
    one.sequence = sequence;
    one.peer = peer;
    one.event = event;
    one.op = sequence ? 1 : 0;
    one.stamp = recording::stamp_of(next++ / kRecords);
    records.append(reinterpret_cast<const char*>(&one), sizeof one);
  };
  record(recording::Event::submitted, 1, -1);
  record(recording::Event::blocked, 1, 1 - rank);
  record(recording::Event::completed, 1, -1);
  record(recording::Event::submitted, 2, -1);
  record(recording::Event::blocked, 2, 1 - rank);
  record(recording::Event::suspect, 0, 1 - rank);
  if (rank) record(recording::Event::alive, 0, 0);
  if (rank) record(recording::Event::lost, 0, 0);
  record(recording::Event::failed, 2, 1 - rank);
  std::string all(reinterpret_cast<const char*>(&header), sizeof header);
  all.append(reinterpret_cast<const char*>(&next), sizeof next);
  for (size_t i = 0; i < kEntries; i++)
    all.append(reinterpret_cast<const char*>(&communicator), kEntryBytes), communicator.tag++;
  all += records;
  all.resize(sizeof header + sizeof next + kEntries * kEntryBytes + 12 * sizeof(recording::Record),
             '\0');
  return all;
}

constexpr const char* kSnapshot =
    R"({"fsccl":{"version":1,"dry_run":false,"pool":"p","rank":0,"ranks":2,"shared_host":0,
"time_us":9,"limit_bytes":99,
"reserved_bytes":64,"live_peak_bytes":64,"plan_hits":1,"plan_misses":1,"growths":1,"steps":2,
"events_lost":0,
"parts":[{"name":"shared","address":4096,"bytes":64,"reserved_bytes":64,"planned_bytes":64,
"live_bound_bytes":32,
"clique_bound_bytes":32}],"uses":[{"kind":"parameters","unit":"u","stream":0,"live_bytes":32,
"peak_bytes":64,"allocations":2,
"frees":1,"allocated_bytes":96}],"step_times_us":[3,7]},
"segments":[{"blocks":[{"state":"active_allocated","address":4096,
"size":32,"frames":[{"name":"unit u, parameters"}]}]}],"device_traces":[[
{"action":"segment_map","addr":4096,"size":64,"time_us":1,"user_metadata":""},
{"action":"alloc","addr":4096,"size":32,"time_us":2,"user_metadata":"unit u, parameters"},
{"action":"free_completed","addr":4096,"size":32,"time_us":4,"user_metadata":"unit u, parameters"},
{"action":"alloc","addr":4096,"size":32,"time_us":5,"user_metadata":"unit u, parameters"}]]})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  if (data[0] % 2)
    read_snapshot(rest);
  else
    read_recordings(rest);
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  for (const int ranks : {1, 2, 3}) {
    std::string all(1, static_cast<char>(ranks - 1));
    for (int rank = 0; rank < ranks; rank++) all += recording_seed(rank, ranks);
    seeds.push_back(seed_of(0, all));
  }
  seeds.push_back(seed_of(1, kSnapshot));
  return seeds;
}
