// A channel connects the ranks of one communicator. It moves signals and bytes, and has a board on
// which a rank that fails writes the reason. The engine calls channels, and each transport has its
// own kind (transport.h). The functions are those of fsccl/transport.h, the table for transports of
// other makers. That file says what each function promises and which threads may call it. A
// transport that does not have a function leaves it as it is here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "fsccl/transport.h"

namespace fsccl {

struct ChannelTraits {
  std::string_view transport;  // the transport's name
  bool mirrors = false;        // slots are mirrored, and put() and rest() exist
  bool signals_one = false;    // signal_to() signals one peer only
  bool places = false;         // expect() and placed() exist; otherwise they are not called
  bool prepares = false;       // prepare() exists; otherwise it is not called
  bool shares_rings = false;   // each rank can write to the slots of all ranks
  // Returns true if messages pass through the system's TCP, so that each takes system calls.
  bool sockets() const { return transport == "tcp"; }
  // Returns true if the ranks of a channel exchange the rings of their slots (engine/slot_ring.h).
  bool exchanges_rings(int ranks) const { return shares_rings && ranks == 2; }
};

struct OpenedChannel;

class Channel {
 public:
  explicit Channel(const ChannelTraits& traits) : traits_(traits) {}
  virtual ~Channel() = default;  // closes the channel
  Channel(const Channel&) = delete;
  const ChannelTraits& traits() const { return traits_; }

  virtual void signal(const fsccl_transport_line_t& line) = 0;
  virtual const fsccl_transport_line_t* poll(int peer, uint32_t tick) = 0;
  virtual void word(int peer, uint32_t tick, fsccl_transport_word_t* word) = 0;

  virtual bool can_read() const { return false; }
  virtual Status read(int peer, uint64_t address, void* destination, size_t bytes);
  // can_write() returns true if write() works between all ranks of the channel, and the same on all
  // ranks. write() copies `bytes` bytes to `address` of the peer's memory. Plug-ins have neither.
  virtual bool can_write() const { return false; }
  virtual Status write(int peer, uint64_t address, const void* source, size_t bytes);
  // Ranks that are threads of one process touch each other's private memory directly. They do so
  // between touch() and touched(). touch() returns false if the channel has failed: nothing may be
  // touched then, and touched() is not called.
  virtual bool touch() { return true; }
  virtual void touched() {}
  // Waits, after fail(), until no peer touches this rank's private memory any more, in this way or
  // by write(), but not beyond the deadline. Any thread may call it.
  virtual void await_untouched(Deadline) {}
  virtual std::byte* slots(int rank, size_t* ring_bytes, size_t* slot_bytes) const = 0;
  virtual Status reserve() { return success(); }

  virtual void put(int /*peer*/, size_t /*at*/, const void* /*source*/, size_t /*bytes*/) {}
  virtual void rest() {}
  virtual void expect(int /*peer*/, uint32_t /*tick*/, size_t /*at*/, std::byte* /*destination*/,
                      size_t /*bytes*/) {}
  virtual bool placed(int /*peer*/, uint32_t /*tick*/, size_t /*at*/, size_t /*bytes*/) const {
    return false;
  }
  virtual void hold() {}
  virtual void signal_to(int /*peer*/, const fsccl_transport_line_t& line) { signal(line); }
  virtual void prepare(uint32_t /*tick*/) {}

  virtual void fail(const fsccl_transport_failure_t& failure) = 0;
  virtual const fsccl_transport_failure_t* failure() = 0;
  virtual bool left(int peer) const = 0;
  virtual void hear_out() {}

  virtual Result<OpenedChannel> pair(int from, int to) = 0;
  virtual const char* path(int /*number*/) const { return nullptr; }
  virtual int take_path(int /*peer*/, int /*number*/) { return -1; }

 private:
  const ChannelTraits traits_;
};

struct OpenedChannel {
  std::unique_ptr<Channel> channel;
  uint32_t first_tick = 1;  // the first tick that the engine may use, the same on all ranks
};

inline Status Channel::read(int, uint64_t, void*, size_t) {
  return ::fsccl::fail(FSCCL_ERR_INTERNAL, "the transport {} reads no memory of peers",
                       traits_.transport);
}
inline Status Channel::write(int, uint64_t, const void*, size_t) {
  return ::fsccl::fail(FSCCL_ERR_INTERNAL, "the transport {} writes to no memory of peers",
                       traits_.transport);
}

}  // namespace fsccl
