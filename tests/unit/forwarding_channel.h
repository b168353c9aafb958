// A channel that passes every call on to another one; a test overrides what it looks at or changes.
#pragma once
#include <memory>
#include <utility>

#include "transports/channel.h"

namespace fsccl::testing {

class ForwardingChannel : public Channel {
 public:
  ForwardingChannel(std::shared_ptr<Channel> to, const ChannelTraits& traits)
      : Channel(traits), inner(std::move(to)) {}
  const std::shared_ptr<Channel> inner;

  void signal(const fsccl_transport_line_t& line) override { inner->signal(line); }
  const fsccl_transport_line_t* poll(int peer, uint32_t tick) override {
    return inner->poll(peer, tick);
  }
  void word(int peer, uint32_t tick, fsccl_transport_word_t* word) override {
    inner->word(peer, tick, word);
  }
  bool can_read() const override { return inner->can_read(); }
  Status read(int peer, uint64_t address, void* destination, size_t bytes) override {
    return inner->read(peer, address, destination, bytes);
  }
  bool can_write() const override { return inner->can_write(); }
  Status write(int peer, uint64_t address, const void* source, size_t bytes) override {
    return inner->write(peer, address, source, bytes);
  }
  bool touch() override { return inner->touch(); }
  void touched() override { inner->touched(); }
  void await_untouched(Deadline deadline) override { inner->await_untouched(deadline); }
  std::byte* slots(int rank, size_t* ring_bytes, size_t* slot_bytes) const override {
    return inner->slots(rank, ring_bytes, slot_bytes);
  }
  Status reserve() override { return inner->reserve(); }
  void put(int peer, size_t at, const void* source, size_t bytes) override {
    inner->put(peer, at, source, bytes);
  }
  void rest() override { inner->rest(); }
  void expect(int peer, uint32_t tick, size_t at, std::byte* destination, size_t bytes) override {
    inner->expect(peer, tick, at, destination, bytes);
  }
  bool placed(int peer, uint32_t tick, size_t at, size_t bytes) const override {
    return inner->placed(peer, tick, at, bytes);
  }
  void hold() override { inner->hold(); }
  void signal_to(int peer, const fsccl_transport_line_t& line) override {
    traits().signals_one ? inner->signal_to(peer, line) : signal(line);
  }
  void prepare(uint32_t tick) override { inner->prepare(tick); }
  void fail(const fsccl_transport_failure_t& failure) override { inner->fail(failure); }
  const fsccl_transport_failure_t* failure() override { return inner->failure(); }
  bool left(int peer) const override { return inner->left(peer); }
  void hear_out() override { inner->hear_out(); }
  Result<OpenedChannel> pair(int from, int to) override { return inner->pair(from, to); }
  const char* path(int number) const override { return inner->path(number); }
  int take_path(int peer, int number) override { return inner->take_path(peer, number); }
};

}  // namespace fsccl::testing
