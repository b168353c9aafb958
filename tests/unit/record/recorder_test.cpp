// Tests the flight recorder's ring, and the reader of its file, which reads only whole records,
// whatever the file contains.
#include "record/recorder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "plan/plan.h"

namespace {
int64_t clock_step_s = 0;  // by which the clock of the day was set forward
}

// Takes the place of the C library's function in this program, because a test cannot set the clock.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += clock_step_s;
  return result;
}

namespace fsccl {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using recording::Event;

class Folder {
 public:
  Folder() {
    std::string name = ::testing::TempDir() + "recorderXXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string ring(int rank = 0) const {
    return path_ + "/fsccl-000000000000002a-" + std::to_string(rank) + ".ring";
  }

 private:
  std::string path_;
};

std::unique_ptr<Recorder> make(const std::string& folder, uint32_t records = 64, int rank = 0) {
  Result<std::unique_ptr<Recorder>> made = Recorder::create({folder, records, 42, rank, 4});
  EXPECT_TRUE(made.ok()) << made.status().text();
  return made.take();
}

Fingerprint call(uint64_t sequence) {
  Fingerprint what;
  what.op = OpCode::all_gather;
  what.count = sequence * 10;
  what.dtype = FSCCL_FLOAT32;
  what.sequence = sequence;
  return what;
}

Json read(const std::string& path) {
  const Result<std::string> text = recording::read(path);
  EXPECT_TRUE(text.ok()) << text.status().text();
  return text.ok() ? Json::parse(text.value()) : Json();
}

TEST(Recorder, TellsWhatCarriesOutANativeStep) {
  const Folder folder;
  const auto recorder = make(folder.path());
  Fingerprint what = call(0);
  what.kind = static_cast<uint8_t>(NativeAlgorithm::summed);
  recorder->record(Event::native, 0, what, -1);
  what.kind = 200;  // stands for a kind of a later release
  recorder->record(Event::native, 0, what, -1);
  const Json events = read(folder.ring())["events"];
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["event"], "native");
  EXPECT_EQ(events[0]["by"], "summed");
  EXPECT_EQ(events[0]["operation"], "all_gather");
  EXPECT_FALSE(events[1].contains("by"));
}

TEST(Recorder, TellsOfSilence) {
  const Folder folder;
  const auto recorder = make(folder.path());
  recorder->silence(Event::suspect, 3, 412, true);
  recorder->silence(Event::alive, 3, 5000, false);
  const Json events = read(folder.ring())["events"];
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["event"], "suspect");
  EXPECT_EQ(events[0]["peer"], 3);
  EXPECT_EQ(events[0]["silent_ms"], 412);
  EXPECT_EQ(events[0]["stopped"], true);
  EXPECT_FALSE(events[0].contains("operation"));
  EXPECT_EQ(events[1]["event"], "alive");
}

Fingerprint rooted(uint64_t sequence, int root) {
  Fingerprint what = call(sequence);
  what.root = root;
  return what;
}

TEST(Recorder, WhatIsDoneAtOnceIsToldAsTwoEvents) {
  const Folder folder;
  const auto recorder = make(folder.path());
  const uint16_t world = recorder->add(7, "world", 1, 4), other = recorder->add(8, "other", 1, 4);
  recorder->at_once(world, rooted(1, 3));
  recorder->at_once(world, rooted(2, 3));  // this call had to go on in the ring
  recorder->at_once(other, rooted(2, 0));
  recorder->record(Event::submitted, world, call(2), 3);
  recorder->at_once(other, rooted(3, 0));
  const Json events = read(folder.ring())["events"];
  const auto is = [&](size_t i, const char* kind, uint16_t communicator, int sequence, int peer) {
    return events[i]["event"] == kind && events[i]["communicator"] == communicator &&
           events[i]["sequence"] == sequence && events[i]["peer"] == peer &&
           events[i]["operation"] == "all_gather" && events[i]["count"] == 10 * sequence;
  };
  ASSERT_EQ(events.size(), 7u) << events;
  EXPECT_TRUE(is(0, "submitted", world, 1, 3) && is(1, "completed", world, 1, -1)) << events;
  EXPECT_TRUE(is(2, "submitted", other, 2, 0) && is(3, "completed", other, 2, -1)) << events;
  EXPECT_TRUE(is(4, "submitted", world, 2, 3)) << events;
  EXPECT_TRUE(is(5, "submitted", other, 3, 0) && is(6, "completed", other, 3, -1)) << events;
}

