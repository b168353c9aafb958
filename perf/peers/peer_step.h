// Runs the harness's FSDP step on units of the library, with fused gathers into host-shared slots
// and fused reductions of gradient slots or of the caller's own gradients. Shards and sharded
// gradients are the caller's memory, as for every peer. The harness writes gradients once, but
// reduces them once for each layer. A gradient slot is therefore taken again right after each
// reduction, before any other slot is taken, so that it keeps its place and its content.
#pragma once
#include "peer_backends.h"

namespace fsccl_peer {

// Returns units whose parameter sizes are multiples of the number of ranks, as the harness's shards
// and checks assume.
inline std::vector<fsb::Unit> even_units(const fsb::Opt& options) {
  std::vector<fsb::Unit> units = fsb::step_units(options);
  const size_t ranks = static_cast<size_t>(fsb::g_size);
  for (fsb::Unit& unit : units)
    for (size_t& count : unit.n) count = count / ranks * ranks;
  return units;
}

template <bool kSlots, bool kKeep>
class UnitStep {
 public:
  static constexpr bool keep = kKeep;
  double phase[6] = {};
  const char* params = "shared";

  UnitStep(Job& job, const std::vector<fsb::Unit>& units) : units_(units) {
    for (const fsb::Unit& unit : units) states_.push_back(make(job, unit));
  }
  ~UnitStep() {
    for (size_t u = 0; u < states_.size(); u++) {
      State& state = states_[u];
      if (state.there) must(fsccl_unit_reshard(state.unit, nullptr), "fsccl_unit_reshard");
      must(fsccl_unit_destroy(state.unit), "fsccl_unit_destroy");
      for (size_t i = 0; i < units_[u].n.size(); i++) {
        const size_t count = units_[u].n[i], part = count / static_cast<size_t>(fsb::g_size);
        fsb::page_free(state.shards[i], part * 4);
        fsb::page_free(state.sharded_grads[i], part * 4);
        if (!kSlots) fsb::page_free(state.grads[i], count * 2);
      }
    }
  }
  UnitStep(const UnitStep&) = delete;
  UnitStep& operator=(const UnitStep&) = delete;

  const char* memory() { return kSlots ? "slot-gradients" : "private-gradients"; }
  float* shard(int u, int i) {  // the caller may write to it
    State& state = at(u);
    state.changed = true;
    return static_cast<float*>(state.shards[static_cast<size_t>(i)]);
  }
  float* gshard(int u, int i) {
    return static_cast<float*>(at(u).sharded_grads[static_cast<size_t>(i)]);
  }
  uint16_t* grad(int u, int i) {
    State& state = at(u);
    if (kSlots) take_gradients(state);
    return static_cast<uint16_t*>(state.grads[static_cast<size_t>(i)]);
  }
  uint16_t* full(int u, int i) {
    if (!at(u).there) return nullptr;
    fsccl_view_t view;
    must(fsccl_unit_param(at(u).unit, static_cast<size_t>(i), &view), "fsccl_unit_param");
    return static_cast<uint16_t*>(view.data);
  }

  void gather(int u) {
    State& state = at(u);
    const double start = fsb::now_us();
    if (state.changed) must(fsccl_unit_mark_changed(state.unit), "fsccl_unit_mark_changed");
    state.changed = false;
    must(fsccl_unit_unshard(state.unit, FSCCL_UNSHARD_READ, nullptr, nullptr),
         "fsccl_unit_unshard");
    state.there = true;
    phase[1] += fsb::now_us() - start;
  }
  void reshard(int u) {
    State& state = at(u);
    if (state.there) must(fsccl_unit_reshard(state.unit, nullptr), "fsccl_unit_reshard");
    state.there = false;
  }
  void reduce(int u) {
    State& state = at(u);
    const double start = fsb::now_us();
    fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
    if (!kSlots) config.grads = state.grads.data();
    must(fsccl_unit_reduce_grads(state.unit, &config, nullptr, nullptr), "fsccl_unit_reduce_grads");
    if (kSlots) take_gradients(state);
    phase[4] += fsb::now_us() - start;
  }

 private:
  struct State {
    fsccl_unit_t unit = nullptr;
    std::vector<void*> shards, sharded_grads, grads;
    bool there = false;   // true while the parameters are gathered
    bool changed = true;  // true if a shard may have been written since the last gather
  };

  State& at(int u) { return states_[static_cast<size_t>(u)]; }

  static State make(Job& job, const fsb::Unit& unit) {
    State state;
    std::vector<fsccl_param_t> definitions;
    for (size_t count : unit.n) {
      const size_t part = count / static_cast<size_t>(fsb::g_size);
      state.shards.push_back(fsb::page_alloc(part * 4));
      state.sharded_grads.push_back(fsb::page_alloc(part * 4));
      state.grads.push_back(kSlots ? nullptr : fsb::page_alloc(count * 2));
      fsccl_param_t param = FSCCL_PARAM_INIT;
      param.dims = 1;
      param.shape[0] = static_cast<int64_t>(count);
      param.dtype = FSCCL_FLOAT32;
      param.shard = state.shards.back();
      param.sharded_grad = state.sharded_grads.back();
      definitions.push_back(param);
    }
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    config.shard_comm = job.comm();
    config.pool = job.pool();
    config.keep = kKeep ? FSCCL_KEEP_ALWAYS : FSCCL_KEEP_NONE;
    config.marks_changes = 1;
    must(fsccl_unit_create(&config, definitions.data(), definitions.size(), &state.unit),
         "fsccl_unit_create");
    return state;
  }

  // Takes the gradient slot if it is not held. Its address must not change, because the gradients
  // that the harness wrote must still be there.
  static void take_gradients(State& state) {
    for (size_t i = 0; i < state.grads.size(); i++) {
      fsccl_view_t view;
      must(fsccl_unit_grad(state.unit, i, nullptr, &view), "fsccl_unit_grad");
      if (state.grads[i] && state.grads[i] != view.data) {
        fprintf(stderr,
                "fsccl-peer: rank %d: a gradient slot moved from %p to %p while its gradients were "
                "still needed\n",
                fsb::g_rank, state.grads[i], view.data);
        exit(5);
      }
      state.grads[i] = view.data;
    }
  }

  const std::vector<fsb::Unit>& units_;
  std::vector<State> states_;
};

}  // namespace fsccl_peer
