// The processes of a simulated world. Each has a service thread, whose rounds are events, and
// threads of its own, which are fibers: one of them runs at a time, until it waits. A process may
// be stopped or get no processor for a while, and may be killed at any moment at which it acts,
// also between two pieces of what it sends.
//
// This file stands in for base/threads.cpp (threads.cpp), base/reactor.cpp (reactor.cpp) and
// base/socket.cpp (sockets.cpp): link it before lib_base.
//
// The threads of a killed process are wound up outside of time: their waits end, their clock runs
// away, and their sockets are closed already. Their stacks and objects are given back, and no other
// process learns of it.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transports/sim/world.h"

namespace fsccl::sim {

struct Fiber;
struct Socket;

class Process : public std::enable_shared_from_this<Process> {
 public:
  Process(World& world, int number, int host);
  ~Process();
  static Process& current();  // the process whose code runs
  static Process* of_pid(int pid);
  static bool any() { return running_ != nullptr; }

  World& world() const { return world_; }
  const int number, host, pid;
  bool over() const { return over_; }  // killed, or ended
  bool killed() const { return killed_; }
  // Returns the state as proc(5) has it.
  char state() const;

  // A thread of it; `over` is notified at its end.
  std::shared_ptr<Fiber> start(std::function<void()> run);
  static bool ended(const Fiber& fiber);
  // The calling thread waits for a notice of that, at most until then.
  void wait(const void* what, int64_t until_ns);
  void sleep(int64_t ns) { wait(nullptr, world_.now() + ns); }
  void notify(const void* what);

  // The service thread: `round` runs when asked for, and returns when it wants to run again: ns, or
  // negative.
  std::function<int64_t()> round;
  std::shared_ptr<void> reactor;
  bool in_round() const { return in_round_; }
  void serve_soon();

  std::map<int, std::shared_ptr<Socket>> sockets;
  size_t most_sockets = 0;  // at once

  // A call of the system that moves so many bytes: it takes the processor time that the world says
  // (World::calm()), for which the process does nothing else.
  void call(size_t bytes = 0);
  int64_t busy_until_ns() const { return busy_until_ns_; }
  int64_t calls() const { return calls_; }

  // It does nothing for so long: as if stopped, else as if there was no processor for it.
  void pause(int64_t ns, bool stopped);
  bool paused() const { return paused_; }  // ever
  bool was_stopped() const { return stopped_; }
  int64_t paused_from_ns() const { return asleep_from_ns_; }  // the last time
  int64_t paused_until_ns() const { return asleep_until_ns_; }
  void kill();
  // The same, when it sends something for the n-th time from now on.
  void pause_at_send(uint64_t count, int64_t ns, bool stopped);
  void kill_at_send(uint64_t count);
  void about_to_send();
  std::function<void()> on_kill;
  // Its program has ended.
  void exit();
  // Kills it if it lives, and gives back what is left of it at once: the world may never come to do
  // that.
  void finish();
  // Runs that in its name, outside of time: what is to be given back at the end.
  void tidy_up(const std::function<void()>& act);

  // A forbidden action of the process.
  static std::optional<std::string> fault;
  static void blame(std::string what);

 private:
  class Scope;
  void act_at(int64_t ns, std::function<void()> act);
  void wake_at(int64_t ns, const std::shared_ptr<Fiber>& fiber);
  void serve_at(int64_t ns);
  void resume(const std::shared_ptr<Fiber>& fiber);
  void wind_up();
  int64_t latency();

  static Process* running_;
  static std::vector<Process*> all_;
  World& world_;
  bool over_ = false, killed_ = false, in_round_ = false, stopped_ = false, paused_ = false;
  std::function<void()> at_send_;
  uint64_t sends_left_ = 0, rounds_ = 0;
  int64_t asleep_from_ns_ = 0, asleep_until_ns_ = 0, served_at_ns_ = 0;
  int64_t busy_until_ns_ = 0, calls_ = 0;
  std::vector<std::shared_ptr<Fiber>> fibers_;
};

}  // namespace fsccl::sim
