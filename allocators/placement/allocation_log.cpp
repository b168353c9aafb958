#include "allocators/placement/allocation_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <ctime>
#include <iterator>

#include "base/log.h"
#include "base/threads.h"
#include "base/wait.h"
#include "base/whole_file.h"
#include "base/write_file.h"

namespace fsccl {
namespace {

constexpr size_t kMostCollected = 64u << 10;
constexpr int64_t kPatienceMs = 100;  // time for the reader of a FIFO to read something
constexpr int64_t kLockMs = 1000, kNapNs = 1'000'000;
constexpr std::string_view kHead = "Thread,Time,Action,Pointer,Size,Stream\n";

// Takes the lock of the file. Another program may hold it for as long as it likes, so the wait ends
// after a second, with EWOULDBLOCK. Returns an error number, or 0.
int lock(const Fd& fd) {
  int error = 0;
  const auto tried = [&] {
    error = ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    return error != EWOULDBLOCK && error != EINTR;
  };
  (void)wait_until(tried, Deadline::in_ms(kLockMs), kNothingBreaks, Naps(kNapNs));
  return error;
}

// Pools of several ranks may share the file, so only the first one writes the head, under the lock.
// A file that is not empty gets no head, so it is used even if it stays locked. Only for a regular
// file does the length tell whether it has a head already. Returns why this failed, or nothing.
std::string write_head(const Fd& fd, bool in_place) {
  const int locked = lock(fd);
  struct stat file{};
  if (::fstat(fd.get(), &file) != 0) return why_not_written(errno);
  const bool headed = !in_place && file.st_size > 0;
  if (locked == EWOULDBLOCK)
    return headed ? "" : "another process, perhaps another rank, has locked it (flock)";
  if (locked != 0) return why_not_written(locked);
  const int error = headed ? 0 : write_all(fd.get(), kHead, kPatienceMs);
  ::flock(fd.get(), LOCK_UN);
  return error == 0 ? "" : why_not_written(error);
}

}  // namespace

Result<std::unique_ptr<AllocationLog>> AllocationLog::open(const std::string& path,
                                                           const std::string& setting) {
  auto refused = [&](const std::string& why) {
    return fail(FSCCL_ERR_CONFIG,
                "{} '{}' cannot be written: {}; name a file in a folder that is there, or unset it",
                setting, path, why);
  };
  const Result<OutputTarget> place = output_target(path);
  if (!place.ok())
    return fail(FSCCL_ERR_CONFIG, "{} {}; or unset it", setting, place.status().text());
  Fd fd = place.value().in_place ? open_in_place(path) : make_fd([&] {
    return ::open(path.c_str(),
                  O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
                  0600);
  });
  if (!fd.valid()) return refused(why_not_written(errno));
  const std::string problem = write_head(fd, place.value().in_place);
  if (!problem.empty()) return refused(problem);
  return std::unique_ptr<AllocationLog>(new AllocationLog(path, setting, std::move(fd)));
}

void AllocationLog::line(int64_t time_us, const char* action, uint64_t address, uint64_t bytes,
                         uint64_t stream) {
  if (!fd_.valid()) return;
  if (const int64_t second = time_us / 1'000'000; second != second_) {
    std::tm parts{};
    const time_t time = second;
    localtime_r(&time, &parts);
    clock_ = fmt::format("{:%H:%M:%S}", parts);
    second_ = second;
  }
  fmt::format_to(std::back_inserter(lines_), "{},{}.{:06},{},{:#x},{},{:#x}\n", thread_number(),
                 clock_, time_us % 1'000'000, action, address, bytes, stream);
  if (lines_.size() >= kMostCollected) flush();
}

void AllocationLog::flush() {
  if (const int error = fd_.valid() ? write_all(fd_.get(), lines_, kPatienceMs) : 0) {
    FSCCL_LOG(kWarn, "{} '{}' ends here, it cannot be written: {}", setting_, path_,
              why_not_written(error));
    fd_.reset();
  }
  lines_.clear();
}

}  // namespace fsccl
