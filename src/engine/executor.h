// Runs the steps of one operation until it is done or a peer is not there yet. Steps are the plan's; addresses come from the
// operation's bindings and, for buffers that peers published, from their enter signals.
#pragma once
#include "engine/engine.h"

namespace fsccl {

class Executor {
 public:
  Executor(Engine& engine, Operation& operation) : engine_(engine), op_(operation), plan_(*operation.plan) {}
  Engine::Outcome run();

 private:
  void signal(const Step& step);
  bool wait(const Step& step);  // false: blocked
  bool wait_released();
  bool enter(int peer, const fsccl_transport_line_t& line);  // checks a peer's fingerprint
  bool learn_locations(int peer, const fsccl_transport_line_t& line);
  bool move(const Step& step);  // copy and cast
  bool fold(const Step& step);  // reduce
  bool fold_windowed(const Step& step, uint64_t element_bytes);
  bool fold_local(const Step& step);
  bool fold_range(const Step& step, const void* const* sources, int n, std::byte* dst, uint64_t count);

  std::byte* here(const Place& place) const { return op_.bindings[place.buffer].base + place.offset; }
  Remote there(const Place& place, int rank) const;
  bool read(const Remote& remote, int rank, void* dst, uint64_t bytes);
  void give_up(fsccl_status_t code, int peer, std::string text);

  Engine& engine_;
  Operation& op_;
  const Plan& plan_;
};

}  // namespace fsccl
