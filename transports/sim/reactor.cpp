// Implements base/reactor.h in a simulated world. Each process has a reactor, whose rounds the
// world calls. Descriptors become ready as those of a system do; their callbacks run in any order,
// and some of them a round later.
#include "base/reactor.h"

#include <algorithm>
#include <utility>

#include "transports/sim/sockets.h"

namespace fsccl {
namespace {

constexpr double kLater = 0.2;  // share of the ready callbacks that are left for later

}  // namespace

Reactor::Reactor() = default;

Reactor& Reactor::instance() {
  sim::Process& process = sim::Process::current();
  if (!process.reactor) {
    const std::shared_ptr<Reactor> made(new Reactor);
    process.reactor = made;
    process.round = [reactor = made.get()] {
      reactor->wait_for_events(0);
      return reactor->run_hooks();
    };
  }
  return *static_cast<Reactor*>(process.reactor.get());
}

Status Reactor::watch(int fd, std::function<void()> readable, std::function<void()> writable) {
  if (watcher_of_fd_.contains(fd))
    return fail(FSCCL_ERR_INTERNAL, "descriptor {} is watched twice", fd);
  if (!sim::socket_of(fd)) return fail(FSCCL_ERR_LINK, "the process has ended");
  const uint32_t id = next_watcher_id_++;
  watchers_[id] =
      std::make_shared<Watcher>(Watcher{fd, false, std::move(readable), std::move(writable)});
  watcher_of_fd_[fd] = id;
  sim::Process::current().call();
  kick();
  return success();
}

void Reactor::want_writable(int fd, bool wanted) {
  const auto found = watcher_of_fd_.find(fd);
  if (found == watcher_of_fd_.end()) return;
  watchers_.at(found->second)->want_writable = wanted;
  kick();
}

void Reactor::unwatch(int fd) {
  const auto found = watcher_of_fd_.find(fd);
  if (found == watcher_of_fd_.end()) return;
  watchers_.erase(found->second);
  watcher_of_fd_.erase(found);
  sim::Process::current().call();
}

int Reactor::add_hook(std::function<int64_t()> hook) {
  const int id = next_hook_id_++;
  hooks_.push_back(std::make_shared<Hook>(Hook{id, std::move(hook)}));
  kick();
  return id;
}

void Reactor::remove_hook(int id) {
  const auto found =
      std::find_if(hooks_.begin(), hooks_.end(), [&](const auto& hook) { return hook->id == id; });
  if (found == hooks_.end()) return;
  (*found)->removed = true;
  hooks_.erase(found);
}

void Reactor::kick() { sim::Process::current().serve_soon(); }
bool Reactor::in_service_thread() const { return sim::Process::current().in_round(); }

int64_t Reactor::run_hooks() {
  running_hooks_ = hooks_;  // a hook may add and remove some
  int64_t sleep_ns = -1;
  for (const auto& hook : running_hooks_) {
    if (hook->removed) continue;
    const int64_t wanted_ns = hook->run();
    if (wanted_ns >= 0) sleep_ns = sleep_ns < 0 ? wanted_ns : std::min(sleep_ns, wanted_ns);
  }
  running_hooks_.clear();
  return sleep_ns;
}

void Reactor::dispatch(uint32_t watcher_id, uint32_t) {
  const auto found = watchers_.find(watcher_id);
  if (found == watchers_.end()) return;
  const std::shared_ptr<Watcher> watcher = found->second;
  const sim::SocketPtr socket = sim::socket_of(watcher->fd);
  if (!socket) return sim::Process::blame("a descriptor was closed that is watched");
  if (watcher->want_writable && watcher->writable && sim::writable(*socket)) watcher->writable();
  if (watchers_.contains(watcher_id) && socket->readable()) watcher->readable();
}

// Runs most of the ready callbacks in this round, and leaves the others to another round.
void Reactor::wait_for_events(int64_t) {
  sim::Process& process = sim::Process::current();
  const auto ready = [&](int fd, uint32_t id) {
    const sim::SocketPtr socket = sim::socket_of(fd);
    return !socket || socket->readable() ||
           (watchers_.at(id)->want_writable && sim::writable(*socket));
  };
  std::vector<uint32_t> called;
  for (const auto& [fd, id] : watcher_of_fd_)
    if (ready(fd, id) && (process.world().is_calm() || !process.world().chance(kLater)))
      called.push_back(id);
  std::sort(called.begin(), called.end());
  for (size_t i = called.size(); i > 1; i--)
    std::swap(called[i - 1], called[process.world().below(i)]);
  for (const uint32_t id : called)
    if (!process.over()) dispatch(id, 0);
  const auto again = [&](const auto& one) { return ready(one.first, one.second); };
  if (!process.over() && std::any_of(watcher_of_fd_.begin(), watcher_of_fd_.end(), again))
    process.serve_soon();
}

}  // namespace fsccl
