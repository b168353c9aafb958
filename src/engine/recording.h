// What a flight recorder's file holds, byte for byte, and how it is read again. A file is a header, a table of communicators and a
// ring of records; whoever writes it (recorder.h) may be killed at any moment, so a record counts only if it carries the number
// that its place should have.
//
// The reader trusts nothing: a file may be cut off, be half written, or be anything.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace fsccl::recording {

inline constexpr uint64_t kMagic = 0x31'6365'7243'5346ull;  // "FSCrec1"
inline constexpr uint32_t kCommunicators = 128;             // of which entry 0 stands for all that have no place of their own
inline constexpr uint32_t kMostRecords = 1u << 22;

enum class Event : uint8_t {
  none = 0,
  submitted,  // peer: the root
  completed,
  blocked,  // peer: whom it waits for (a rank of the job)
  failed,   // peer: whom it concerns; count: the status, negated
  lost,     // peer died; operation none
  left,     // peer has left
  suspect,  // peer (of the job) has been silent; count: for so many ms, kind 1: its process is stopped; operation none
  alive,    // peer is not silent any more; count: it was for so many ms
};
const char* event_name(Event event);

// A moment on two clocks: the recorder's counter, and nanoseconds since 1970.
struct Moment {
  uint64_t ticks = 0;
  int64_t unix_ns = 0;
};

struct Header {
  uint64_t magic = kMagic;
  uint32_t record_bytes = 0, records = 0;
  int32_t rank = 0, ranks = 0;  // of the job
  int32_t pid = 0;
  uint32_t communicators = kCommunicators;
  uint64_t job = 0;  // the same on all ranks
  Moment begin, last;
  alignas(64) uint64_t next = 0;  // number of the record that comes next
  char host[64] = {};
};

struct Communicator {
  uint64_t tag = 0;
  int32_t rank = 0, size = 0;
  uint32_t state = 0;  // 0: never used, 1: lives, 2: gone
  int32_t code = 0;    // the status that ended it
  int32_t peer = -1;
  char name[100] = {};
  char text[384] = {};  // of that error
};
static_assert(sizeof(Communicator) == 512);

struct Record {
  uint64_t ticks = 0;
  uint64_t count = 0;     // elements
  uint32_t sequence = 0;  // of the operation in its communicator, its low half
  int32_t peer = -1;
  uint16_t communicator = 0;
  Event event = Event::none;
  uint8_t op = 0, dtype = 0, kind = 0;
  uint16_t stamp = 0;  // of the record's number, written last: tells it from what lay there before
};
static_assert(sizeof(Record) == 32);

// Never 0 for a record that exists, and another one each time round the ring.
inline uint16_t stamp_of(uint64_t number, uint32_t records) { return static_cast<uint16_t>(number / records % 65535 + 1); }

inline constexpr size_t kTableAt = 4096;
inline constexpr size_t kRecordsAt = kTableAt + kCommunicators * sizeof(Communicator);
inline constexpr size_t file_bytes(uint32_t records) { return kRecordsAt + size_t{records} * sizeof(Record); }

// The file as JSON (its form: fsccl_trace_read in fsccl.h).
Result<std::string> read(const std::string& path);

}  // namespace fsccl::recording