TEST(Recorder, TheLastOperationsDoneAtOnceStay) {
  const Folder folder, copy;
  const auto recorder = make(folder.path());
  const uint16_t world = recorder->add(7, "world", 1, 4);
  constexpr uint64_t kLast = 1000 * recording::kAtOnce + 7;
  for (uint64_t i = 1; i <= kLast; i++) recorder->at_once(world, call(i));
  recorder->at_once(0, call(5));  // number 0 is of communicators without an entry of their own
  ASSERT_TRUE(Recorder::write_all(copy.path()).ok());
  for (const std::string& ring : {folder.ring(), copy.ring()}) {
    const Json json = read(ring), &events = json["events"];
    EXPECT_EQ(json["torn"], 0);
    ASSERT_EQ(events.size(), 2 * (recording::kAtOnce + 1));
    for (uint64_t i = 0; i < recording::kAtOnce; i++)
      EXPECT_EQ(events[2 * i]["sequence"], kLast - recording::kAtOnce + 1 + i);
    EXPECT_EQ(events.back()["communicator"], 0);
    EXPECT_EQ(events.back()["sequence"], 5);
  }
}

TEST(Recorder, WhoTakesAPlaceInTheTableBeginsAnew) {
  const Folder folder;
  const auto recorder = make(folder.path());
  std::vector<uint16_t> ids;
  for (uint32_t i = 1; i < recording::kCommunicators; i++)
    ids.push_back(recorder->add(i, "c", 0, 1));
  recorder->at_once(ids[6], call(1));
  recorder->remove(ids[6]);
  EXPECT_EQ(read(folder.ring())["events"].size(), 2u);
  EXPECT_EQ(recorder->add(1000, "again", 0, 1), ids[6]);
  EXPECT_EQ(read(folder.ring())["events"].size(), 0u);
}

// The ring of all events outlives the entry, so it may hold events of the communicator that had the
// entry before.
TEST(Recorder, EventsOfACommunicatorWhoseEntryWasTakenAreLeftOut) {
  const Folder folder;
  const auto recorder = make(folder.path());
  std::vector<uint16_t> ids;
  for (uint32_t i = 1; i < recording::kCommunicators; i++)
    ids.push_back(recorder->add(i, "c", 0, 1));
  recorder->record(Event::submitted, ids[6], call(50), -1);
  recorder->record(Event::completed, ids[6], call(50), -1);
  recorder->remove(ids[6]);
  recorder->record(Event::submitted, ids[7], call(3), -1);
  ASSERT_EQ(recorder->add(1000, "again", 0, 1), ids[6]);
  recorder->record(Event::submitted, ids[6], call(1), -1);
  const Json json = read(folder.ring()), &events = json["events"];
  ASSERT_EQ(events.size(), 2u) << events;
  EXPECT_EQ(events[0]["communicator"], ids[7]);
  EXPECT_EQ(events[1]["sequence"], 1);
  const Json& again = json["communicators"][ids[6]];
  EXPECT_EQ(again["name"], "again");
  EXPECT_GE(again["since_ns"], events[0]["at_ns"]);
  EXPECT_LE(again["since_ns"], events[1]["at_ns"]);
}

// A job of so many pairs of ranks, or of so many layers with a communicator each, is usual.
TEST(Recorder, HundredsOfCommunicatorsHaveAnEntryEach) {
  const auto recorder = make("");
  for (uint32_t i = 1; i < 512; i++) ASSERT_NE(recorder->add(i, "c", 0, 1), 0);
}

// Somebody sets the clock while the job runs.
TEST(Recorder, DurationsDoNotDependOnTheTimeOfDay) {
  const Folder folder;
  const auto recorder = make(folder.path());
  recorder->record(Event::submitted, 0, call(1), -1);
  clock_step_s = 3600;
  recorder->silence(Event::suspect, 3, 412, true);
  clock_step_s = 0;
  const Json json = read(folder.ring());
  constexpr int64_t kMinuteNs = 60'000'000'000;
  const int64_t first_ns = json["events"][0]["at_ns"];
  EXPECT_LT(json["events"][1]["at_ns"].get<int64_t>() - first_ns, kMinuteNs);
  EXPECT_LT(json["last_look_ns"].get<int64_t>() - first_ns, kMinuteNs);
}

