#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "session.h"

namespace fsccl::perf {
namespace {
constexpr double kTerminalEveryUs = 0.2e6, kOtherwiseEveryUs = 5e6;
}

Progress::Progress(bool active)
    : active_(active), terminal_(isatty(STDERR_FILENO) == 1), next_us_(now_us()) {
  next_us_ += terminal_ ? kTerminalEveryUs : kOtherwiseEveryUs;
}

void Progress::say(const std::function<std::string()>& text) {
  if (!active_) return;
  const double now = now_us();
  if (now < next_us_) return;
  next_us_ = now + (terminal_ ? kTerminalEveryUs : kOtherwiseEveryUs);
  if (terminal_)
    fmt::print(stderr, "\r\033[K{}", text());
  else
    fmt::print(stderr, "fsccl-perf: {}\n", text());
  std::fflush(stderr);
  shown_ = terminal_;
}

void Progress::clear() {
  if (!shown_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace fsccl::perf
