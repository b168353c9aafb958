// Tests which files the other ranks of a channel in shared memory accept from rank 0, and how they
// read, sleep and wake.
#include "transports/shm/shm.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/fd.h"
#include "base/futex.h"
#include "base/populate.h"
#include "transports/shm/segment.h"

namespace fsccl::shm {
namespace {

constexpr int kRanks = 2;
constexpr uint64_t kTag = 7;
constexpr uint64_t kSlot = 4 * kPage, kRing = FSCCL_TRANSPORT_SLOTS * kSlot + kPage;

Geometry geometry() {
  return {.magic = kMagic,
          .ranks = kRanks,
          .reserved = 0,
          .tag = kTag,
          .ring_bytes = kRing,
          .slot_bytes = kSlot};
}
uint64_t bytes_of(const Geometry& geometry) {
  return sizeof(Header) + kRanks * (sizeof(RankBlock) + geometry.ring_bytes);
}

struct Opened {
  fsccl_status_t code = FSCCL_OK;
  std::string error;
  size_t ring_bytes = 0, slot_bytes = 0;
};

class Offered final : public Opening {
 public:
  explicit Offered(int fd) : fd_(fd) {}
  Status publish_fd(int) override { return success(); }
  Result<Fd> fetch_fd(int) override { return Fd(fcntl(fd_, F_DUPFD_CLOEXEC, 0)); }
  bool cancelled() override { return false; }

 private:
  const int fd_;
};

Fd file_of(const Geometry& offered, uint64_t file_bytes, int seals = F_SEAL_SHRINK | F_SEAL_SEAL) {
  Fd file(memfd_create("offered", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(file_bytes)), 0);
  EXPECT_GE(pwrite(file.get(), &offered, std::min<uint64_t>(sizeof offered, file_bytes), 0), 0);
  EXPECT_TRUE(seals == 0 || fcntl(file.get(), F_ADD_SEALS, seals) == 0);
  return file;
}

// Returns how many faults this thread has had that needed no input or output.
int64_t minor_faults() {
  rusage used{};
  getrusage(RUSAGE_THREAD, &used);
  return used.ru_minflt;
}

// Opens, as rank 1, the file of a channel that another rank has made, in process `rank_zero`.
Result<OpenedChannel> open_file(const Fd& file, pid_t rank_zero = getpid()) {
  const int32_t pids[kRanks] = {rank_zero, getpid()};
  Offered offering(file.get());
  ChannelRequest request;
  request.rank = 1;
  request.ranks = kRanks;
  request.pids = pids;
  request.tag = kTag;
  request.deadline_ns = now_ns() + 20'000'000'000;
  request.known = request.single_copy = request.writes = true;
  request.opening = &offering;
  return shm_transport()->open(request);
}

// Opens a file with the given geometry, size and seals as rank 1, and calls `use` with the channel.
Opened open_offered(const Geometry& offered, uint64_t file_bytes,
                    int seals = F_SEAL_SHRINK | F_SEAL_SEAL,
                    const std::function<void(Channel&)>& use = nullptr) {
  Opened opened;
  const Result<OpenedChannel> result = open_file(file_of(offered, file_bytes, seals));
  opened.code = result.status().code();
  if (!result.ok()) opened.error = result.status().text();
  if (result.ok()) {
    Channel& channel = *result.value().channel;
    channel.slots(1, &opened.ring_bytes, &opened.slot_bytes);
    if (use) use(channel);
  }
  return opened;
}

// A thread that sleeps on the word of a channel, as the engine does that waits for rank 0.
class Sleeper {
 public:
  explicit Sleeper(Channel& channel) {
    channel.word(0, 1, &word_);
    thread_ = std::thread([this] {
      id_ = gettid();
      const int64_t begin_ns = now_ns();
      futex_wait(word_.word, word_.value, kLongNs);
      woken_ = now_ns() - begin_ns < kLongNs;
    });
    while (!sleeps()) std::this_thread::yield();
  }
  // Returns true if it is woken before its time is over.
  bool is_woken() {
    thread_.join();
    return woken_;
  }

