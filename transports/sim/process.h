// The processes of a simulated world. Each process has a service thread, whose rounds are events of
// the world, and threads of its own, which are fibers: one of them runs at a time, until it waits.
// A process may be stopped or get no processor for a while, and may be killed whenever it acts,
// even between two pieces of what it sends.
//
// The library stands in for base/threads.cpp (threads.cpp), base/reactor.cpp (reactor.cpp) and
// base/socket.cpp (sockets.cpp). It must be linked before lib_base.
//
// The threads of a killed process run to their ends outside of time, so that their stacks and
// objects are freed: their waits end, their clock runs away, and their sockets are closed already.
// No other process learns of that.
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
  static Process& current();  // the process whose code is running
  static Process* of_pid(int pid);
  static bool any() { return running_ != nullptr; }

  World& world() const { return world_; }
  const int number, host, pid;
  bool over() const { return over_; }  // killed, or ended
  bool killed() const { return killed_; }
  // Returns the letter that proc(5) has for the state of the process.
  char state() const;

  // Starts a thread of the process. notify() is called with the fiber when it ends.
  std::shared_ptr<Fiber> start(std::function<void()> run);
  static bool ended(const Fiber& fiber);
  // The calling thread waits until notify() is called with `what`, at most until `until_ns`.
  void wait(const void* what, int64_t until_ns);
  void sleep(int64_t ns) { wait(nullptr, world_.now() + ns); }
  void notify(const void* what);

  // The service thread calls `round` when it is asked to. `round` returns after how many ns it
  // wants to be called again, or a negative number if it does not.
  std::function<int64_t()> round;
  std::shared_ptr<void> reactor;
  bool in_round() const { return in_round_; }
  void serve_soon();

  std::map<int, std::shared_ptr<Socket>> sockets;
  size_t most_sockets = 0;  // the most that were open at once

  // Counts a system call that moves so many bytes. In a calm world (World::calm()) it takes
  // processor time, during which the process does nothing else.
  void call(size_t bytes = 0);
  int64_t busy_until_ns() const { return busy_until_ns_; }
  int64_t calls() const { return calls_; }

  // The process does nothing for so long, as if it was stopped, or else as if it got no processor.
  void pause(int64_t ns, bool stopped);
  bool paused() const { return paused_; }  // true if it ever was
  bool was_stopped() const { return stopped_; }
  int64_t paused_from_ns() const { return asleep_from_ns_; }  // begin of the last pause
  int64_t paused_until_ns() const { return asleep_until_ns_; }
  void kill();
  // These two do the same when the process sends something for the `count`-th time from now on.
  void pause_at_send(uint64_t count, int64_t ns, bool stopped);
  void kill_at_send(uint64_t count);
  void about_to_send();
  std::function<void()> on_kill;
  // The program of the process has ended.
  void exit();
  // Kills the process if it lives, and frees what is left of it at once, because the world may end
  // before the event that would do so.
  void finish();
  // Runs `act` in the name of the process and outside of time, for what must be freed at the end.
  void tidy_up(const std::function<void()>& act);

  // The first forbidden action of a process, or nothing.
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
