#include "comm/at_exit.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/immortal.h"
#include "base/reactor.h"
#include "comm/job_context.h"

namespace fsccl {
namespace {

struct Living {
  std::mutex mutex;
  std::vector<JobContext*> jobs;
  bool watched = false;
  bool ends_well = false;
};

Living& living() {
  static Immortal<Living> all;
  return all.get();
}

void note_status(int status, void*) { living().ends_well = status == 0; }

// When the library is let go: behind the program's own handlers and static destructors, which may
// still use it.
[[gnu::destructor]] void leave_all() {
  if (!living().ends_well || forked() || Reactor::instance().in_service_thread()) return;
  const std::lock_guard lock(living().mutex);
  for (JobContext* context : living().jobs) context->job().leave();
}

}  // namespace

void leave_at_exit(JobContext* context) {
  const std::lock_guard lock(living().mutex);
  living().jobs.push_back(context);
  // refused: that end will be a death
  if (!std::exchange(living().watched, true)) (void)on_exit(note_status, nullptr);
}

void forget_at_exit(JobContext* context) {
  const std::lock_guard lock(living().mutex);
  std::erase(living().jobs, context);
}

}  // namespace fsccl