 private:
  static constexpr int64_t kLongNs = 30'000'000'000;
  bool sleeps() const {
    std::ifstream file("/proc/self/task/" + std::to_string(id_) + "/stat");
    std::string id, name, state;
    return file >> id >> name >> state && state == "S";
  }
  fsccl_transport_word_t word_{};
  std::atomic<pid_t> id_{0};
  bool woken_ = false;
  std::thread thread_;
};

TEST(ShmChannel, RingsAreAsLongAsRankZeroMadeThem) {
  const Opened opened = open_offered(geometry(), bytes_of(geometry()));
  ASSERT_EQ(opened.code, FSCCL_OK) << opened.error;
  EXPECT_EQ(opened.ring_bytes, kRing);
  EXPECT_EQ(opened.slot_bytes, kSlot);
}

// Reads are right for every place within a page, also for those places to which the system would
// read slowly, and to which the library therefore reads in pieces through other memory.
TEST(ShmChannel, ReadsToAnyPlaceWithinAPage) {
  constexpr size_t kBytes = 3 * 32768 + 777;
  alignas(4096) static std::byte from[kBytes + 4096], to[kBytes + 8192];
  for (size_t i = 0; i < sizeof from; i++) from[i] = static_cast<std::byte>(i * 7 + i / 256);
  const Opened opened = open_offered(
      geometry(), bytes_of(geometry()), F_SEAL_SHRINK | F_SEAL_SEAL, [&](Channel& channel) {
        for (const size_t ahead : {0, 1, 16, 31, 32, 4095}) {
          std::fill(std::begin(to), std::end(to), std::byte{0xEE});
          const Status read =
              channel.read(0, reinterpret_cast<uint64_t>(from + 100), to + 100 + ahead, kBytes);
          ASSERT_TRUE(read.ok()) << read.text();
          EXPECT_TRUE(std::equal(from + 100, from + 100 + kBytes, to + 100 + ahead)) << ahead;
          EXPECT_TRUE(std::all_of(to, to + 100 + ahead, [](std::byte b) {
            return b == std::byte{0xEE};
          })) << ahead;
          EXPECT_TRUE(std::all_of(to + 100 + ahead + kBytes, std::end(to), [](std::byte b) {
            return b == std::byte{0xEE};
          })) << ahead;
        }
      });
  ASSERT_EQ(opened.code, FSCCL_OK) << opened.error;
}

// Writes are right for every place within a page, like reads.
TEST(ShmChannel, WritesToAnyPlaceWithinAPage) {
  constexpr size_t kBytes = 3 * 32768 + 777;
  alignas(4096) static std::byte from[kBytes + 4096], to[kBytes + 8192];
  for (size_t i = 0; i < sizeof from; i++) from[i] = static_cast<std::byte>(i * 5 + i / 256);
  const Opened opened = open_offered(
      geometry(), bytes_of(geometry()), F_SEAL_SHRINK | F_SEAL_SEAL, [&](Channel& channel) {
        for (const size_t ahead : {0, 1, 16, 31, 32, 4095}) {
          std::fill(std::begin(to), std::end(to), std::byte{0xEE});
          std::byte* const place = to + 100 + ahead;
          const Status wrote =
              channel.write(0, reinterpret_cast<uint64_t>(place), from + 100, kBytes);
          ASSERT_TRUE(wrote.ok()) << wrote.text();
          EXPECT_TRUE(std::equal(from + 100, from + 100 + kBytes, place)) << ahead;
          const auto untouched = [](std::byte b) { return b == std::byte{0xEE}; };
          EXPECT_TRUE(std::all_of(to, place, untouched)) << ahead;
          EXPECT_TRUE(std::all_of(place + kBytes, std::end(to), untouched)) << ahead;
        }
      });
  ASSERT_EQ(opened.code, FSCCL_OK) << opened.error;
}

// A mapping of the file of a channel, through which a test acts as rank 0.
class RankZero {
 public:
  explicit RankZero(const Fd& file)
      : memory_(mmap(nullptr, bytes_of(geometry()), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(),
                     0)) {}
  RankZero(const RankZero&) = delete;
  ~RankZero() { munmap(memory_, bytes_of(geometry())); }
  // Says that rank 0 writes to rank 1, or that it does not.
  void writes(bool now) { std::atomic_ref(block().writes_to).store(now ? 2 : 0); }
  // Says that rank 0, as a thread of this process, touches memory of others, or that it does not.
  void touches(bool now) { std::atomic_ref(block().touching).store(now ? 1 : 0); }
  bool sees_failure() const {
    return std::atomic_ref(static_cast<Header*>(memory_)->failure_state).load() == 2;
  }

