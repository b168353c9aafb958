#include "bootstrap/beat_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/reserve_file.h"

namespace fsccl {

Result<Fd> BeatTable::create(uint64_t job, size_t rows) {
  Fd fd = make_fd([] { return memfd_create("fsccl-beats", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
  if (!fd.valid()) return fail_errno(errno, "memfd_create for heartbeats");
  const size_t bytes = bytes_of(rows);
  const Header header{kMagic, job, rows};
  // The memory is reserved now, so that no beat can meet a shortage of memory.
  uint64_t reserved = 0;
  if (const int error = reserve_file(fd.get(), &reserved, bytes))
    return fail_errno(
        error, fmt::format("cannot reserve {} bytes of shared memory for heartbeats", bytes));
  if (const int error =
          write_all(fd.get(), {reinterpret_cast<const char*>(&header), sizeof header}))
    return fail_errno(error, "writing the table of heartbeats");
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
    return fail_errno(errno, "cannot seal the table of heartbeats");
  return fd;
}

Result<std::unique_ptr<BeatTable>> BeatTable::map(const Fd& fd, uint64_t job, size_t rows) {
  Header header{};
  struct stat st{};
  const size_t bytes = bytes_of(rows);
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  const bool sealed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
  if (!sealed || fstat(fd.get(), &st) || static_cast<size_t>(st.st_size) != bytes ||
      pread(fd.get(), &header, sizeof header, 0) != sizeof header || header.magic != kMagic ||
      header.job != job || header.rows != rows)
    return fail(
        FSCCL_ERR_PROTOCOL,
        "the table of heartbeats that another rank published is not one of this job: run the "
        "same version");
  std::unique_ptr<BeatTable> table(new BeatTable);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED)
    return fail_errno(errno, fmt::format("mmap of {} bytes for heartbeats", bytes));
  table->memory_ = static_cast<std::byte*>(memory);
  table->bytes_ = bytes;
  return table;
}

BeatTable::~BeatTable() {
  if (memory_) munmap(memory_, bytes_);
}

void BeatTable::beat(size_t row, int64_t now_ns, int32_t thread) {
  std::atomic_ref(at(row).thread).store(thread, std::memory_order_relaxed);
  // This store pairs with the load in last(): a reader that sees the beat sees the thread, too.
  std::atomic_ref(at(row).beat_ns).store(now_ns, std::memory_order_release);
}

void BeatTable::leave(size_t row) {
  // This store pairs with the load in last().
  std::atomic_ref(at(row).beat_ns).store(kLeft, std::memory_order_release);
}

int64_t BeatTable::last(size_t row) const {
  // This load pairs with the stores in beat() and leave().
  return std::atomic_ref(at(row).beat_ns).load(std::memory_order_acquire);
}

int64_t BeatTable::age_ns(size_t row, int64_t now_ns) const {
  const int64_t beat_ns = last(row);
  return beat_ns < 0 || beat_ns > now_ns ? 0 : now_ns - beat_ns;
}

int32_t BeatTable::thread(size_t row) const {
  return std::atomic_ref(at(row).thread).load(std::memory_order_relaxed);
}

}  // namespace fsccl
