// Tests a subscriber of ranks that say only what the test tells them. It shows no version of which
// a part is missing, believes no rank at the address of another, and its calls do not wait.
#include "publish/subscriber.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "fake_rank.h"

namespace fsccl::publish {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr size_t kEach = 100;  // words of each rank

class Subscribing : public ::testing::Test {
 protected:
  void SetUp() override {
    catalog_.number = key_.number;
    catalog_.params = {{"w", {{2 * kEach}}, FSCCL_BFLOAT16}};
    catalog_.unit_params = {1};
    tell_addresses(ranks_[0], ranks_[1]);
  }
  void tell_addresses(const FakeRank& first, const FakeRank& second) {
    catalog_.addresses = {first.address(), second.address()};
    for (FakeRank& rank : ranks_) rank.give(encode(catalog_));
  }
  Result<std::unique_ptr<Subscriber>> subscribe(void* to, int64_t words = 2 * kEach) {
    ticket_ = fsccl::encode(UniqueId{key_.number,
                                     key_.credentials.key,
                                     {},
                                     kFakeHost,
                                     getpid(),
                                     ranks_[0].port(),
                                     {local_ip(1)}});
    SubscribeRequest request;
    request.ticket = &ticket_;
    request.params = {{"w", {{words}}, FSCCL_BFLOAT16, to}};
    request.sharding = {FSCCL_LAYOUT_PER_PARAM, 1, 0};
    request.timeout_ms = kPatienceMs;
    request.name = "test";
    return Subscriber::create(std::move(request));
  }
  // The first rank's first guest only gets the catalog. Afterwards each rank has one guest.
  static constexpr size_t kGuests[2] = {1, 0};
  void news(uint64_t version) {
    for (const int rank : {0, 1})
      ranks_[rank].say(kGuests[rank], FrameType::kNews, encode_version(version));
  }
  void hear_wants(uint64_t version) {
    for (const int rank : {0, 1})
      EXPECT_EQ(ranks_[rank].hears_want(kGuests[rank]).version, version);
  }
  void hear_haves(uint64_t version) {
    for (const int rank : {0, 1}) EXPECT_EQ(ranks_[rank].hears_have(kGuests[rank]), version);
  }
  static std::vector<uint16_t> words(uint16_t value) { return std::vector<uint16_t>(kEach, value); }
  void say_copies(uint64_t version) {
    for (const int rank : {0, 1})
      ranks_[rank].say_copy(kGuests[rank], version, words(static_cast<uint16_t>(version)));
  }
  static uint64_t version_now(Subscriber& subscriber) {
    return subscriber.update(Deadline::in_ms(0)).take().version;
  }
  // Waits until the subscriber has so many bytes of payload.
  static void await_bytes(Subscriber& subscriber, uint64_t bytes) {
    const auto came = [&] {
      fsccl_subscribe_report_t report = FSCCL_SUBSCRIBE_REPORT_INIT;
      subscriber.report(&report);
      return report.received_bytes >= bytes;
    };
    EXPECT_EQ(wait_until(came, Deadline::in_ms(kPatienceMs), kNothingBreaks, Naps(1'000'000)),
              WaitEnd::held);
  }