TEST(Recorder, HoldsWhatHappened) {
  const Folder folder;
  const auto recorder = make(folder.path());
  const uint16_t world = recorder->add(7, "world", 1, 4);
  recorder->record(Event::submitted, world, call(1), -1);
  recorder->record(Event::blocked, world, call(1), 3);
  recorder->record(Event::completed, world, call(1), -1);
  recorder->note(Event::lost, world, 2);
  Error error;
  error.code = FSCCL_ERR_PEER_DEAD;
  error.peer = 2;
  error.text = "rank 2 died\n\x01";
  recorder->failed(world, error, 2);
  const Json json = read(folder.ring());
  EXPECT_EQ(json["rank"], 0);
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["pid"], getpid());
  EXPECT_EQ(json["overwritten"], 0);
  EXPECT_EQ(json["torn"], 0);
  const Json& entry = json["communicators"][1];
  EXPECT_EQ(entry["name"], "world");
  EXPECT_EQ(entry["rank"], 1);
  EXPECT_EQ(entry["lives"], true);
  EXPECT_EQ(entry["error"]["code"], FSCCL_ERR_PEER_DEAD);
  EXPECT_EQ(entry["error"]["text"], "rank 2 died??");
  ASSERT_EQ(json["events"].size(), 5u);
  EXPECT_EQ(json["events"][0]["event"], "submitted");
  EXPECT_EQ(json["events"][0]["operation"], "all_gather");
  EXPECT_EQ(json["events"][0]["count"], 10);
  EXPECT_EQ(json["events"][0]["dtype"], "float32");
  EXPECT_EQ(json["events"][1]["peer"], 3);
  EXPECT_EQ(json["events"][3]["event"], "lost");
  EXPECT_EQ(json["events"][4]["event"], "failed");
  EXPECT_LE(json["events"][0]["at_ns"].get<int64_t>(), json["events"][4]["at_ns"].get<int64_t>());
  struct stat info;
  ASSERT_EQ(stat(folder.ring().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(Recorder, TheLastEventsStay) {
  const Folder folder;
  const auto recorder = make(folder.path());
  for (uint64_t i = 1; i <= 1000; ++i) recorder->record(Event::submitted, 0, call(i), -1);
  const Json json = read(folder.ring());
  EXPECT_EQ(json["overwritten"], 1000 - 64);
  ASSERT_EQ(json["events"].size(), 64u);
  for (uint64_t i = 0; i < 64; ++i) EXPECT_EQ(json["events"][i]["sequence"], 1000 - 64 + 1 + i);
}

TEST(Recorder, ThreadsRecordAtOnce) {
  const Folder folder;
  const auto recorder = make(folder.path(), 1 << 14);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (uint64_t i = 1; i <= 2000; ++i) recorder->record(Event::completed, 0, call(i), t);
    });
  for (std::thread& thread : threads) thread.join();
  const Json json = read(folder.ring());
  ASSERT_EQ(json["events"].size(), 8000u);
  std::vector<uint64_t> next(4, 1);
  for (const Json& event : json["events"]) EXPECT_EQ(event["sequence"], next.at(event["peer"])++);
}

// A thread that reads a dump or the file while others write sees only whole events, and those of
// each thread in their order.
TEST(Recorder, WhoeverLooksMeanwhileSeesWholeEvents) {
  const Folder folder, dumps;
  const auto recorder = make(folder.path());
  std::atomic<bool> enough = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (uint64_t i = 1; !enough; ++i)
        recorder->record(i % 2 ? Event::submitted : Event::completed, 0, call(3 * i + t), t);
    });
  size_t seen = 0;
  const auto look = [&](const std::string& path) {
    const Json json = read(path);
    const uint64_t kept = json["events"].size() + json["torn"].get<uint64_t>();
    EXPECT_LE(kept, 64u);
    std::map<int, uint64_t> last;
    for (const Json& event : json["events"]) {
      const auto sequence = event["sequence"].get<uint64_t>();
      const int thread = event["peer"];
      ASSERT_EQ(event["count"], 10 * sequence);
      ASSERT_EQ(sequence % 3, static_cast<uint64_t>(thread));
      ASSERT_EQ(event["event"], sequence / 3 % 2 ? "submitted" : "completed");
      ASSERT_LT(last[thread], sequence);
      last[thread] = sequence;
      ++seen;
    }
  };
  for (int i = 0; (i < 100 || seen < 500) && !HasFailure(); ++i) {
    look(folder.ring());
    EXPECT_TRUE(Recorder::write_all(dumps.path()).ok());
    look(dumps.ring());
    std::filesystem::remove(dumps.ring());
  }
  enough = true;
  for (std::thread& thread : threads) thread.join();
}

