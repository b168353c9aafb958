#include "base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/ascii.h"
#include "base/config_value.h"
#include "base/fd.h"
#include "base/whole_file.h"
#include "base/write_file.h"

namespace fsccl {

namespace internal {
std::atomic<int> log_level{static_cast<int>(LogLevel::kWarn)};
}  // namespace internal

namespace {

constexpr int kRankUnknown = -1;
constexpr int kRankSeveral = -2;

thread_local int thread_rank = kRankUnknown;
std::atomic<int> process_rank{kRankUnknown};
// The log file's descriptor keeps its number: a new file replaces the old one under the same
// number, so another thread never writes to a closed descriptor.
std::atomic<int> file_fd{-1};
std::atomic<bool> to_file{false};

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return "error";
    case LogLevel::kWarn:
      return "warn";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kTrace:
      return "trace";
  }
  return "";
}

}  // namespace

Status configure_log(LogLevel level, const std::string& path) {
  if (!path.empty()) {
    // The open does not block. A FIFO without a reader is an error, and a FIFO whose reader is too
    // slow loses lines.
    Fd fd = make_fd([&] {
      return ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
                    0600);
    });
    if (!fd.valid())
      return fail(FSCCL_ERR_CONFIG, "FSCCL_LOG_FILE {} cannot be opened: {}", quote(path),
                  why_not_written(errno));
    if (file_fd < 0) {
      file_fd = fd.release();
    } else if (::dup3(fd.get(), file_fd, O_CLOEXEC) < 0) {
      return fail_errno(errno, "dup3 for FSCCL_LOG_FILE");
    }
  }
  to_file = !path.empty();
  internal::log_level.store(static_cast<int>(level), std::memory_order_relaxed);
  return success();
}

void set_log_rank(int rank) {
  thread_rank = rank;
  int known = kRankUnknown;
  if (!process_rank.compare_exchange_strong(known, rank) && known != rank)
    process_rank = kRankSeveral;
}

std::string format_log_line(LogLevel level, int rank, std::string_view text) {
  std::string line = rank < 0 ? fmt::format("fsccl[-] {}: ", level_name(level))
                              : fmt::format("fsccl[{}] {}: ", rank, level_name(level));
  for (const char c : text) line += ascii::is_control(c) ? ' ' : c;
  line += '\n';
  return line;
}

void write_log(LogLevel level, std::string_view text) {
  const int rank = thread_rank >= 0 ? thread_rank : process_rank.load(std::memory_order_relaxed);
  const std::string line = format_log_line(level, rank, text);
  const int fd = to_file ? file_fd.load() : STDERR_FILENO;
  // A full file, or a pipe that has no reader any more, must not end the process.
  const FileSignalsHeld held;
  const int saved_errno = errno;
  // Each line is one write, so that lines stay whole. A line that cannot be written is lost,
  // because a message must never stop the work.
  while (::write(fd, line.data(), line.size()) < 0 && errno == EINTR) {
  }
  errno = saved_errno;
}

bool RateLimit::allow(int64_t now, uint64_t* suppressed) {
  int64_t next = next_ns_.load(std::memory_order_relaxed);
  if (now < next || !next_ns_.compare_exchange_strong(next, now + period_ns_)) {
    suppressed_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  *suppressed = suppressed_.exchange(0, std::memory_order_relaxed);
  return true;
}

}  // namespace fsccl