 private:
  RankBlock& block() {
    return *reinterpret_cast<RankBlock*>(static_cast<std::byte*>(memory_) + sizeof(Header));
  }
  void* const memory_;
};

Deadline in_time() { return Deadline::in_ms(20'000); }

// The memory of a rank that has failed may be given back to its owner, so the rank waits for the
// peer that writes there.
TEST(ShmChannel, AFailureWaitsForAPeerThatWrites) {
  const Fd file = file_of(geometry(), bytes_of(geometry()));
  const Result<OpenedChannel> opened = open_file(file);
  ASSERT_TRUE(opened.ok());
  RankZero zero(file);
  zero.writes(true);
  std::atomic<bool> writing{true};
  std::thread fails([&] {
    opened.value().channel->fail({});
    opened.value().channel->await_untouched(in_time());
    EXPECT_FALSE(writing);
  });
  while (!zero.sees_failure()) std::this_thread::yield();
  writing = false;
  zero.writes(false);
  fails.join();
}

TEST(ShmChannel, AFailureWaitsForAPeerThatTouches) {
  const Fd file = file_of(geometry(), bytes_of(geometry()));
  const Result<OpenedChannel> opened = open_file(file);
  ASSERT_TRUE(opened.ok());
  Channel& channel = *opened.value().channel;
  ASSERT_TRUE(channel.touch());
  RankZero zero(file);
  zero.touches(true);
  std::atomic<bool> touching{true};
  std::thread fails([&] {
    channel.fail({});
    channel.await_untouched(in_time());  // the rank does not wait for itself
    EXPECT_FALSE(touching);
  });
  while (!zero.sees_failure()) std::this_thread::yield();
  touching = false;
  zero.touches(false);
  fails.join();
  channel.touched();
  EXPECT_FALSE(channel.touch());
}

// A process that was killed while it wrote does not write any more, also if nobody has waited for
// its end yet.
TEST(ShmChannel, AFailureDoesNotWaitForADeadPeer) {
  const pid_t child = fork();
  if (child == 0) pause();
  ASSERT_GT(child, 0);
  const Fd file = file_of(geometry(), bytes_of(geometry()));
  const Result<OpenedChannel> opened = open_file(file, child);
  ASSERT_TRUE(opened.ok());
  RankZero zero(file);
  zero.writes(true);
  kill(child, SIGKILL);
  opened.value().channel->fail({});
  opened.value().channel->await_untouched(Deadline::never());
  siginfo_t ended{};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG), 0);
  EXPECT_EQ(ended.si_pid, child) << "await_untouched() returned before the process had ended";
}

// A peer that is stopped may keep its claim for any time.
TEST(ShmChannel, AFailureWaitsNoLongerThanItsDeadline) {
  const Fd file = file_of(geometry(), bytes_of(geometry()));
  const Result<OpenedChannel> opened = open_file(file);
  ASSERT_TRUE(opened.ok());
  RankZero zero(file);
  zero.writes(true);
  opened.value().channel->fail({});
  opened.value().channel->await_untouched(Deadline::in_ms(20));
}

TEST(ShmChannel, NothingIsWrittenAfterAFailure) {
  const Opened opened = open_offered(
      geometry(), bytes_of(geometry()), F_SEAL_SHRINK | F_SEAL_SEAL, [&](Channel& channel) {
        channel.fail({});
        const uint64_t from = 1;
        uint64_t to = 2;
        const Status wrote = channel.write(0, reinterpret_cast<uint64_t>(&to), &from, sizeof from);
        EXPECT_FALSE(wrote.ok());
        EXPECT_EQ(to, 2u);
      });
  ASSERT_EQ(opened.code, FSCCL_OK) << opened.error;
}

TEST(ShmChannel, AWriteThatCannotBeMadeSaysWhy) {
  const Opened opened = open_offered(
      geometry(), bytes_of(geometry()), F_SEAL_SHRINK | F_SEAL_SEAL, [&](Channel& channel) {
        const uint64_t from = 1;
        const Status wrote = channel.write(0, 4096, &from, sizeof from);
        EXPECT_EQ(wrote.code(), FSCCL_ERR_LINK);
        EXPECT_NE(wrote.text().find("Bad address"), std::string::npos) << wrote.text();
      });
  ASSERT_EQ(opened.code, FSCCL_OK) << opened.error;
}

// The failure may come from the channel, from another of its pairs, or from a process that does not
// use the pair.
TEST(ShmChannel, AFailureWakesWhoSleepsInAPair) {
  for (const char* from : {"channel", "pair", "process"}) {
    const Fd file = file_of(geometry(), bytes_of(geometry()));
    const Result<OpenedChannel> opened = open_file(file), other = open_file(file);
    ASSERT_TRUE(opened.ok() && other.ok());
    Channel& channel = *opened.value().channel;
    const Result<OpenedChannel> to = channel.pair(0, 1), back = channel.pair(1, 0);
    ASSERT_TRUE(to.ok() && back.ok());
    Sleeper in_pair(*to.value().channel), in_channel(channel);
    Channel& fails = from == std::string("pair")      ? *back.value().channel
                     : from == std::string("channel") ? channel
                                                      : *other.value().channel;
    fails.fail({});
    EXPECT_TRUE(in_pair.is_woken()) << from;
    EXPECT_TRUE(in_channel.is_woken()) << from;
  }
}

TEST(ShmChannel, WhatDoesNotFitTogetherIsRefused) {
  const std::pair<const char*, std::function<void(Geometry&)>> cases[] = {
      {"rings of no whole pages", [](Geometry& g) { g.ring_bytes -= 64; }},
      {"slots of no whole pages", [](Geometry& g) { g.slot_bytes -= 64; }},
      {"slots of nothing", [](Geometry& g) { g.slot_bytes = 0; }},
      {"rings of nothing", [](Geometry& g) { g.ring_bytes = 0; }},
      {"slots beyond their ring", [](Geometry& g) { g.slot_bytes = 2 * kSlot; }},
      {"rings beyond the file", [](Geometry& g) { g.ring_bytes += kPage; }},
      {"rings whose sum overflows", [](Geometry& g) { g.ring_bytes = uint64_t{1} << 63; }},
      {"the largest numbers",
       [](Geometry& g) { g.ring_bytes = g.slot_bytes = ~uint64_t{0} - kPage + 1; }},
  };
  for (const auto& [what, change] : cases) {
    Geometry bad = geometry();
    change(bad);
    const Opened opened = open_offered(bad, bytes_of(geometry()));
    EXPECT_EQ(opened.code, FSCCL_ERR_PROTOCOL) << what;
    EXPECT_NE(opened.error.find("do not fit together"), std::string::npos)
        << what << ": " << opened.error;
  }
}

TEST(ShmChannel, AFileThatMayShrinkOrIsShortIsRefused) {
  EXPECT_EQ(open_offered(geometry(), bytes_of(geometry()), 0).code, FSCCL_ERR_PROTOCOL);
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{16}, uint64_t{kPage}, bytes_of(geometry()) - 1})
    EXPECT_EQ(open_offered(geometry(), bytes).code, FSCCL_ERR_PROTOCOL) << bytes;
}

