// Messages for people: "fsccl[rank] level: text". Each message is one line and one write, so lines
// of ranks that share a file never mix. A message whose level is off costs one load, and its
// arguments are not evaluated. Texts never contain secrets.
//
//   FSCCL_LOG(kInfo, "pool {} grew to {} bytes", name, bytes);
//   FSCCL_LOG_ONCE(kWarn, "huge pages are not available");
//   FSCCL_LOG_EVERY_MS(10'000, kWarn, "waiting for rank {}", rank);
#pragma once
#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/config.h"

namespace fsccl {

namespace internal {
extern std::atomic<int> log_level;
}  // namespace internal

inline bool log_enabled(LogLevel level) {
  return static_cast<int>(level) <= internal::log_level.load(std::memory_order_relaxed);
}

// Says where messages go from now on; an empty path means standard error. The configuration calls
// it.
Status configure_log(LogLevel level, const std::string& path);

// Sets the rank that messages of this thread name. Threads for which none is set name it, too, if
// the process has only one rank.
void set_log_rank(int rank);

// Writes one line, whatever the level. Control characters in the text become blanks.
void write_log(LogLevel level, std::string_view text);
std::string format_log_line(LogLevel level, int rank, std::string_view text);  // rank < 0: unknown

// Lets one event pass in each period and counts the others.
class RateLimit {
 public:
  explicit constexpr RateLimit(int64_t period_ms) : period_ns_(period_ms * 1'000'000) {}
  // Returns true if the message may pass. Then *suppressed is the number of messages that were held
  // back since the last one that passed.
  bool allow(int64_t now, uint64_t* suppressed);

 private:
  int64_t period_ns_;
  std::atomic<int64_t> next_ns_{INT64_MIN};
  std::atomic<uint64_t> suppressed_{0};
};

}  // namespace fsccl

#define FSCCL_LOG(level, ...)                                                   \
  do {                                                                          \
    if (::fsccl::log_enabled(::fsccl::LogLevel::level)) [[unlikely]]            \
      ::fsccl::write_log(::fsccl::LogLevel::level, ::fmt::format(__VA_ARGS__)); \
  } while (0)

// Logs the message the first time that this line is reached with its level on.
#define FSCCL_LOG_ONCE(level, ...)                                                        \
  do {                                                                                    \
    static std::atomic<bool> fsccl_log_done{false};                                       \
    if (::fsccl::log_enabled(::fsccl::LogLevel::level) && !fsccl_log_done.exchange(true)) \
      ::fsccl::write_log(::fsccl::LogLevel::level, ::fmt::format(__VA_ARGS__));           \
  } while (0)

#define FSCCL_LOG_EVERY_MS(period_ms, level, ...)                                \
  do {                                                                           \
    static ::fsccl::RateLimit fsccl_log_rate(period_ms);                         \
    uint64_t fsccl_log_held = 0;                                                 \
    if (::fsccl::log_enabled(::fsccl::LogLevel::level) &&                        \
        fsccl_log_rate.allow(::fsccl::now_ns(), &fsccl_log_held)) {              \
      std::string fsccl_log_text = ::fmt::format(__VA_ARGS__);                   \
      if (fsccl_log_held > 0)                                                    \
        fsccl_log_text += ::fmt::format(" ({} more like this)", fsccl_log_held); \
      ::fsccl::write_log(::fsccl::LogLevel::level, fsccl_log_text);              \
    }                                                                            \
  } while (0)
