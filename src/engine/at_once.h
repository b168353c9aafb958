// A call that is all in its signals, waited for, and issued where nothing else is under way: done at once, without a place in the
// ring of operations. Its plan is only signals, waits, copies of what signals can carry, and local folds, so it touches no peer's
// memory and needs no slot.
//
// Whatever is out of the ordinary (a peer that is not there after some looks, one that calls something else, a window that is not
// free) goes on in the ring, from the step that the call has come to: there it is waited for, failed and told like every operation.
#pragma once
#include "engine/engine.h"

namespace fsccl {

struct SmallCall {
  const Plan* plan = nullptr;
  const OperationSettings* settings = nullptr;
  const Fingerprint* fingerprint = nullptr;  // its sequence is set by the engine
  std::array<std::byte*, 3> buffers{};       // of the plan, by index
};

bool small_enough(const Plan& plan, const OperationSettings& settings);

class AtOnce {
 public:
  // By the thread that submits, where it may (Engine::may_run_at_once).
  AtOnce(Engine& engine, const SmallCall& call, uint64_t sequence);
  // False: it goes on in the ring.
  bool run();
  void go_on_in_ring() const;

 private:
  void signal(const Step& step);
  bool wait(const Step& step);
  const fsccl_transport_line_t* await(int peer, uint32_t tick);
  bool fold(const Step& step);
  std::byte* at(const Place& place) const { return call_.buffers[place.buffer] + place.offset; }

  Engine& engine_;
  const SmallCall& call_;
  Fingerprint what_;
  const uint32_t tick_;
  uint32_t step_ = 0;
  int peer_ = 0;  // next of a wait for all
  int looks_;     // left
};

}  // namespace fsccl
