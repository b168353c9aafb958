// Helpers of tests that run ranks as threads over a real channel, whose functions they can wrap.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "tests/unit/forwarding_channel.h"
#include "transports/shm/shm.h"

namespace fsccl::testing {

inline constexpr int64_t kLimitNs = 20'000'000'000;
// A channel of one rank that calls a function of the test at every signal, preparation of a signal,
// poll, read, and look for a failure. `on_poll` can hide the line, `on_read` can return a status in
// place of the read, and `on_word` can change what a peer's word says.
class Wrapped : public ForwardingChannel {
 public:
  explicit Wrapped(const std::shared_ptr<Channel>& wrapped)
      : ForwardingChannel(wrapped, wrapped->traits()) {}
  using ForwardingChannel::ForwardingChannel;

  std::function<void(uint32_t tick)> on_signal = [](uint32_t) {}, on_prepare = [](uint32_t) {};
  std::function<bool(const fsccl_transport_line_t*, int peer, uint32_t tick)> on_poll =
      [](auto...) { return true; };
  std::function<void()> on_failure = [] {}, on_hear_out = [] {};
  std::function<void(fsccl_transport_word_t*)> on_word = [](auto*) {};
  std::function<fsccl_status_t(size_t bytes)> on_read = [](size_t) { return FSCCL_OK; };

  void signal(const fsccl_transport_line_t& line) override {
    on_signal(line.tick);
    inner->signal(line);
  }
  const fsccl_transport_line_t* poll(int peer, uint32_t tick) override {
    const fsccl_transport_line_t* line = inner->poll(peer, tick);
    return on_poll(line, peer, tick) ? line : nullptr;
  }
  void word(int peer, uint32_t tick, fsccl_transport_word_t* word) override {
    inner->word(peer, tick, word);
    on_word(word);
  }
  void prepare(uint32_t tick) override {
    on_prepare(tick);
    inner->prepare(tick);
  }
  Status read(int peer, uint64_t address, void* destination, size_t bytes) override {
    const fsccl_status_t status = on_read(bytes);
    return status == FSCCL_OK ? inner->read(peer, address, destination, bytes)
                              : ::fsccl::fail(status, "the test says so");
  }
  const fsccl_transport_failure_t* failure() override {
    on_failure();
    return inner->failure();
  }
  void hear_out() override { on_hear_out(); }
  std::atomic<bool> peers_left{false};
  bool left(int) const override { return peers_left; }
};

// Returns the options of an engine for this rank of `ranks`, which are all in this process, in a
// communicator that is called "world".
inline EngineOptions options_over(std::shared_ptr<Channel> channel, int rank, int ranks,
                                  uint32_t tick) {
  EngineOptions options;
  options.channel = std::move(channel);
  options.first_tick = tick;
  options.rank = rank;
  options.ranks = ranks;
  options.timeout_ms = kLimitNs / 1'000'000;
  options.name = "world";
  for (int i = 0; i < ranks; i++) options.members.push_back(i);
  options.same_process.assign(static_cast<size_t>(ranks), true);
  return options;
}
// Returns the same options. The caller owns the channel, which must outlive the engine.
inline EngineOptions options_over(Channel& channel, int rank, int ranks, uint32_t tick) {
  return options_over(std::shared_ptr<Channel>(std::shared_ptr<Channel>(), &channel), rank, ranks,
                      tick);
}

// The means by which ranks that are threads open a channel: the first rank offers its descriptor to
// all.
class ThreadsOpening final : public Opening {
 public:
  ~ThreadsOpening() {
    if (published_ >= 0) close(published_);
  }
  Status publish_fd(int fd) override {
    published_ = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return success();
  }
  Result<Fd> fetch_fd(int) override {
    while (published_ < 0) std::this_thread::yield();
    return Fd(fcntl(published_, F_DUPFD_CLOEXEC, 0));
  }
  bool cancelled() override { return false; }

 private:
  std::atomic<int> published_{-1};
};

// Runs `body(rank, its channel, the first tick)` in a thread for each rank.
inline void over_channel(
    int ranks, const std::function<void(int rank, Wrapped& channel, uint32_t tick)>& body) {
  ThreadsOpening opening;
  const std::vector<int32_t> pids(static_cast<size_t>(ranks), getpid());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; rank++)
    threads.emplace_back([&, rank] {
      ChannelRequest request;
      request.rank = rank;
      request.ranks = ranks;
      request.pids = pids;
      request.tag = 7;
      request.deadline_ns = now_ns() + kLimitNs;
      request.single_copy = request.writes = true;
      request.opening = &opening;
      Result<OpenedChannel> opened = shm_transport()->open(request);
      ASSERT_TRUE(opened.ok()) << opened.status().text();
      Wrapped wrapped(std::move(opened.value().channel));
      body(rank, wrapped, opened.value().first_tick);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fsccl::testing
