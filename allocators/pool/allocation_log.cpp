#include "allocators/pool/allocation_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <iterator>

#include "base/log.h"

namespace fsccl {
namespace {

constexpr size_t kMostCollected = 64u << 10;
constexpr std::string_view kHead = "Thread,Time,Action,Pointer,Size,Stream\n";

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<AllocationLog>> AllocationLog::open(const std::string& path, const std::string& setting) {
  auto refused = [&](int error) {
    return fail(FSCCL_ERR_CONFIG, "{} '{}' cannot be written: {}; name a file in a folder that is there, or unset it", setting,
                path, std::strerror(error));
  };
  Fd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600));
  if (!fd.valid()) return refused(errno);
  struct stat file {};
  // Pools of several ranks may share the file: one writes its head.
  if (::flock(fd.get(), LOCK_EX) != 0 || ::fstat(fd.get(), &file) != 0) return refused(errno);
  if (!S_ISREG(file.st_mode)) return refused(EINVAL);
  const bool headed = file.st_size > 0 || write_all(fd.get(), kHead);
  const int error = errno;
  ::flock(fd.get(), LOCK_UN);
  if (!headed) return refused(error);
  return std::unique_ptr<AllocationLog>(new AllocationLog(path, setting, std::move(fd)));
}

void AllocationLog::line(int64_t time_us, const char* action, uint64_t address, uint64_t bytes, uint64_t stream) {
  if (!fd_.valid()) return;
  if (const int64_t second = time_us / 1'000'000; second != second_) {
    std::tm parts{};
    const time_t time = second;
    localtime_r(&time, &parts);
    clock_ = fmt::format("{:%H:%M:%S}", parts);
    second_ = second;
  }
  thread_local const pid_t thread = ::gettid();
  fmt::format_to(std::back_inserter(lines_), "{},{}.{:06},{},{:#x},{},{:#x}\n", thread, clock_, time_us % 1'000'000, action,
                 address, bytes, stream);
  if (lines_.size() >= kMostCollected) flush();
}

void AllocationLog::flush() {
  if (fd_.valid() && !write_all(fd_.get(), lines_)) {
    FSCCL_LOG(kWarn, "{} '{}' ends here, it cannot be written: {}", setting_, path_, std::strerror(errno));
    fd_.reset();
  }
  lines_.clear();
}

}  // namespace fsccl
