#include "transports/sim/process.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "transports/sim/fiber.h"
#include "transports/sim/sockets.h"

namespace fsccl::sim {
namespace {

constexpr int kFirstPid = 1000;
constexpr int kMostTurns = 100'000;  // turns of a killed process's thread until it has ended

}  // namespace

Process* Process::running_ = nullptr;
std::vector<Process*> Process::all_;
std::optional<std::string> Process::fault;

void Process::blame(std::string what) {
  if (!fault)
    fault = running_ ? fmt::format("process {}: {}", running_->number, what) : std::move(what);
}

// While a Scope lives, the code of its process runs.
class Process::Scope {
 public:
  explicit Scope(Process& process) : before_(std::exchange(running_, &process)) {}
  ~Scope() { running_ = before_; }
  Scope(const Scope&) = delete;

 private:
  Process* const before_;
};

Process::Process(World& world, int its_number, int its_host)
    : number(its_number), host(its_host), pid(kFirstPid + its_number), world_(world) {
  all_.push_back(this);
}
Process::~Process() { std::erase(all_, this); }

Process& Process::current() {
  if (!running_) std::abort();
  return *running_;
}

Process* Process::of_pid(int pid) {
  const auto found =
      std::find_if(all_.begin(), all_.end(), [&](const Process* one) { return one->pid == pid; });
  return found == all_.end() ? nullptr : *found;
}

char Process::state() const {
  if (over_) return 'X';
  if (asleep_until_ns_ > world_.now()) return stopped_ ? 'T' : 'R';
  return 'S';
}

// Returns the time from a wake-up until the woken thread runs.
int64_t Process::latency() {
  if (world_.is_calm()) return world_.costs().wake_ns;
  return world_.chance(0.02) ? world_.between(0, 5 * kMillisecond)
                             : world_.between(kMicrosecond, 50 * kMicrosecond);
}

void Process::act_at(int64_t ns, std::function<void()> act) {
  world_.at(ns, [self = shared_from_this(), act = std::move(act)]() mutable {
    if (self->over_) return;
    const int64_t free_ns = std::max(self->asleep_until_ns_, self->busy_until_ns_);
    if (free_ns > self->world_.now()) return self->act_at(free_ns, std::move(act));
    const Scope scope(*self);
    act();
  });
}

// --- threads

std::shared_ptr<Fiber> Process::start(std::function<void()> run) {
  auto fiber = std::make_shared<Fiber>(std::move(run));
  fibers_.push_back(fiber);
  wake_at(world_.now() + latency(), fiber);
  return fiber;
}

bool Process::ended(const Fiber& fiber) { return fiber.over; }

void Process::wake_at(int64_t ns, const std::shared_ptr<Fiber>& fiber) {
  act_at(ns, [this, fiber, ticket = fiber->ticket] {
    if (!fiber->over && fiber->ticket == ticket) resume(fiber);
  });
}

void Process::resume(const std::shared_ptr<Fiber>& fiber) {
  fiber->ticket++;
  fiber->waits_for = nullptr;
  fiber->enter();
  if (!fiber->over) return;
  std::erase(fibers_, fiber);
  notify(fiber.get());
}

void Process::wait(const void* what, int64_t until_ns) {
  Fiber* const self = Fiber::inside();
  if (!self) return blame("the service thread waits");
  if (!over_) {
    self->waits_for = what;
    const auto found = std::find_if(fibers_.begin(), fibers_.end(),
                                    [&](const auto& fiber) { return fiber.get() == self; });
    wake_at(until_ns, *found);
  }
  Fiber::leave();
}

void Process::notify(const void* what) {
  for (const auto& fiber : fibers_)
    if (what && fiber->waits_for == what && fiber.get() != Fiber::inside())
      wake_at(world_.now() + latency(), fiber);
}

// --- the service thread

void Process::serve_soon() { serve_at(world_.now() + latency()); }

void Process::serve_at(int64_t ns) {
  if (over_ || !round) return;
  if (served_at_ns_ > world_.now() && served_at_ns_ <= ns) return;  // a sooner round is due
  served_at_ns_ = ns;
  act_at(ns, [this, number = ++rounds_] {
    if (number != rounds_) return;
    served_at_ns_ = 0;
    in_round_ = true;
    call();
    const int64_t sleep_ns = round();
    in_round_ = false;
    if (sleep_ns >= 0) serve_at(world_.now() + sleep_ns + latency());
  });
}

void Process::call(size_t bytes) {
  calls_++;
  if (!world_.is_calm()) return;
  const double ns = static_cast<double>(world_.costs().call_ns) +
                    world_.costs().byte_ns * static_cast<double>(bytes);
  busy_until_ns_ = std::max(busy_until_ns_, world_.now()) + static_cast<int64_t>(ns);
}

// --- what befalls a process

void Process::pause(int64_t ns, bool stopped) {
  if (over_) return;
  world_.note("process {} {} for {} ms", number, stopped ? "is stopped" : "gets no processor",
              ns / kMillisecond);
  asleep_from_ns_ = world_.now();
  asleep_until_ns_ = std::max(asleep_until_ns_, world_.now() + ns);
  paused_ = true;
  stopped_ |= stopped;
}

void Process::pause_at_send(uint64_t count, int64_t ns, bool stopped) {
  sends_left_ = count;
  at_send_ = [this, ns, stopped] { pause(ns, stopped); };
}

void Process::kill_at_send(uint64_t count) {
  sends_left_ = count;
  at_send_ = [this] { kill(); };
}

void Process::about_to_send() {
  if (sends_left_ != 0 && --sends_left_ == 0) at_send_();
}

void Process::kill() {
  if (over_) return;
  world_.note("process {} is killed", number);
  killed_ = over_ = true;
  if (on_kill) on_kill();
  close_all(*this);
  if (running_ != this) return wind_up();
  world_.at(world_.now(), [self = shared_from_this()] { self->wind_up(); });
}

void Process::exit() {
  if (over_) return;
  over_ = true;
  close_all(*this);
  world_.at(world_.now(), [self = shared_from_this()] { self->wind_up(); });
}

void Process::finish() {
  kill();
  wind_up();
}

void Process::tidy_up(const std::function<void()>& act) {
  const Scope scope(*this);
  World::leave_time(true);
  act();
  World::leave_time(false);
}

void Process::wind_up() {
  const Scope scope(*this);
  World::leave_time(true);
  for (int turn = 0; !fibers_.empty() && turn < kMostTurns; turn++) {
    const auto next = fibers_.front();
    std::rotate(fibers_.begin(), fibers_.begin() + 1, fibers_.end());
    resume(next);
  }
  if (!fibers_.empty()) blame("a thread of a killed process does not end");
  World::leave_time(false);
}

}  // namespace fsccl::sim