  const PublicationKey key_ = publication_key(SecretKey::random());
  FakeRank ranks_[2]{{key_, 0}, {key_, 1}};
  Catalog catalog_;
  fsccl_unique_id_t ticket_{};
};

// One rank has sent all of a version, the other a half before its connection breaks.
TEST_F(Subscribing, AVersionIsInvisibleUntilEveryRankHasSentAllOfIt) {
  std::vector<uint16_t> got(2 * kEach, 99);
  auto subscriber = subscribe(got.data()).take();
  news(1);
  hear_wants(1);
  const uint64_t whole = whole_bytes(kEach), half = whole / 2;
  ranks_[0].say_copy(1, 1, words(1));
  ranks_[1].say_copy(0, 1, words(1), half);
  await_bytes(*subscriber, whole + half);
  EXPECT_EQ(version_now(*subscriber), 0u);
  EXPECT_THAT(got, Each(99));
  ranks_[1].hang_up(0);
  ranks_[1].say(1, FrameType::kNews, encode_version(1));
  const Want again = ranks_[1].hears_want(1);
  EXPECT_EQ(again.base, 0u);
  EXPECT_EQ(again.version, 1u);
  ranks_[1].say_copy(1, 1, words(1));
  EXPECT_EQ(ranks_[1].hears_have(1), 1u);
  EXPECT_EQ(version_now(*subscriber), 1u);
  EXPECT_THAT(got, Each(1));
}

// A rank waits at its end for subscribers that have not confirmed its newest version.
TEST_F(Subscribing, ANewConnectionIsToldTheVersionThatIsThere) {
  std::vector<uint16_t> got(2 * kEach);
  auto subscriber = subscribe(got.data()).take();
  news(1);
  hear_wants(1);
  say_copies(1);
  hear_haves(1);
  ranks_[1].hang_up(0);
  EXPECT_EQ(ranks_[1].hears_have(1), 1u);
  fsccl_subscribe_report_t report = FSCCL_SUBSCRIBE_REPORT_INIT;
  subscriber->report(&report);
  EXPECT_EQ(report.reconnections, 1u);
}

// The answer to a request that has been replaced says nothing about the new one.
TEST_F(Subscribing, GoneIsOfTheVersionThatItNames) {
  std::vector<uint16_t> got(2 * kEach);
  auto subscriber = subscribe(got.data()).take();
  news(5);
  hear_wants(5);
  ranks_[1].say(0, FrameType::kGone, encode(Gone{4, 5}));
  say_copies(5);
  hear_haves(5);
  EXPECT_EQ(version_now(*subscriber), 5u);
}

TEST_F(Subscribing, ARankMustBeTheOneOfItsAddress) {
  tell_addresses(ranks_[0], ranks_[0]);
  std::vector<uint16_t> got(2 * kEach);
  const auto made = subscribe(got.data());
  EXPECT_EQ(made.status().code(), FSCCL_ERR_PEER_DEAD);
  EXPECT_THAT(made.status().text(), HasSubstr("rank 1 of the publication"));
  EXPECT_THAT(made.status().text(), HasSubstr("rank 0 answers at an address of rank 1"));
}

// Ends a subscriber by what rank 1 says to each connection, and returns the error.
class NamingTheRank : public Subscribing {
 protected:
  template <class Say>
  Status error_after(const Say& say) {
    std::vector<uint16_t> got(2 * kEach);
    auto subscriber = subscribe(got.data()).take();
    for (size_t time = 0; time <= kTimes; time++) say(time);
    return subscriber->update(Deadline::in_ms(kPatienceMs)).take_status();
  }
  static constexpr size_t kTimes = 20;  // so often a subscriber tries again
};

TEST_F(NamingTheRank, WhoseMessagesAreWrong) {
  const Status error =
      error_after([&](size_t time) { ranks_[1].say(time, FrameType::kSubscribe, {}); });
  EXPECT_EQ(error.code(), FSCCL_ERR_PROTOCOL);
  EXPECT_THAT(error.text(), HasSubstr("rank 1 of the publication sends wrong messages"));
}

TEST_F(NamingTheRank, WhoseSumsAreWrong) {
  const Status error = error_after([&](size_t time) {
    if (time == 0) news(1);
    if (time == 0) ranks_[0].say_copy(1, 1, words(1));
    ranks_[1].hears_want(0);
    const VersionHead head{0, 1, 10, whole_bytes(kEach), 7};
    ranks_[1].say(0, FrameType::kVersion, encode(head));
    const Bytes zeros(head.bytes);
    EXPECT_EQ(send_some(ranks_[1].guest(0).fd(), zeros.data(), zeros.size()).value(), zeros.size());
  });
  EXPECT_EQ(error.code(), FSCCL_ERR_PROTOCOL);
  EXPECT_THAT(error.text(), HasSubstr("rank 1 of the publication sends wrong sums"));
}

// A page of memory to which nobody can write before the test lets it. The thread that writes to it
// waits until then.
class HeldPage {
 public:
  HeldPage() {
    EXPECT_EQ(pipe(reached_), 0);
    EXPECT_EQ(pipe(released_), 0);
    page_ = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    one_ = this;
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before_);
  }
  ~HeldPage() {
    sigaction(SIGSEGV, &before_, nullptr);
    munmap(page_, kBytes);
    for (const int fd : {reached_[0], reached_[1], released_[0], released_[1]}) close(fd);
  }
  HeldPage(const HeldPage&) = delete;
  HeldPage& operator=(const HeldPage&) = delete;
  uint16_t* words() const { return static_cast<uint16_t*>(page_); }
  bool await_writer() const { return readable(reached_[0]); }
  void release() const { EXPECT_EQ(write(released_[1], "x", 1), 1); }
  // True if the writer went on because nobody released it.
  bool late() const { return late_; }

