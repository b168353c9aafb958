// The format of a flight recorder's file, byte for byte, and its reader. A file is a header, a
// table of communicators, for each of these a short ring of operations of the fast path, and a ring
// of all other records. The writer (recorder.h) may be at work, or be killed, at any moment, so a
// record counts only if it carries the number of its place before and after it was read.
//
// The reader trusts nothing: a file may be cut off, be half written, or be anything.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "base/status.h"

namespace fsccl::recording {

inline constexpr uint64_t kMagic = 0x33'6365'7243'5346ull;  // "FSCrec3"
// Entry 0 stands for all communicators that have no entry of their own, because the table was full.
// Each pair of ranks that exchanges messages needs an entry for each direction.
inline constexpr uint32_t kCommunicators = 512;
inline constexpr uint32_t kMostRecords = 1u << 22;

enum class Event : uint8_t {
  none = 0,
  submitted,  // peer: the root
  completed,
  // peer: the rank (of the job) that it waits for. kind: a Duty, if not for a signal; count then:
  // the reduction that frees the slot, 0: none is known
  blocked,
  failed,  // peer: the rank concerned; count: the status, negated
  lost,    // peer died; operation none
  left,    // peer has left
  // peer (of the job) has been silent; count: for so many ms, kind 1: its process is stopped;
  // operation none
  suspect,
  alive,  // peer is not silent any more; count: it was for so many ms
  // submitted, and completed after few looks, unless another event of the operation follows; peer:
  // the root
  at_once,
  // outside of operations; peer: the rank of the job that is waited for, kind: what it has to do, a
  // Duty
  waits,
  goes_on,  // the last such wait on this communicator is over
  // a native step of a plan on a GPU (plan.h) was given to what carries it out; peer: the root,
  // kind: what that is, a NativeAlgorithm
  native,
};
const char* event_name(Event event);

// The action of a rank that another rank waits for outside of operations.
enum class Duty : uint8_t { release_slot = 1, give_descriptor };
const char* duty_name(Duty duty);

// A moment on two clocks: the recorder's counter, and CLOCK_MONOTONIC, which nobody sets.
struct Moment {
  uint64_t ticks = 0;
  int64_t steady_ns = 0;
};

struct Header {
  uint64_t magic = kMagic;
  uint32_t record_bytes = 0, records = 0;
  int32_t rank = 0, ranks = 0;  // rank and number of ranks of the job
  int32_t pid = 0;
  uint32_t communicators = kCommunicators;
  uint64_t job = 0;      // the same on all ranks
  uint64_t changes = 0;  // changes of the header and the table; odd: one is being made
  Moment begin, last;
  int64_t begin_unix_ns = 0;  // `begin` in nanoseconds since 1970
  char host[64] = {};
};

struct Communicator {
  uint64_t tag = 0;
  // when it was added; older events of this entry are those of a communicator that had it before
  uint64_t since_ticks = 0;
  int32_t rank = 0, size = 0;
  uint32_t state = 0;  // 0: never used, or being written; 1: lives; 2: gone
  int32_t code = 0;    // the status that ended it; 0 also while what follows is being written
  int32_t peer = -1;
  char name[100] = {};
  char text[376] = {};  // text of that error
};
static_assert(sizeof(Communicator) == 512);

struct Record {
  uint64_t ticks = 0;
  uint64_t count = 0;     // elements
  uint32_t sequence = 0;  // low half of the operation's number in its communicator
  int32_t peer = -1;
  uint16_t communicator = 0;
  Event event = Event::none;
  uint8_t op = 0, dtype = 0, kind = 0;
  // stamp_of() of the round of the ring, written last: it tells the record from the one before
  uint16_t stamp = 0;
};
// A record as the four words in the ring. The last word holds the stamp. It is kWriting while one
// thread writes the other words.
using Words = std::array<uint64_t, 4>;
static_assert(sizeof(Record) == sizeof(Words) && std::has_unique_object_representations_v<Record>);
inline constexpr uint64_t kWriting = ~uint64_t{0};
static_assert(std::endian::native == std::endian::little);

// Returns the stamp of a record. It is never 0, which an empty place has, and never the stamp of
// kWriting. It changes with each round of the ring.
inline uint16_t stamp_of(uint64_t round) { return (round & 0x7fff) + 1; }

// The number of the next record lies here. It has a cache line of its own, because every event
// increments it.
inline constexpr size_t kNextAt = 1024;
inline constexpr size_t kTableAt = 4096;
inline constexpr size_t kAtOnceAt = kTableAt + kCommunicators * sizeof(Communicator);
inline constexpr uint32_t kAtOnce = 64;  // a communicator, each at its sequence number modulo this
inline constexpr size_t kRecordsAt = kAtOnceAt + kCommunicators * kAtOnce * sizeof(Record);
inline constexpr size_t file_bytes(uint32_t records) {
  return kRecordsAt + size_t{records} * sizeof(Record);
}
static_assert(sizeof(Header) <= kNextAt);

// Returns the file as JSON (fsccl_trace_read in fsccl/insight.h describes its form).
Result<std::string> read(const std::string& path);

}  // namespace fsccl::recording
