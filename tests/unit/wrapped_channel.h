// Ranks as threads over a real channel, before an engine runs on it.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "transports/shm/shm.h"

namespace fsccl::testing {

inline constexpr int64_t kLimitNs = 20'000'000'000;
// A channel of one rank with a look at every signal, what is prepared for one, poll, read, and what
// looks for a failure, before it takes place. `on_poll` may hide the line, `on_read` say how it
// ended instead.
struct Wrapped {
  void* channel = nullptr;
  std::function<void(uint32_t tick)> on_signal = [](uint32_t) {}, on_prepare = [](uint32_t) {};
  std::function<bool(const fsccl_transport_line_t*, int peer, uint32_t tick)> on_poll =
      [](auto...) { return true; };
  std::function<void()> on_failure = [] {}, on_hear_out = [] {};
  std::function<fsccl_status_t()> on_read = [] { return FSCCL_OK; };

  static fsccl_transport_ops_t ops() {
    fsccl_transport_ops_t ops = *shm_transport();
    ops.signal = [](void* self, const fsccl_transport_line_t* line) {
      static_cast<Wrapped*>(self)->on_signal(line->tick);
      shm_transport()->signal(static_cast<Wrapped*>(self)->channel, line);
    };
    ops.poll = [](void* self, int peer, uint32_t tick) -> const fsccl_transport_line_t* {
      auto& wrapped = *static_cast<Wrapped*>(self);
      const fsccl_transport_line_t* line = shm_transport()->poll(wrapped.channel, peer, tick);
      return wrapped.on_poll(line, peer, tick) ? line : nullptr;
    };
    ops.prepare = [](void* self, uint32_t tick) {
      static_cast<Wrapped*>(self)->on_prepare(tick);
      shm_transport()->prepare(static_cast<Wrapped*>(self)->channel, tick);
    };
    ops.can_read = [](void* self) {
      return shm_transport()->can_read(static_cast<Wrapped*>(self)->channel);
    };
    ops.read = [](void* self, int peer, uint64_t address, void* destination, size_t bytes,
                  char* error, size_t capacity) {
      const fsccl_status_t status = static_cast<Wrapped*>(self)->on_read();
      if (status != FSCCL_OK) return status;
      return shm_transport()->read(static_cast<Wrapped*>(self)->channel, peer, address, destination,
                                   bytes, error, capacity);
    };
    ops.slots = [](void* self, int rank, size_t* ring_bytes, size_t* slot_bytes) {
      return shm_transport()->slots(static_cast<Wrapped*>(self)->channel, rank, ring_bytes,
                                    slot_bytes);
    };
    ops.close = [](void*) {};  // over_channel does
    ops.word = [](void* self, int peer, uint32_t tick, fsccl_transport_word_t* word) {
      shm_transport()->word(static_cast<Wrapped*>(self)->channel, peer, tick, word);
    };
    ops.reserve = [](void* self, char* error, size_t capacity) {
      return shm_transport()->reserve(static_cast<Wrapped*>(self)->channel, error, capacity);
    };
    ops.fail = [](void* self, const fsccl_transport_failure_t* failure) {
      shm_transport()->fail(static_cast<Wrapped*>(self)->channel, failure);
    };
    ops.failure = [](void* self) {
      static_cast<Wrapped*>(self)->on_failure();
      return shm_transport()->failure(static_cast<Wrapped*>(self)->channel);
    };
    ops.hear_out = [](void* self) { static_cast<Wrapped*>(self)->on_hear_out(); };
    ops.left = [](void*, int) { return 0; };
    return ops;
  }
};

// Returns the options of an engine for this rank of `ranks`, all of one process, in a communicator
// that is called "world".
inline EngineOptions options_over(Wrapped& channel, int rank, int ranks, uint32_t tick) {
  static const fsccl_transport_ops_t ops = Wrapped::ops();
  EngineOptions options;
  options.transport = &ops;
  options.channel = &channel;
  options.first_tick = tick;
  options.rank = rank;
  options.ranks = ranks;
  options.timeout_ms = kLimitNs / 1'000'000;
  options.name = "world";
  for (int i = 0; i < ranks; i++) options.members.push_back(i);
  options.same_process.assign(static_cast<size_t>(ranks), true);
  return options;
}

// Runs `body(rank, its channel, the first tick)` in a thread for each rank.
inline void over_channel(
    int ranks, const std::function<void(int rank, Wrapped& channel, uint32_t tick)>& body) {
  std::atomic<int> published{-1};
  const std::vector<int32_t> pids(static_cast<size_t>(ranks), getpid());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; rank++)
    threads.emplace_back([&, rank] {
      fsccl_transport_request_t request{};
      request.size = sizeof request;
      request.rank = rank;
      request.ranks = ranks;
      request.pids = pids.data();
      request.tag = 7;
      request.deadline_ns = now_ns() + kLimitNs;
      request.single_copy = 1;
      request.context = &published;
      request.publish_fd = [](void* board, int fd, char*, size_t) {
        *static_cast<std::atomic<int>*>(board) = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        return 0;
      };
      request.fetch_fd = [](void* board, int, char*, size_t) {
        while (*static_cast<std::atomic<int>*>(board) < 0) std::this_thread::yield();
        return fcntl(*static_cast<std::atomic<int>*>(board), F_DUPFD_CLOEXEC, 0);
      };
      request.cancelled = [](void*) { return 0; };
      Wrapped wrapped;
      uint32_t tick = 0;
      char error[256] = "";
      ASSERT_EQ(shm_transport()->open(&request, &wrapped.channel, &tick, error, sizeof error),
                FSCCL_OK)
          << error;
      body(rank, wrapped, tick);
      shm_transport()->close(wrapped.channel);
    });
  for (std::thread& thread : threads) thread.join();
  close(published);
}

}  // namespace fsccl::testing