 private:
  static constexpr size_t kBytes = 4096;
  static bool readable(int fd) {
    pollfd one{fd, POLLIN, 0};
    return poll(&one, 1, static_cast<int>(kPatienceMs)) == 1;
  }
  // It calls only what a signal handler may call.
  static void on_fault(int, siginfo_t* info, void*) {
    if (info->si_addr < one_->page_ || info->si_addr >= one_->words() + kBytes / 2) std::abort();
    if (write(one_->reached_[1], "x", 1) != 1) std::abort();
    if (!readable(one_->released_[0])) one_->late_ = true;
    if (mprotect(one_->page_, kBytes, PROT_READ | PROT_WRITE) != 0) std::abort();
  }

  static inline HeldPage* one_ = nullptr;
  int reached_[2] = {-1, -1}, released_[2] = {-1, -1};
  void* page_ = nullptr;
  std::atomic<bool> late_{false};
  struct sigaction before_{};
};

// While update() copies a version, the next one comes. It is not applied before the copy is made,
// so the copy is of one version, and a report does not wait for either.
TEST_F(Subscribing, AReportDoesNotWaitForACopyAndTheCopyIsOfOneVersion) {
  HeldPage page;
  auto subscriber = subscribe(page.words()).take();
  news(1);
  hear_wants(1);
  say_copies(1);
  hear_haves(1);
  uint64_t got = 0;
  std::thread updating([&] { got = version_now(*subscriber); });
  EXPECT_TRUE(page.await_writer());
  news(2);
  hear_wants(2);
  say_copies(2);
  fsccl_subscribe_report_t report = FSCCL_SUBSCRIBE_REPORT_INIT;
  subscriber->report(&report);
  EXPECT_EQ(report.version, 1u);
  page.release();
  updating.join();
  EXPECT_FALSE(page.late());
  EXPECT_EQ(got, 1u);
  EXPECT_THAT(std::vector<uint16_t>(page.words(), page.words() + 2 * kEach), Each(1));
  hear_haves(2);
  EXPECT_EQ(version_now(*subscriber), 2u);
  EXPECT_THAT(std::vector<uint16_t>(page.words(), page.words() + 2 * kEach), Each(2));
}

// A thread that calls update(), and that the test stops while it waits there.
class StoppedWaiter {
 public:
  explicit StoppedWaiter(Subscriber& subscriber) {
    EXPECT_EQ(pipe(stopped_), 0);
    EXPECT_EQ(pipe(released_), 0);
    one_ = this;
    struct sigaction action{};
    action.sa_handler = on_signal;
    sigaction(SIGUSR1, &action, &before_);
    thread_ = std::thread([&] {
      number_ = gettid();
      got_ = subscriber.update(Deadline::in_ms(kPatienceMs)).take().version;
    });
    EXPECT_EQ(wait_until([&] { return sleeps(); }, Deadline::in_ms(kPatienceMs), kNothingBreaks,
                         Naps(1'000'000)),
              WaitEnd::held);
    pthread_kill(thread_.native_handle(), SIGUSR1);
    EXPECT_TRUE(readable(stopped_[0]));
  }
  // Lets the thread go on, and returns the version that its call gets.
  uint64_t release() {
    EXPECT_EQ(write(released_[1], "x", 1), 1);
    thread_.join();
    return got_;
  }
  ~StoppedWaiter() {
    sigaction(SIGUSR1, &before_, nullptr);
    for (const int fd : {stopped_[0], stopped_[1], released_[0], released_[1]}) close(fd);
  }
  StoppedWaiter(const StoppedWaiter&) = delete;
  StoppedWaiter& operator=(const StoppedWaiter&) = delete;