// A reader never sees an entry of the table of communicators that is half changed.
TEST(Recorder, WhoeverLooksMeanwhileSeesWholeCommunicators) {
  const Folder folder;
  const auto recorder = make(folder.path());
  std::atomic<bool> enough = false;
  std::thread thread([&] {
    for (uint64_t i = 0; !enough; ++i) {
      const uint16_t id = recorder->add(i, std::string(80, static_cast<char>('a' + i % 26)),
                                        static_cast<int>(i % 26), 26);
      recorder->remove(id);
    }
  });
  for (int i = 0; i < 50 && !HasFailure(); ++i) {
    const Json json = read(folder.ring());
    for (const Json& entry : json["communicators"]) {
      if (entry["id"] == 0) continue;
      EXPECT_EQ(entry["name"], std::string(80, static_cast<char>('a' + entry["rank"].get<int>())));
    }
  }
  enough = true;
  thread.join();
}

// A process is stopped or killed at any place. If a name or an error was half written, the entry
// has none.
TEST(Recorder, WhoIsStoppedInTheMiddleLeavesWholeCommunicators) {
  const Folder folder;
  const auto recorder = make(folder.path());  // the child writes to the same file
  const pid_t child = fork();
  if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (child == 0)
    for (uint64_t i = 0;; ++i) {
      const auto fill = static_cast<char>('a' + i % 26);
      const uint16_t id = recorder->add(i, std::string(80, fill), static_cast<int>(i % 26), 26);
      recorder->failed(id, Error{FSCCL_ERR_PEER_DEAD, std::string(300, fill)}, 1);
      recorder->remove(id);
    }
  ASSERT_GT(child, 0);
  int status = 0;
  for (int i = 0; i < 300 && !HasFailure(); ++i) {
    EXPECT_EQ(kill(child, SIGSTOP), 0);
    ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
    const Json json = read(folder.ring());
    for (const Json& entry : json["communicators"]) {
      if (entry["id"] == 0) continue;
      const auto fill = static_cast<char>('a' + entry["rank"].get<int>());
      EXPECT_EQ(entry["name"], std::string(80, fill));
      if (!entry.contains("error")) continue;
      EXPECT_EQ(entry["error"]["text"], std::string(300, fill));
    }
    EXPECT_EQ(kill(child, SIGCONT), 0);
  }
  kill(child, SIGKILL);
  EXPECT_EQ(waitpid(child, &status, 0), child);
}