TEST(ShmChannel, AnotherVersionGroupOrSettingIsNamed) {
  Geometry other = geometry();
  other.magic++;
  EXPECT_NE(open_offered(other, bytes_of(other)).error.find("different versions"),
            std::string::npos);
  other = geometry();
  other.tag++;
  EXPECT_EQ(open_offered(other, bytes_of(other)).code, FSCCL_ERR_MISMATCH);
  other = geometry();
  other.ranks++;
  EXPECT_EQ(open_offered(other, bytes_of(other)).code, FSCCL_ERR_MISMATCH);
}

// Slots that are reserved are there at once: neither the first store to a page nor the first load
// from a peer's page is a fault.
TEST(ShmChannel, ReservedSlotsHaveNoFaults) {
  const Fd file = file_of(geometry(), bytes_of(geometry()));
  const Result<OpenedChannel> opened = open_file(file);
  ASSERT_TRUE(opened.ok()) << opened.status().text();
  Channel& channel = *opened.value().channel;
  ASSERT_TRUE(channel.reserve().ok());
  const int64_t before = minor_faults();
  int sum = 0;
  for (int rank = 0; rank < kRanks; rank++) {
    size_t ring_bytes = 0, slot_bytes = 0;
    std::byte* const ring = channel.slots(rank, &ring_bytes, &slot_bytes);
    for (size_t at = 0; at < ring_bytes; at += kPage) {
      if (rank == 1) ring[at] = std::byte{1};
      sum += std::to_integer<int>(ring[at]);
    }
  }
  EXPECT_EQ(static_cast<uint64_t>(sum), kRing / kPage);
  if (madvise(nullptr, 0, MADV_POPULATE_WRITE) == 0) {  // otherwise the system does not know it
    EXPECT_LT(minor_faults() - before, static_cast<int64_t>(kRing / kPage / 4));
  }
}

}  // namespace
}  // namespace fsccl::shm
