// The heartbeats of the processes of one host: an anonymous file that they all map, with a row for
// each rank of the job on that host. A rank writes its own row and reads the others' rows, so a
// beat is a store and no message.
//
// The content is not trusted. A reader takes from a row only whether its rank has left, whether the
// time of its beat has changed, and how old that is; Pulse::look() takes it for no older than the
// reader's last look. The reader asks the system about a thread only together with the number and
// the start time of the process.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/status.h"

namespace fsccl {

class BeatTable {
 public:
  static Result<Fd> create(uint64_t job, size_t rows);
  static Result<std::unique_ptr<BeatTable>> map(const Fd& fd, uint64_t job, size_t rows);
  ~BeatTable();
  BeatTable(const BeatTable&) = delete;
  BeatTable& operator=(const BeatTable&) = delete;

  void beat(size_t row, int64_t now_ns, int32_t thread);
  void leave(size_t row);
  // Returns the time of the last beat on the system's monotonic clock, 0 before the first beat, or
  // kLeft.
  int64_t last(size_t row) const;
  bool has_left(size_t row) const { return last(row) == kLeft; }
  int64_t age_ns(size_t row, int64_t now_ns) const;  // age of the last beat; 0 if impossible
  int32_t thread(size_t row) const;

 private:
  struct Header {
    uint64_t magic, job, rows;
  };
  struct Row {
    int64_t beat_ns;
    int32_t thread;
    uint32_t reserved;
  };
  static constexpr uint64_t kMagic = 0x7461'6562'4c43'5346ull;  // "FSCLbeat"
  static constexpr int64_t kLeft = -1;
  static constexpr size_t kRowsAt = 64;
  static size_t bytes_of(size_t rows) { return kRowsAt + rows * sizeof(Row); }
  BeatTable() = default;
  Row& at(size_t row) const { return reinterpret_cast<Row*>(memory_ + kRowsAt)[row]; }

  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace fsccl
