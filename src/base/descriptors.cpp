#include "base/descriptors.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <vector>

#include "base/fd.h"

namespace fsccl {

namespace {

constexpr rlim_t kRoom = 16;

}  // namespace

Status check_descriptors(int count, const char* purpose) {
  // Another thread must not lack the descriptors that a thread opens for the check.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  std::vector<Fd> free;
  while (static_cast<int>(free.size()) < count) {
    Fd one = make_fd([] { return ::open("/", O_PATH | O_CLOEXEC); });
    const int error = errno;
    if (one.valid()) {
      free.push_back(std::move(one));
      continue;
    }
    // Another error comes from a filter that permits no open(). Nothing is known then.
    if (error != EMFILE && error != ENFILE) break;
    return fail_errno(
        error, fmt::format("{} more open files are needed to {}, and there is room for {}", count,
                           purpose, free.size()));
  }
  return success();
}

Status short_of_descriptors(int rank, const char* purpose) {
  return fail(FSCCL_ERR_LIMIT,
              "rank {} has too little room for open files to {}: raise the limit of its process "
              "(ulimit -n); its own error has the "
              "numbers",
              rank, purpose)
      .with_peer(-1, rank);
}

MoreDescriptors::MoreDescriptors(bool wanted) {
  if (!wanted || getrlimit(RLIMIT_NOFILE, &before_) != 0 || before_.rlim_cur == RLIM_INFINITY)
    return;
  rlimit more = before_;
  more.rlim_cur = std::min(before_.rlim_max, before_.rlim_cur + kRoom);
  raised_ = more.rlim_cur > before_.rlim_cur && setrlimit(RLIMIT_NOFILE, &more) == 0;
}

MoreDescriptors::~MoreDescriptors() {
  rlimit now = {};
  if (raised_ && getrlimit(RLIMIT_NOFILE, &now) == 0 && now.rlim_max >= before_.rlim_cur) {
    now.rlim_cur = before_.rlim_cur;
    (void)setrlimit(RLIMIT_NOFILE, &now);
  }
}

}  // namespace fsccl
