#include "record/recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/immortal.h"
#include "base/reserve_file.h"
#include "base/undo.h"
#include "base/write_file.h"

namespace fsccl {
namespace {

using recording::Event;

struct LivingRecorders {
  std::mutex mutex;
  std::vector<Recorder*> recorders;
};
// Destructors of global objects of the program may still end communicators, or dump recorders.
LivingRecorders& living_recorders() {
  static Immortal<LivingRecorders> all;
  return all.get();
}

int64_t unix_ns() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

template <size_t N>
void copy_text(char (&to)[N], const std::string& from) {
  std::memset(to, 0, N);
  std::memcpy(to, from.data(), std::min(from.size(), N - 1));
}

// Makes a new file that only the user can read. An existing file or link of this name is refused:
// it may belong to another run, or another user may have put it there as a trap.
Result<Fd> make_file(const std::string& path) {
  Fd fd = make_fd([&] {
    return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  });
  if (fd.valid()) return fd;
  return fail(FSCCL_ERR_CONFIG, "the recorder's file {} cannot be made: {}. See FSCCL_TRACE_DIR",
              path, std::strerror(errno));
}

// Reserves the whole file now, so that a full disk is an error here and not a SIGBUS later.
Status reserve_all(const Fd& fd, const std::string& folder, size_t bytes) {
  uint64_t reserved = 0;
  int error = reserve_file(fd.get(), &reserved, bytes);
  if (error == EOPNOTSUPP) {
    const FileSignalsHeld held;
    error = posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));  // writes zeros here
  }
  if (error == 0) return success();
  return fail_errno(
      error, fmt::format("the recorder's file in {} (FSCCL_TRACE_DIR): {} bytes", folder, bytes));
}

Status write_whole(const Fd& fd, const void* bytes, size_t size, const std::string& path) {
  const int error = write_all(fd.get(), {static_cast<const char*>(bytes), size});
  return error ? fail_errno(error, fmt::format("writing {}", path)) : success();
}

// Returns the record, or a record that no reader accepts if it is being written.
recording::Words whole_record(recording::Words& from) {
  recording::Words words;
  // Each of these loads pairs with the store of the same word in Recorder::fill().
  const uint64_t before = std::atomic_ref(from[3]).load(std::memory_order_acquire);
  for (size_t i = 0; i < 3; i++)
    words[i] = std::atomic_ref(from[i]).load(std::memory_order_acquire);
  words[3] = std::atomic_ref(from[3]).load(std::memory_order_relaxed);
  return words[3] == before && before != recording::kWriting ? words : recording::Words{};
}

}  // namespace

// While a Change lives, the header tells readers of the file that the header or the table is being
// changed. The caller holds the lock.
class Recorder::Change {
 public:
  explicit Change(recording::Header* header) : changes_(header->changes) {
    // The two additions pair with the loads of `changes` in read_begin() (recording.cpp).
    changes_.fetch_add(1, std::memory_order_acq_rel);
  }
  ~Change() { changes_.fetch_add(1, std::memory_order_release); }
  Change(const Change&) = delete;

 private:
  std::atomic_ref<uint64_t> changes_;
};

std::string Recorder::file_name() const {
  return fmt::format("fsccl-{:016x}-{}.ring", header_->job, header_->rank);
}

Result<std::unique_ptr<Recorder>> Recorder::create(const Config& config) {
  std::unique_ptr<Recorder> made(new Recorder);
  const uint32_t records = std::bit_ceil(std::clamp(config.records, 64u, recording::kMostRecords));
  made->bytes_ = recording::file_bytes(records);
  recording::Header header;
  header.record_bytes = sizeof(recording::Record);
  header.records = records;
  header.rank = config.rank;
  header.ranks = config.ranks;
  header.pid = getpid();
  header.job = config.job;
  gethostname(header.host, sizeof header.host - 1);
  Fd fd;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  std::string path;
  Undo unlinking([&] {
    if (fd.valid()) ::unlink(path.c_str());
  });
  if (!config.folder.empty()) {
    made->header_ = &header;
    path = config.folder + '/' + made->file_name();
    FSCCL_ASSIGN(fd, make_file(path));
    FSCCL_TRY(reserve_all(fd, config.folder, made->bytes_));
    flags = MAP_SHARED;
  }
  void* memory = mmap(nullptr, made->bytes_, PROT_READ | PROT_WRITE, flags, fd.get(), 0);
  if (memory == MAP_FAILED)
    return fail_errno(errno, fmt::format("mmap of {} bytes for the flight recorder", made->bytes_));
  made->memory_ = static_cast<std::byte*>(memory);
  made->owner_ = getpid();
  made->header_ = reinterpret_cast<recording::Header*>(made->memory_);
  made->table_ = reinterpret_cast<recording::Communicator*>(made->memory_ + recording::kTableAt);
  made->next_ = reinterpret_cast<uint64_t*>(made->memory_ + recording::kNextAt);
  made->at_once_ = reinterpret_cast<recording::Words*>(made->memory_ + recording::kAtOnceAt);
  made->records_ = reinterpret_cast<recording::Words*>(made->memory_ + recording::kRecordsAt);
  made->mask_ = records - 1;
  made->round_bits_ = std::countr_zero(records);
  *made->header_ = header;
  made->header_->begin = made->header_->last = {ticks(), now_ns()};
  made->header_->begin_unix_ns = unix_ns();
  copy_text(made->table_[0].name, "others");
  made->table_[0].state = 1;
  const std::lock_guard lock(living_recorders().mutex);
  living_recorders().recorders.push_back(made.get());
  unlinking.keep();
  return made;
}

