#include "base/reactor.h"
#include "base/immortal.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/left_to_parent.h"
#include "base/undo.h"
#include "base/wait.h"

namespace fsccl {

namespace {

constexpr uint64_t kWakeId = 0;  // the eventfd; watcher ids begin at 1
constexpr int kEventsAtOnce = 64;
constexpr int64_t kLookNs = 1'000'000'000;  // between two looks whether the program has ended
// wait before a callback that found too little memory is called again
constexpr int64_t kShortOfMemoryNs = 10'000'000;

// Sleeps in epoll. epoll_pwait2 takes nanoseconds. Before Linux 5.11 a short sleep is rounded up to
// a millisecond.
int epoll_sleep(int epoll, epoll_event* events, int capacity, int64_t sleep_ns) {
#ifdef SYS_epoll_pwait2
  static std::atomic<bool> missing{false};
  if (!missing.load(std::memory_order_relaxed)) {
    const timespec time = {sleep_ns / 1'000'000'000, sleep_ns % 1'000'000'000};
    const long count = syscall(SYS_epoll_pwait2, epoll, events, capacity,
                               sleep_ns < 0 ? nullptr : &time, nullptr, 0);
    if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return static_cast<int>(count);
    missing = true;
  }
#endif
  const int64_t ms =
      sleep_ns < 0 ? -1 : std::min<int64_t>((sleep_ns + 999'999) / 1'000'000, 1 << 30);
  return epoll_wait(epoll, events, capacity, static_cast<int>(ms));
}

}  // namespace

Reactor& Reactor::instance() {
  static Immortal<Reactor> reactor;
  return reactor.get();
}

Reactor::Reactor() { pthread_atfork(before_fork, after_fork_parent, after_fork_child); }

void Reactor::before_fork() { instance().mutex_.lock(); }
void Reactor::after_fork_parent() { instance().mutex_.unlock(); }

// Resets the reactor in a child. The epoll set is shared with the parent, so it is not touched.
void Reactor::after_fork_child() {
  Reactor& self = instance();
  self.forked_ = true;
  const LeftToParent left;
  for (const auto& [fd, id] : self.watcher_of_fd_) left.replace(fd);
  left.replace(self.epoll_.get());
  left.replace(self.wake_.get());
  self.mutex_.unlock();
}

Status Reactor::start_locked() {
  if (forked_)
    return fail(FSCCL_ERR_FORKED,
                "the process forked after FSCCL was used: create new communicators in a program "
                "started by exec");
  if (running_) return success();
  if (thread_.joinable()) thread_.join();  // it has left its loop
  if (!epoll_.valid()) {
    Fd epoll = make_fd([] { return epoll_create1(EPOLL_CLOEXEC); });
    if (!epoll.valid()) return fail_errno(errno, "epoll_create1");
    Fd wake = make_fd([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
    if (!wake.valid()) return fail_errno(errno, "eventfd");
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLET;  // never read, because each write is a new edge
    event.data.u64 = kWakeId;
    if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0)
      return fail_errno(errno, "epoll_ctl");
    epoll_ = std::move(epoll);
    wake_ = std::move(wake);
  }
  const SignalsBlocked blocked;
  FSCCL_TRY(thread_.start([this] { run(); }));
  running_ = true;
  return success();
}

// Ends the service thread if nothing is watched, and waits for its end. If the service thread
// itself calls this, the next user that leaves does so.
void Reactor::stop_if_unused(std::unique_lock<std::mutex>& lock) {
  if (!running_ || !unused() || in_service_thread()) return;
  stopping_ = true;
  kick();
  // The wait ends when the service thread has ended, or when a new user has come. The service
  // thread always answers a kick, so nothing else need end this wait or the one below.
  wait_until([&] { return !stopping_; }, Deadline::never(), kNothingBreaks,
             UntilNotified{lock, idle_});
  if (running_ || !thread_.joinable()) return;
  Thread thread = std::move(thread_);
  lock.unlock();
  thread.join();
  lock.lock();
}

// Returns true if the service thread must end now.
bool Reactor::end_if_unused() {
  const std::lock_guard lock(mutex_);
  if (!stopping_) return false;
  stopping_ = false;
  running_ = !unused();
  if (!running_) service_thread_ = std::thread::id();
  idle_.notify_all();
  return !running_;
}

Status Reactor::watch(int fd, std::function<void()> readable, std::function<void()> writable) {
  std::unique_lock lock(mutex_);
  FSCCL_TRY(start_locked());
  if (watcher_of_fd_.contains(fd))
    return fail(FSCCL_ERR_INTERNAL, "descriptor {} is watched twice", fd);
  while (next_watcher_id_ == 0 || watchers_.contains(next_watcher_id_)) ++next_watcher_id_;
  const uint32_t id = next_watcher_id_++;
  Undo undo([&] {
    watchers_.erase(id);
    watcher_of_fd_.erase(fd);
    stop_if_unused(lock);
  });
  watchers_[id] =
      std::make_shared<Watcher>(Watcher{fd, false, std::move(readable), std::move(writable)});
  watcher_of_fd_[fd] = id;
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    return fail_errno(errno, "epoll_ctl");
  undo.keep();
  return success();
}

void Reactor::want_writable(int fd, bool wanted) {
  std::unique_lock lock(mutex_);
  const auto found = watcher_of_fd_.find(fd);
  if (forked_ || found == watcher_of_fd_.end()) return;
  Watcher& watcher = *watchers_.at(found->second);
  if (watcher.want_writable == wanted) return;
  watcher.want_writable = wanted;
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLRDHUP | (wanted ? EPOLLOUT : 0u);
  event.data.u64 = found->second;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Reactor::wait_until_idle(std::unique_lock<std::mutex>& lock, const void* what) {
  if (in_service_thread()) return;
  wait_until([&] { return current_ != what; }, Deadline::never(), kNothingBreaks,
             UntilNotified{lock, idle_});
}

void Reactor::unwatch(int fd) {
  std::unique_lock lock(mutex_);
  const auto found = watcher_of_fd_.find(fd);
  if (forked_ || found == watcher_of_fd_.end()) return;
  const uint32_t id = found->second;
  const std::shared_ptr<Watcher> watcher = watchers_.at(id);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  watchers_.erase(id);
  watcher_of_fd_.erase(fd);
  wait_until_idle(lock, watcher.get());
  stop_if_unused(lock);
}

int Reactor::add_hook(std::function<int64_t()> hook) {
  std::unique_lock lock(mutex_);
  if (!start_locked().ok()) return -1;
  const int id = next_hook_id_++;
  hooks_.push_back(std::make_shared<Hook>(Hook{id, std::move(hook)}));
  lock.unlock();
  kick();
  return id;
}

void Reactor::remove_hook(int id) {
  std::unique_lock lock(mutex_);
  const auto found =
      std::find_if(hooks_.begin(), hooks_.end(), [&](const auto& hook) { return hook->id == id; });
  if (forked_ || found == hooks_.end()) return;
  const std::shared_ptr<Hook> hook = *found;
  hook->removed = true;
  hooks_.erase(found);
  wait_until_idle(lock, hook.get());
  stop_if_unused(lock);
}

// Wakes the service thread if it sleeps. The service thread first sets sleeping_ and then reads
// kicked_, and a kicker first sets kicked_ and then reads sleeping_, so at least one of the two
// sees the other's store.
void Reactor::kick() {
  if (forked_.load(std::memory_order_relaxed)) return;
  if (kicked_.exchange(true) || !sleeping_.load()) return;
  const int saved_errno = errno;
  const uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof(one)) < 0 && errno != EAGAIN) {
    // If the write is refused, the thread must still wake up. An eventfd that is newly watched for
    // writing is ready at once.
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLOUT | EPOLLET;
    event.data.u64 = kWakeId;
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, wake_.get(), &event);
  }
  errno = saved_errno;
}

bool Reactor::in_service_thread() const {
  return service_thread_.load() == std::this_thread::get_id();
}

template <class Call>
void Reactor::run_unlocked(std::unique_lock<std::mutex>& lock, const void* what, Call call) {
  current_ = what;
  lock.unlock();
  try {
    call();
  } catch (const std::bad_alloc&) {
    short_of_memory_ = true;
  }
  lock.lock();
  current_ = nullptr;
  idle_.notify_all();
}

int64_t Reactor::run_hooks() {
  std::unique_lock lock(mutex_);
  try {
    running_hooks_ = hooks_;  // a copy, because a hook may add and remove hooks
  } catch (const std::bad_alloc&) {
    return kShortOfMemoryNs;
  }
  int64_t sleep_ns = -1;
  for (const auto& hook : running_hooks_) {
    if (hook->removed) continue;
    int64_t wanted_ns = -1;
    run_unlocked(lock, hook.get(), [&] { wanted_ns = hook->run(); });
    if (wanted_ns >= 0) sleep_ns = sleep_ns < 0 ? wanted_ns : std::min(sleep_ns, wanted_ns);
  }
  running_hooks_.clear();
  return sleep_ns;
}

void Reactor::dispatch(uint32_t watcher_id, uint32_t events) {
  std::unique_lock lock(mutex_);
  const auto found = watchers_.find(watcher_id);
  if (found == watchers_.end()) return;
  const std::shared_ptr<Watcher> watcher = found->second;
  if ((events & EPOLLOUT) != 0 && watcher->writable)
    run_unlocked(lock, watcher.get(), [&] { watcher->writable(); });
  if ((events & ~uint32_t{EPOLLOUT}) != 0 && watchers_.contains(watcher_id))
    run_unlocked(lock, watcher.get(), [&] { watcher->readable(); });
}

void Reactor::wait_for_events(int64_t sleep_ns) {
  sleeping_ = true;
  if (kicked_.load()) sleep_ns = 0;
  if (std::exchange(short_of_memory_, false)) {
    fsccl::sleep_ns(kShortOfMemoryNs);
    sleep_ns = 0;
  }
  epoll_event events[kEventsAtOnce];
  const int count = epoll_sleep(epoll_.get(), events, kEventsAtOnce, sleep_ns);
  sleeping_ = false;
  kicked_ = false;
  for (int i = 0; i < count; ++i)
    if (events[i].data.u64 != kWakeId)
      dispatch(static_cast<uint32_t>(events[i].data.u64), events[i].events);
}

// Ends the process after pthread_exit() in main(). The process would live until its last thread has
// ended, and this thread, for which no thread waits any more, would keep it alive forever. A new
// thread ends the process, because exit handlers may wait for the service thread. The new thread
// also takes the pending signals that no other thread could take.
void Reactor::end_with_program() {
  if (ending_ || now_ns() < next_look_ns_) return;
  next_look_ns_ = now_ns() + kLookNs;
  try {
    if (!only_library_threads_left()) return;
    Thread ender;
    ending_ = ender
                  .start([] {
                    sigset_t none;
                    sigemptyset(&none);
                    pthread_sigmask(SIG_SETMASK, &none, nullptr);
                    std::exit(0);
                  })
                  .ok();
    if (ending_) ender.leave();
  } catch (const std::bad_alloc&) {  // the next look tries again
  }
}

void Reactor::run() {
  pthread_setname_np(pthread_self(), "fsccl");
  service_thread_ = std::this_thread::get_id();
  while (!end_if_unused()) {
    const int64_t sleep_ns = run_hooks();
    end_with_program();
    wait_for_events(sleep_ns < 0 ? kLookNs : std::min(sleep_ns, kLookNs));
  }
}

}  // namespace fsccl