// A record that a killed process had not finished does not count.
TEST(Recorder, TornRecordsAreLeftOut) {
  const Folder folder;
  {
    const auto recorder = make(folder.path());
    for (uint64_t i = 1; i <= 3; ++i) recorder->record(Event::submitted, 0, call(i), -1);
  }
  std::fstream file(folder.ring(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(recording::kRecordsAt + sizeof(recording::Record) +
                                         offsetof(recording::Record, stamp)));
  file.write("\0\0", 2);
  file.close();
  const Json json = read(folder.ring());
  EXPECT_EQ(json["torn"], 1);
  ASSERT_EQ(json["events"].size(), 2u);
  EXPECT_EQ(json["events"][1]["sequence"], 3);
}

TEST(Recorder, OutlivesAKilledProcess) {
  const Folder folder;
  const pid_t child = fork();
  if (child == 0) {
    Result<std::unique_ptr<Recorder>> made = Recorder::create({folder.path(), 64, 42, 0, 1});
    if (!made.ok()) _exit(1);
    made.value()->record(Event::submitted, 0, call(5), -1);
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  const Json json = read(folder.ring());
  ASSERT_EQ(json["events"].size(), 1u);
  EXPECT_EQ(json["events"][0]["sequence"], 5);
}

TEST(Recorder, TableOfCommunicatorsIsUsedAgain) {
  const Folder folder;
  const auto recorder = make(folder.path());
  std::vector<uint16_t> ids;
  for (uint32_t i = 1; i < recording::kCommunicators; ++i)
    ids.push_back(recorder->add(i, "c", 0, 1));
  EXPECT_THAT(ids, ::testing::Each(::testing::Ne(0)));
  EXPECT_EQ(recorder->add(1000, "no room", 0, 1), 0);
  recorder->remove(ids[5]);
  EXPECT_EQ(recorder->add(1001, "again", 0, 1), ids[5]);
}

TEST(Recorder, FromMemoryIntoAFolder) {
  const Folder folder;
  const auto recorder = make(""), other = make("", 64, 1);
  recorder->record(Event::submitted, 0, call(9), -1);
  ASSERT_TRUE(Recorder::write_all(folder.path()).ok());
  EXPECT_EQ(read(folder.ring(0))["events"][0]["sequence"], 9);
  EXPECT_EQ(read(folder.ring(1))["events"].size(), 0u);
  // Existing files are not overwritten.
  EXPECT_THAT(Recorder::write_all(folder.path()).text(), HasSubstr("cannot be made"));
  EXPECT_THAT(Recorder::write_all("/nowhere").text(), HasSubstr("/nowhere"));
}

TEST(Recorder, AFileThatCannotBeMadeIsNamed) {
  const Folder folder;
  const std::string target = folder.path() + "/target";
  ASSERT_EQ(symlink(target.c_str(), folder.ring().c_str()), 0);
  const Result<std::unique_ptr<Recorder>> made = Recorder::create({folder.path(), 64, 42, 0, 1});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), FSCCL_ERR_CONFIG);
  EXPECT_THAT(made.status().text(), HasSubstr("FSCCL_TRACE_DIR"));
  EXPECT_FALSE(std::filesystem::exists(target));
}

// Runs in a child process. Returns 0 if making and writing a recorder fail for lack of room.
int lacks_room(const std::string& folder, const std::string& dumps) {
  const auto in_memory = make("");
  const rlimit limit{1 << 12, 1 << 12};
  if (signal(SIGXFSZ, SIG_IGN) == SIG_ERR || setrlimit(RLIMIT_FSIZE, &limit)) return 1;
  if (Recorder::create({folder, 64, 42, 0, 1}).ok()) return 2;
  return Recorder::write_all(dumps).ok() ? 3 : 0;
}

// An empty file would be in the way of the next attempt, and fsccl-trace could not read it.
TEST(Recorder, AFileWithoutRoomDoesNotStay) {
  const Folder folder, dumps;
  EXPECT_EXIT(_exit(lacks_room(folder.path(), dumps.path())), ::testing::ExitedWithCode(0), "");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_TRUE(std::filesystem::is_empty(dumps.path()));
}

// The destructor of a global object of a program may destroy its communicators, or dump them.
struct UsedAtTheEnd {
  ~UsedAtTheEnd() {
    if (recorder && !Recorder::write_all(folder).ok()) _exit(1);
  }
  std::unique_ptr<Recorder> recorder;
  std::string folder;
} used_at_the_end;