Recorder::~Recorder() {
  {
    const std::lock_guard lock(living_recorders().mutex);
    std::erase(living_recorders().recorders, this);
  }
  if (!memory_) return;
  if (owner_ == getpid()) look_at_clock();
  munmap(memory_, bytes_);
}

uint16_t Recorder::add(uint64_t tag, const std::string& name, int rank, int size) {
  const std::lock_guard lock(mutex_);
  // An entry that was never used is preferred to the entry of a communicator that is gone, which
  // stays readable until its place is needed.
  const auto begin = table_ + 1, end = table_ + recording::kCommunicators;
  auto free = std::find_if(begin, end, [](const auto& entry) { return entry.state == 0; });
  if (free == end)
    free = std::find_if(begin, end, [](const auto& entry) { return entry.state == 2; });
  if (free == end) return 0;
  recording::Communicator entry;
  entry.tag = tag;
  entry.since_ticks = ticks();
  entry.rank = rank;
  entry.size = size;
  copy_text(entry.name, name);
  const auto communicator = static_cast<uint16_t>(free - table_);
  const Change change(header_);
  // The exchange and the store pair with the reader of the file (recording.cpp): an entry whose
  // state is not 0 is whole, even if the process is killed or stopped between the two.
  std::atomic_ref(free->state).exchange(0, std::memory_order_acq_rel);
  *free = entry;
  std::atomic_ref(free->state).store(1, std::memory_order_release);
  std::fill_n(at_once_ + communicator * recording::kAtOnce, recording::kAtOnce, recording::Words{});
  return communicator;
}

void Recorder::remove(uint16_t communicator) {
  const std::lock_guard lock(mutex_);
  if (!communicator) return;
  const Change change(header_);
  table_[communicator].state = 2;
}

void Recorder::failed(uint16_t communicator, const Error& error, uint64_t sequence) {
  {
    const std::lock_guard lock(mutex_);
    const Change change(header_);
    recording::Communicator& entry = table_[communicator];
    // The exchange and the store pair with the reader of the file (recording.cpp): an error whose
    // code is not 0 is whole.
    std::atomic_ref(entry.code).exchange(0, std::memory_order_acq_rel);
    entry.peer = error.peer;
    copy_text(entry.text, error.text);
    std::atomic_ref(entry.code).store(error.code, std::memory_order_release);
  }
  Fingerprint what;
  what.sequence = sequence;
  put(Event::failed, communicator, what, error.peer, static_cast<uint64_t>(-error.code));
  look_at_clock();
}

// Both clocks are read together. If another thread holds the lock, nothing is noted, because the
// next look comes soon.
void Recorder::look_at_clock() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  const recording::Moment now = {ticks(), now_ns()};
  const Change change(header_);
  header_->last = now;
}

// Other threads may record meanwhile. Records that they overwrite may be missing from the file, but
// each record in the file is whole. A file that could not be written as a whole is removed.
Status Recorder::write(const std::string& path) {
  FSCCL_ASSIGN(Fd fd, make_file(path));
  Undo unlinking([&] { ::unlink(path.c_str()); });
  std::vector<std::byte> begin(recording::kAtOnceAt);
  {
    const std::lock_guard lock(mutex_);
    std::memcpy(begin.data(), memory_, sizeof(recording::Header));
    std::memcpy(begin.data() + recording::kTableAt, table_,
                recording::kCommunicators * sizeof *table_);
  }
  // This load pairs with no store: the words of a record say whether it is whole. It keeps the
  // reads below behind it.
  const uint64_t next = std::atomic_ref(*next_).load(std::memory_order_acquire);
  std::memcpy(begin.data() + recording::kNextAt, &next, sizeof next);
  FSCCL_TRY(write_whole(fd, begin.data(), begin.size(), path));
  const size_t places = (bytes_ - recording::kAtOnceAt) / sizeof(recording::Words);
  std::vector<recording::Words> part(64);  // their number divides that of any ring's
  for (size_t at = 0; at < places; at += part.size()) {
    for (size_t i = 0; i < part.size(); i++) part[i] = whole_record(at_once_[at + i]);
    FSCCL_TRY(write_whole(fd, part.data(), part.size() * sizeof part[0], path));
  }
  unlinking.keep();
  return success();
}

Status Recorder::write_all(const std::string& folder) {
  const std::lock_guard lock(living_recorders().mutex);
  for (Recorder* recorder : living_recorders().recorders) {
    recorder->look_at_clock();
    FSCCL_TRY(recorder->write(folder + '/' + recorder->file_name()));
  }
  return success();
}

}  // namespace fsccl
