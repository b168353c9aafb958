// Runs the steps of one operation until it is done or a peer is not there yet. Steps are the
// plan's; addresses come from the operation's bindings and, for buffers that peers published, from
// their enter signals.
#pragma once
#include "engine/engine.h"

namespace fsccl {

class Executor {
 public:
  Executor(Engine& engine, Operation& operation)
      : engine_(engine), op_(operation), plan_(operation.plan) {}
  Engine::Outcome run();
  // Behind a failure: nothing is left to do but to wait for signals that are there, all of which it
  // has taken in. Nothing that peers may have given back is touched.
  bool has_come();
  void signal(const Step& step);
  // What comes right behind a wait, if that is a copy or a fold from the slot whose signal was
  // waited for: its lines and the signal can arrive together. Else null.
  static const Step* reads_slot_behind(const Plan& plan, uint32_t wait);
  // Nothing but puts is between this signal for all and another, which is not left out.
  static bool signals_again(const Plan& plan, uint32_t step);

 private:
  // Elements of a step that its plan moves in the present round.
  struct Slice {
    uint64_t begin, count;
  };

  bool run_round();                // false: blocked, or failed
  bool perform(const Step& step);  // likewise
  bool wait(const Step& step);
  void fetch_ahead(int peer);
  bool wait_released();
  // checks a peer's fingerprint, learns where its buffers are
  bool enter(int peer, const fsccl_transport_line_t& line);
  bool enter_relayed(int peer, const fsccl_transport_line_t& line);  // likewise, at any tick
  bool learn_location(int peer, uint32_t index, const Location& location);
  bool go_otherwise();
  bool move(const Step& step);  // copy and cast
  bool put(const Step& step);
  void expect_ahead();
  bool was_placed(const Step& step, uint64_t bytes) const;
  void expect(uint32_t round, uint32_t tick, const std::array<size_t, kMaxTicks>& slot_at);
  bool fold(const Step& step);  // reduce
  bool fold_windowed(const Step& step, const Slice& part);
  bool fold_local(const Step& step);
  bool deliver(const Step& step, const void** sources, uint64_t begin, uint64_t count);
  bool fold_range(const Step& step, const void* const* sources, std::byte* dst, uint64_t count,
                  Stores stores);

  Slice slice(const Step& step) const { return slice(step, op_.round); }
  Slice slice(const Step& step, uint32_t round) const;
  // Of what this rank brings into its slot, and takes out of a peer's (sums.h).
  bool sum_moved(const Step& step, const void* src, const void* dst, uint64_t count);
  bool sum_folded(const Step& step, const Slice& part);
  void put_sum(const Place& place, const void* data, uint64_t bytes);
  bool check_sum(const Place& place, int rank, const void* data, uint64_t bytes);
  uint32_t& sum_of(const Place& place, int rank) const;
  std::byte* here(const Place& place) const {
    return op_.bindings[place.buffer].base + place.offset;
  }
  std::byte* slot_of(const Buffer& buffer, int rank) const;
  Remote there(const Place& place, int rank, uint64_t begin, fsccl_dtype_t dtype) const;
  Remote source_of(const Step& step, int rank, uint64_t begin) const;
  bool read(const Remote& remote, int rank, void* dst, uint64_t bytes);
  void give_up(fsccl_status_t code, int peer, std::string text);

  Engine& engine_;
  Operation& op_;
  const Plan* plan_;
};

}  // namespace fsccl