TEST(Recorder, IsUsedWhileTheProcessExits) {
  const Folder folder;
  const auto run = [&] {
    used_at_the_end.folder = folder.path();
    used_at_the_end.recorder = make("");
    exit(0);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
  EXPECT_EQ(read(folder.ring())["rank"], 0);
}

TEST(Recording, FilesThatAreNoneAreRefused) {
  const Folder folder;
  const auto text_of = [&](const std::string& content) {
    const std::string path = folder.path() + "/x.ring";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    const Result<std::string> read = recording::read(path);
    return read.ok() ? "" : read.status().text();
  };
  EXPECT_THAT(text_of(""), HasSubstr("cut off"));
  EXPECT_THAT(text_of(std::string(recording::kRecordsAt, 'x')), HasSubstr("does not begin"));
  EXPECT_FALSE(recording::read(folder.path() + "/none").ok());
}

// A file of the recorder never has a rank outside of the job, or times whose differences overflow.
// The reader refuses such a file, or bounds its times.
TEST(Recording, TimesAndRanksAreWithinBounds) {
  const Folder folder;
  {
    const auto recorder = make(folder.path());
    const uint16_t id = recorder->add(3, "comm", 0, 4);
    for (uint64_t i = 1; i <= 2; ++i) recorder->record(Event::submitted, id, call(i), -1);
    recorder->silence(Event::suspect, 2, INT64_MAX, true);
  }
  std::ifstream file(folder.ring(), std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(file)), {});
  const std::string path = folder.path() + "/changed";
  const auto with = [&](const std::function<void(recording::Header*, recording::Record*)>& change) {
    std::string bad = good;
    change(reinterpret_cast<recording::Header*>(bad.data()),
           reinterpret_cast<recording::Record*>(&bad[recording::kRecordsAt]));
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bad;
    return recording::read(path);
  };
  const auto refused = [&](auto change) {
    return with([&](recording::Header* header, recording::Record*) { change(header); })
        .status()
        .text();
  };
  EXPECT_THAT(refused([](auto* header) { header->rank = 4; }), HasSubstr("its rank"));
  EXPECT_THAT(refused([](auto* header) { header->rank = -1; }), HasSubstr("its rank"));
  EXPECT_THAT(refused([](auto* header) { header->ranks = INT32_MAX; }),
              HasSubstr("its number of ranks"));
  EXPECT_THAT(refused([](auto* header) { header->begin_unix_ns = INT64_MAX; }),
              HasSubstr("its clock"));
  EXPECT_THAT(refused([](auto* header) { header->begin.steady_ns = INT64_MAX; }),
              HasSubstr("its clock"));
  EXPECT_THAT(refused([](auto* header) { header->last.steady_ns = INT64_MIN; }),
              HasSubstr("its clock"));
  const Result<std::string> read = with([](recording::Header* header, recording::Record* records) {
    header->begin_unix_ns = 1;
    records[1].ticks = ~uint64_t{0};
    records[2].ticks = 0;  // is long before the beginning
  });
  ASSERT_TRUE(read.ok()) << read.status().text();
  const Json events = Json::parse(read.value())["events"];
  EXPECT_EQ(events[0]["at_ns"], 0);
  EXPECT_LE(events[0]["silent_ms"], INT64_MAX / 1'000'000);
  EXPECT_LE(events[2]["at_ns"], int64_t{1} << 62);  // events are in the order of their times
}

// Bytes of a good file are changed at random. The reader reads the file or refuses it, and does not
// crash.
TEST(Recording, MutatedFiles) {
  const Folder folder;
  {
    const auto recorder = make(folder.path());
    const uint16_t id = recorder->add(3, "comm", 0, 4);
    for (uint64_t i = 1; i <= 100; ++i) recorder->record(Event::submitted, id, call(i), -1);
  }
  std::ifstream file(folder.ring(), std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(file)), {});
  std::mt19937 random(1);
  int refused = 0;
  const std::string path = folder.path() + "/mutated";
  for (int i = 0; i < 1000; ++i) {
    std::string bad = good;
    for (int changes = 1 + static_cast<int>(random() % 8); changes > 0; --changes) {
      // Most changes are where they matter: in the header, at the table's beginning, in the
      // records.
      const size_t begin = random() % 3 == 0   ? recording::kRecordsAt
                           : random() % 3 == 0 ? recording::kTableAt
                                               : 0;
      const size_t room = std::min<size_t>(begin == 0 ? 256 : 4096, bad.size() - begin);
      bad[begin + random() % room] = static_cast<char>(random());
    }
    if (random() % 10 == 0) bad.resize(random() % bad.size());
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(bad.data(), static_cast<std::streamsize>(bad.size()));
    const Result<std::string> read = recording::read(path);
    if (!read.ok()) {
      ++refused;
    } else if (i % 20 == 0) {
      EXPECT_FALSE(Json::parse(read.value(), nullptr, false).is_discarded());
    }
  }
  EXPECT_GT(refused, 50);
  EXPECT_LT(refused, 1000);
}

}  // namespace
}  // namespace fsccl
