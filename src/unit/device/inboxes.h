// Signals between the GPUs of a host: one piece of host memory that the ranks of a communicator map
// and register with the driver. Streams write values into it and wait for values in it, and the
// host can read which rank has written what. Each rank has an inbox, with a line for each (channel,
// peer): the peer's streams write there, and only this rank's streams wait there. A process can
// therefore let its own streams go when a peer is lost, without touching another rank's memory.
//
// Channels. A unit has one, and in each line two tracks of words (track.h). A channel is never used
// again, because ranks end units at different times: when all channels of a piece of memory are
// taken, the next unit makes another piece.
//
// The log has the operations that a rank has issued, in order. The host writes it while it issues
// operations. The watchdogs of its peers read it, and so find out when ranks disagree.
//
// Other ranks wrote this memory, perhaps a rank that has gone astray. Its content orders operations
// and is compared, and nothing else depends on it.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "allocators/host/arena.h"
#include "comm/communicator.h"
#include "cuda/device.h"

namespace fsccl {

class Inboxes {
 public:
  static constexpr uint32_t kChannels = 64;
  static constexpr uint64_t kLogEntries = 256;
  // A value that is ahead by so much ends every wait.
  static constexpr uint64_t kBeyond = uint64_t{1} << 30;

  struct LogEntry {
    uint64_t number = 0;  // number of the operation, from 1
    uint64_t hash = 0;    // hash of everything that ranks must agree on
    uint32_t channel = 0;
    uint8_t op = 0, flags = 0;
    uint64_t sequence = 0;  // its number in its track
  };

  ~Inboxes();
  Inboxes(const Inboxes&) = delete;

  const cuda::Device& device() const { return device_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  bool wide() const { return wide_; }  // values have 64 bits; else 32
  // Returns true if `value` is `wanted` or later. Values may wrap.
  bool reached(uint64_t value, uint64_t wanted) const {
    return wide_ ? static_cast<int64_t>(value - wanted) >= 0
                 : static_cast<int32_t>(static_cast<uint32_t>(value) -
                                        static_cast<uint32_t>(wanted)) >= 0;
  }
  bool equal(uint64_t value, uint64_t wanted) const {
    return wide_ ? value == wanted : static_cast<uint32_t>(value) == static_cast<uint32_t>(wanted);
  }

  // These return operations of streams on a word of `from`'s line in the inbox of `owner`.
  cuda::CUstreamBatchMemOpParams write(int owner, uint32_t channel, int from, int word,
                                       uint64_t value) const;
  enum class Until : unsigned { reached = 0, equal = 1 };
  // Waits for a word in this rank's inbox.
  cuda::CUstreamBatchMemOpParams wait(uint32_t channel, int from, int word, uint64_t value,
                                      Until until) const;

  // Reads a word of this rank's inbox on the host.
  uint64_t read(uint32_t channel, int from, int word) const;
  void let_go(uint32_t channel, int from, int word, uint64_t value);

  uint64_t next_number() { return ++issued_; }
  void log(const LogEntry& entry);
  // Reads the operation that `rank` issued as its operation `number`. Returns false if there is
  // nothing yet, or no more.
  bool read_log(int rank, uint64_t number, LogEntry* entry) const;
  // Returns the unit of a channel as far as this rank knows it, or "".
  std::string unit_of(uint32_t channel) const;

 private:
  friend struct InboxChannel;
  struct Record {  // an entry of the log, in shared memory
    uint64_t number, hash, what, sequence;
  };
  Inboxes(HostArena arena, const cuda::Device& device, int rank, int ranks);
  static Result<std::shared_ptr<Inboxes>> open(Communicator& comm, const cuda::Device& device,
                                               uint64_t number);
  static Result<HostArena> map(Communicator& comm, uint64_t tag, Result<HostArena> made);
  Status register_memory();
  static uint64_t region_bytes(int ranks);
  uint64_t offset(int owner, uint32_t channel, int from, int word) const;
  Record& record(int rank, uint64_t number) const;

  HostArena arena_;
  const cuda::Device& device_;
  const int rank_, ranks_;
  bool wide_ = false, registered_ = false;
  cuda::CUdeviceptr base_ = 0;
  uint64_t issued_ = 0;
  mutable std::mutex names_mutex_;
  std::vector<std::string> units_;  // by channel
};

// A unit's lines in the inboxes of all ranks.
struct InboxChannel {
  // Collective over `comm`, blocking. The memory lives as long as `keeper`, because waits on it may
  // be handed to a pool there.
  static Result<InboxChannel> open(Communicator& comm, Communicator& keeper,
                                   const cuda::Device& device, const std::string& unit);

  std::shared_ptr<Inboxes> inboxes;
  uint32_t number = 0;
};

}  // namespace fsccl