 private:
  static bool readable(int fd) {
    pollfd one{fd, POLLIN, 0};
    return poll(&one, 1, static_cast<int>(kPatienceMs)) == 1;
  }
  bool sleeps() const {
    std::ifstream file("/proc/self/task/" + std::to_string(number_) + "/stat");
    std::string text;
    std::getline(file, text);
    const size_t name_end = text.rfind(')');
    return name_end != std::string::npos && text.substr(name_end, 3) == ") S";
  }
  static void on_signal(int) {
    if (write(one_->stopped_[1], "x", 1) != 1 || !readable(one_->released_[0])) std::abort();
  }

  static inline StoppedWaiter* one_ = nullptr;
  int stopped_[2] = {-1, -1}, released_[2] = {-1, -1};
  std::atomic<pid_t> number_{0};
  std::atomic<uint64_t> got_{0};
  struct sigaction before_{};
  std::thread thread_;
};

// A thread that waits for a version may be late to wake. The next version does not take the place
// of that one, so a wait ends however fast versions follow each other.
TEST_F(Subscribing, AWaitGetsTheVersionThatEndedIt) {
  std::vector<uint16_t> got(2 * kEach);
  auto subscriber = subscribe(got.data()).take();
  StoppedWaiter waiter(*subscriber);
  news(1);
  hear_wants(1);
  say_copies(1);
  hear_haves(1);
  news(2);
  hear_wants(2);
  say_copies(2);
  // The version would be complete in a few milliseconds.
  EXPECT_FALSE(ranks_[0].guest(1).receive(Deadline::in_ms(300)).ok());
  EXPECT_EQ(waiter.release(), 1u);
  EXPECT_THAT(got, Each(1));
  hear_haves(2);
  EXPECT_EQ(version_now(*subscriber), 2u);
}

// Returns how many connections to these ranks this process has.
int connections_to(const FakeRank& first, const FakeRank& second) {
  int count = 0;
  for (int fd = 0; fd < 1024; fd++) {
    sockaddr_in at{};
    socklen_t size = sizeof at;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0) continue;
    const uint16_t port = ntohs(at.sin_port);
    count += port == first.port() || port == second.port();
  }
  return count;
}

// A rank hears of the end of a subscriber's process although a child of that process lives on.
TEST_F(Subscribing, TheChildOfAForkHasNoConnection) {
  std::vector<uint16_t> got(2 * kEach);
  auto subscriber = subscribe(got.data()).take();
  EXPECT_EQ(connections_to(ranks_[0], ranks_[1]), 2);
  const pid_t child = fork();
  if (child == 0) _exit(connections_to(ranks_[0], ranks_[1]));
  int ended = -1;
  EXPECT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_TRUE(WIFEXITED(ended));
  EXPECT_EQ(WEXITSTATUS(ended), 0);
  news(1);
  hear_wants(1);
}

uint64_t resident_bytes() {
  uint64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<uint64_t>(getpagesize());
}

// A rank that has the key can name any size. Memory is taken for the bytes that come.
TEST_F(Subscribing, ASizeThatIsOnlyClaimedTakesNoMemory) {
  constexpr int64_t kClaimed = int64_t{256} << 20;  // words of each rank
  constexpr uint64_t kLittle = uint64_t{64} << 20;
  catalog_.params[0].shape.dims = {2 * kClaimed};
  tell_addresses(ranks_[0], ranks_[1]);
  uint16_t unused = 0;
  auto subscriber = subscribe(&unused, 2 * kClaimed).take();
  const uint64_t before = resident_bytes();
  const VersionHead head{0, 1, 10, whole_bytes(kClaimed), 0};
  for (const int rank : {0, 1}) {
    ranks_[rank].say(kGuests[rank], FrameType::kNews, encode_version(1));
    ranks_[rank].say(kGuests[rank], FrameType::kVersion, encode(head));
    EXPECT_EQ(send_some(ranks_[rank].guest(kGuests[rank]).fd(), &unused, 2).value(), 2u);
  }
  await_bytes(*subscriber, 4);
  fsccl_subscribe_report_t report = FSCCL_SUBSCRIBE_REPORT_INIT;
  subscriber->report(&report);
  EXPECT_LT(report.held_bytes, kLittle);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they have shadow memory
  EXPECT_LT(resident_bytes(), before + kLittle);
#else
  (void)before;
#endif
}

}  // namespace
}  // namespace fsccl::publish
