// How a rank learns of the death of a neighbour on this host before the link ends. The system
// closes the connections of a killed process only after it has taken the process's memory, and not
// at all while another process shares them. The threads end before that, so a rank watches the
// thread that beats for the neighbour. This thread runs until the neighbour leaves, and the
// neighbour says in the table of heartbeats beforehand that it leaves.
#include <algorithm>

#include "base/reactor.h"
#include "base/undo.h"
#include "bootstrap/member_info.h"
#include "bootstrap/neighbourhood.h"
#include "bootstrap/tree.h"

namespace fsccl {

// Watches the beating threads of the neighbours on this host that are not watched yet. Runs in the
// service thread.
void TreeJob::watch_ends() {
  for (const LinkPtr& link : links_) {
    const int32_t rank = link->rank;
    if (rank < 0 || ends_.contains(rank) || same_process(member(rank), member(config_.rank)))
      continue;
    const int32_t thread = beating_thread(rank);
    if (thread == 0) continue;
    ThreadEnd& end = ends_[rank];
    end = {thread, end_of_thread(member(rank).pid, member(rank).start_time, thread)};
    if (!end.fd.valid()) continue;
    const auto ended = [job = weak_from_this(), watched = std::weak_ptr(link)] {
      const auto strong_job = job.lock();
      const auto strong_link = watched.lock();
      if (!strong_job || !strong_link) return;
      Undo undo([&] { strong_job->break_off(strong_link); });
      strong_job->on_thread_end(strong_link);
      undo.keep();
    };
    if (!Reactor::instance().watch(end.fd.get(), ended).ok()) end.fd = Fd();
  }
}

void TreeJob::on_thread_end(const LinkPtr& link) {
  on_readable(link);  // the link may hold what the rank has said before
  {
    const std::lock_guard lock(mutex_);
    const auto end = ends_.find(link->rank);
    if (end == ends_.end()) return;
    Reactor::instance().unwatch(end->second.fd.get());  // does not wait: this is the service thread
    end->second.fd = Fd();
    const bool has_link = std::find(links_.begin(), links_.end(), link) != links_.end();
    if (has_link && beating_thread(link->rank) == end->second.thread) link_closed(link, "ended");
  }
  deliver_lives();
  deliver_losses();
}

}  // namespace fsccl
