// A small call, waited for, and issued where nothing else is under way: done at once, without a
// place in the ring of operations. Its plan is one round of signals, waits, and copies and folds of
// no more than 32 KiB: in the caller's memory, in slots, and out of peers' blocks of pools; between
// hosts, puts into mirrored slots.
//
// Whatever is out of the ordinary (a peer that is not there after some looks, one that calls
// something else, a window that is not free, buffers that cannot be touched) goes on in the ring,
// from the step that the call has come to: there it is waited for, failed and told like every
// operation.
#pragma once
#include "engine/engine.h"

namespace fsccl {

struct SmallCall {
  const Plan* plan = nullptr;
  const OperationSettings* settings = nullptr;
  const Fingerprint* fingerprint = nullptr;  // its sequence is set by the engine
  std::array<std::byte*, 3> buffers{};       // of the plan, by index; slots come behind them
  // The plan that asks where peers' buffers are, or null, and where its published ones are here.
  // Another than `plan` where the call is foreseen (foresight.h).
  const Plan* asks = nullptr;
  std::array<Location, 2> published{};
};

bool small_enough(const Plan& plan);

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
  bool enter(int peer, const fsccl_transport_line_t& line);
  bool learn(int rank, uint32_t index, const Location& location);
  const fsccl_transport_line_t* await(int peer, uint32_t tick);
  void fetch_ahead(int peer) const;
  bool copy(const Step& step) const;
  void put(const Step& step) const;
  bool fold(const Step& step);
  std::byte* in_slot(const Place& place, int rank) const {
    return engine_.slots_[static_cast<size_t>(rank)] +
           engine_.slot_at_[call_.plan->buffers[place.buffer].slot_tick] + place.offset;
  }
  bool is_slot(const Place& place) const {
    return has_slots_ && call_.plan->buffers[place.buffer].slot;
  }
  // Null: in a peer's memory that only the system reads, or that is not to be touched any more.
  std::byte* at(const Place& place, int rank) const {
    if (is_slot(place)) return in_slot(place, rank);
    if (rank == engine_.rank_) return call_.buffers[place.buffer] + place.offset;
    if (engine_.failed()) return nullptr;
    return engine_.remote(*call_.settings, place.buffer, rank).plus(place.offset).mapped;
  }
  std::byte* at(const Place& place) const { return at(place, place.rank); }

  Engine& engine_;
  const SmallCall& call_;
  Fingerprint what_;
  const uint32_t tick_;
  const bool has_slots_;
  uint32_t step_ = 0;
  int peer_ = 0;  // next of a wait for all
  int looks_;     // left
  bool unreachable_ = false;
};

}  // namespace fsccl
