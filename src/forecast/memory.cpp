#include "forecast/memory.h"

#include <algorithm>

#include "allocators/placement/collective_region.h"
#include "base/round_up.h"
#include "fsccl/transport.h"
#include "plan/turn.h"
#include "transports/shm/shm.h"

namespace fsccl::forecast {
namespace {

constexpr uint64_t kCapacity = uint64_t{1} << 60;  // bytes of a region without memory
// steps: one is recorded, one is planned, one runs by the plan
constexpr int kSteps = 3;
// keys leave room for so many parameters of a unit
constexpr uint64_t kParamsPerUnit = 1 << 20;

// Takes and gives back slots as a pool does.
class Rehearsal {
 public:
  Rehearsal(const std::vector<const UnitLayout*>& places, const std::vector<bool>& kept,
            bool by_parameter)
      : places_(places), kept_(kept), by_parameter_(by_parameter), held_(places.size()) {
    for (size_t u = 0; u < places.size(); u++) held_[u].assign(slots_of(u), false);
  }

  Status run(const Event& event) {
    switch (event.kind) {
      case EventKind::gather:
        for (size_t k = 0; k < slots_of(event.unit); k++)
          if (!held_[event.unit][k] && bytes_of(event.unit, k)) {
            FSCCL_TRY(
                parameters_.take(key(event.unit, k), bytes_of(event.unit, k), true, ++position_));
            held_[event.unit][k] = true;
          }
        return success();
      case EventKind::give_back:
        for (size_t k = 0; k < slots_of(event.unit); k++)
          if (held_[event.unit][k] && !kept_[event.unit] &&
              (event.param == Event::kAll || event.param == k)) {
            FSCCL_TRY(parameters_.give_back(key(event.unit, k), ++position_));
            held_[event.unit][k] = false;
          }
        return success();
      case EventKind::gradients:
        return each_gradient(event, [&](uint64_t key, uint64_t bytes) -> Status {
          FSCCL_TRY(gradients_.take(key, bytes, false, ++position_));
          return success();
        });
      case EventKind::reduce:
        return each_gradient(
            event, [&](uint64_t key, uint64_t) { return gradients_.give_back(key, ++position_); });
      default:
        return success();
    }
  }
  void end_step() {
    parameters_.end_step();
    gradients_.end_step();
  }
  const CollectiveRegion& parameters() const { return parameters_; }
  const CollectiveRegion& gradients() const { return gradients_; }

 private:
  // Returns the status of a take. The place of its slot is not needed.
  static Status status_of(Result<SlotGrant> grant) { return grant.take_status(); }
  struct Region : CollectiveRegion {
    Region() : CollectiveRegion(kCapacity, true) {}
    Status take(uint64_t key, uint64_t bytes, bool stable, uint64_t position) {
      return status_of(CollectiveRegion::take(key, bytes, stable, position));
    }
  };
  size_t slots_of(size_t unit) const { return by_parameter_ ? places_[unit]->layout.size() : 1; }
  uint64_t bytes_of(size_t unit, size_t k) const { return places_[unit]->parameters.slots[k]; }
  uint64_t key(size_t unit, size_t k) const { return unit * kParamsPerUnit + k; }
  template <class Use>
  Status each_gradient(const Event& event, Use use) {
    const UnitLayout& places = *places_[event.unit];
    const bool one = by_parameter_ && event.param != Event::kAll;
    const uint64_t slot = places.gradients.slots[one ? event.param : 0];
    // The sums of a host lie behind the gradients that they sum up.
    const uint64_t extra =
        one ? places.gradient_extra * slot / std::max<uint64_t>(places.gradients.bytes, 1)
            : places.gradient_extra;
    if (slot + extra == 0) return success();
    return use(key(event.unit, one ? event.param : 0), slot + extra);
  }

  const std::vector<const UnitLayout*>& places_;
  const std::vector<bool>& kept_;
  const bool by_parameter_;
  std::vector<std::vector<bool>> held_;
  Region parameters_, gradients_;
  uint64_t position_ = 0;
};

// Returns the bytes of a rank's communicators: its ring in its host's segment, and mirrors of the
// rings of its lane. A mirror has only as many slots as the largest part of a unit from a peer
// fills.
uint64_t transport_bytes(const StepConfig& setup, const Machine& machine,
                         const std::vector<const UnitLayout*>& places) {
  const Group group = shard_group(setup, machine);
  uint64_t bytes = 0, part = 0;
  if (machine.carrier == Carrier::nccl) return 0;
  if (group.per_host > 1) bytes += shm_slot_bytes(group.per_host) * FSCCL_TRANSPORT_SLOTS;
  if (group.hosts < 2 || machine.gpu) return bytes;
  for (const UnitLayout* unit : places)
    part = std::max(part, unit->elements / static_cast<uint64_t>(group.ranks) * sizeof(float));
  const uint64_t filled = std::min(turn_bytes(lane_slot_bytes(group, machine), true, group.hosts),
                                   round_up(std::max<uint64_t>(part, 1), uint64_t{4096}));
  return bytes + filled * static_cast<uint64_t>(group.hosts) * FSCCL_TRANSPORT_SLOTS;
}

// The parameters and gradients that FSDP2 holds without this library's slots. It frees the
// parameters of a unit that is kept after the unit's backward pass. Torch makes gradients in the
// type of the computation. FSDP2 copies those of a unit to what it reduces, and keeps that until it
// reduces the next unit (torch 2.15, _fsdp_param_group.py, post_backward).
class StockSlots {
 public:
  StockSlots(const Model& model, const StepConfig& setup,
             const std::vector<const UnitLayout*>& places, const std::vector<bool>& kept)
      : places_(places),
        kept_(kept),
        gathered_(places.size()),
        size_(dtype_size(setup.wire)),
        head_(model.units[0].head_elements * size_),
        tied_(model.units[0].tied_elements * size_) {}
  // An event finds what it needs: a layer's gradients are made before its backward pass is over,
  // and copied before they are reduced. The head's gradients come after those of the loss.
  void before(const Event& event) {
    const size_t u = event.unit;
    if (event.kind == EventKind::gather && !gathered_[u]) {
      gathered_[u] = true;
      parameters_ += places_[u]->parameters.bytes;
    }
    if (event.kind == EventKind::compute && event.backward && u != 0) of_unit_ = made(u);
    // Torch adds up the two gradients of a table that is the head as well, so there are three.
    if (event.kind == EventKind::gradients && u == 0) of_head_ = made(0) + 2 * tied_;
    if (event.kind == EventKind::reduce) {
      if (u == 0) of_head_ = made(0);
      copy_ = places_[u]->gradients.bytes;
    }
  }
  void after(const Event& event) {
    const size_t u = event.unit;
    if (event.kind == EventKind::compute && event.backward && u == 0) of_head_ = head_;
    if (event.kind == EventKind::give_back && gathered_[u] && (event.backward || !kept_[u])) {
      gathered_[u] = false;
      parameters_ -= places_[u]->parameters.bytes;
    }
    if (event.kind == EventKind::reduce) (u == 0 ? of_head_ : of_unit_) = 0;
  }
  uint64_t parameters() const { return parameters_; }
  uint64_t gradients() const { return of_head_ + of_unit_ + copy_; }

 private:
  uint64_t made(size_t unit) const { return places_[unit]->reduced.elements * size_; }

  const std::vector<const UnitLayout*>& places_;
  const std::vector<bool>& kept_;
  std::vector<bool> gathered_;
  const uint64_t size_;
  const uint64_t head_;  // gradients of the head and of what else the root has behind the layers
  const uint64_t tied_;  // the part of a table of embeddings
  uint64_t parameters_ = 0, of_head_ = 0, of_unit_ = 0, copy_ = 0;
};

}  // namespace

Result<Slots> plan_slots_of(const std::vector<Event>& events,
                            const std::vector<const UnitLayout*>& places,
                            const std::vector<bool>& kept, bool by_parameter) {
  Rehearsal rehearsal(places, kept, by_parameter);
  Slots slots;
  for (int step = 0; step < kSteps; step++) {
    slots.live_parameters.clear();
    slots.live_gradients.clear();
    for (const Event& event : events) {
      FSCCL_TRY(rehearsal.run(event));
      slots.live_parameters.push_back(rehearsal.parameters().live());
      slots.live_gradients.push_back(rehearsal.gradients().live());
    }
    rehearsal.end_step();
  }
  slots.parameters = rehearsal.parameters().plan_bytes();
  slots.gradients = rehearsal.gradients().plan_bytes();
  return slots;
}

Activations activations_of(const Model& model, const StepConfig& setup) {
  Activations made;
  const double tokens = static_cast<double>(setup.batch) * setup.sequence;
  const size_t first = model.first_trained();
  for (size_t u = 0; u < model.units.size(); u++) {
    const ModelUnit& unit = model.units[u];
    const double of_backward = model.has_backward(u, first) ? tokens : 0;
    const double kept = unit.kept_bytes(setup.checkpoint);
    made.kept.push_back(of_backward * kept);
    made.again.push_back(of_backward * (unit.activation_bytes - kept));
    made.gradient.push_back(of_backward * unit.widest_bytes);
    if (!setup.fused_loss) made.loss += tokens * unit.loss_bytes;
  }
  return made;
}

std::vector<MemoryPoint> memory_points(const Model& model, const StepConfig& setup,
                                       const Machine& machine, const std::vector<Event>& events,
                                       const std::vector<const UnitLayout*>& places,
                                       const std::vector<bool>& kept, const Slots& slots) {
  const Activations activations = activations_of(model, setup);
  const auto sharers =
      static_cast<uint64_t>(shares_slots(machine) ? shard_group(setup, machine).per_host : 1);
  StockSlots stock(model, setup, places, kept);
  std::vector<MemoryPoint> points;
  double held = 0;
  uint64_t sharded = 0, all_sharded = 0;
  for (const UnitLayout* unit : places) all_sharded += unit->reduced.shard_elements;
  bool forward = true;
  const auto add = [&](size_t i, bool before, double more) {
    const size_t last = before && i > 0 ? i - 1 : i;  // the last event that is over
    MemoryPoint point{
        i,       before,     slots.live_parameters[last] / sharers, slots.live_gradients[last],
        sharded, held + more};
    if (machine.carrier == Carrier::nccl)
      point.parameter_slots = stock.parameters(), point.gradient_slots = stock.gradients();
    points.push_back(point);
  };
  for (size_t i = 0; i < events.size(); i++) {
    const Event& event = events[i];
    const size_t u = event.unit;
    stock.before(event);
    if (event.kind == EventKind::compute) {
      if (event.backward)
        add(i, true,
            std::max(forward ? activations.loss : 0.0,
                     activations.again[u] + activations.gradient[u]));
      forward = !event.backward;
      held = std::max(0.0, held + (event.backward ? -1 : 1) * activations.kept[u]);
    }
    if (event.kind == EventKind::reduce) {
      const UnitLayout& unit = *places[u];
      sharded += (event.param < unit.params.size() ? unit.params[event.param] : unit)
                     .reduced.shard_elements;
      // The largest shards of parameters may be those of different ranks.
      sharded = std::min(sharded, all_sharded);
      add(i, true, 0);
    }
    stock.after(event);
    add(i, false, 0);
  }
  for (MemoryPoint& point : points) {
    if (setup.accumulate > 1) point.sharded_gradients = sharded;  // they stay between micro-batches
    point.sharded_gradients *= dtype_size(setup.sharded_grad);
  }
  return points;
}

Memory memory_of(const StepConfig& setup, const Machine& machine,
                 const std::vector<const UnitLayout*>& places, const Slots& slots,
                 const std::vector<MemoryPoint>& points) {
  Memory memory;
  uint64_t shard = 0, trained = 0;
  for (const UnitLayout* unit : places) {
    shard += unit->shard_elements;
    trained += unit->reduced.shard_elements;
  }
  memory.shards = shard * dtype_size(setup.shard);
  memory.sharded_gradients = trained * dtype_size(setup.sharded_grad);
  memory.optimizer = static_cast<uint64_t>(static_cast<double>(trained) * setup.optimizer_bytes);
  memory.gradient_slots = slots.gradients;
  const bool shared = shares_slots(machine);
  const auto sharers = static_cast<uint64_t>(shared ? shard_group(setup, machine).per_host : 1);
  memory.host_slots = shared ? slots.parameters : 0;
  memory.parameter_slots = (slots.parameters + sharers - 1) / sharers;
  const auto bytes = [](double activations) {
    constexpr double kMost = 1e18;  // more than any rank has
    return static_cast<uint64_t>(std::min(kMost, activations));
  };
  const bool pool = machine.carrier != Carrier::nccl;
  if (!pool) memory.parameter_slots = memory.gradient_slots = 0;
  for (const MemoryPoint& point : points) {
    memory.activations = std::max(memory.activations, bytes(point.activations));
    if (pool) continue;  // a pool reserves what it has planned
    memory.parameter_slots = std::max(memory.parameter_slots, point.parameter_slots);
    memory.gradient_slots = std::max(memory.gradient_slots, point.gradient_slots);
  }
  memory.transports = transport_bytes(setup, machine, places);
  memory.context = machine.context_bytes;
  const uint64_t still = memory.shards + memory.optimizer + memory.transports + memory.context;
  for (const MemoryPoint& point : points) {
    const uint64_t slots_held = pool ? memory.parameter_slots + memory.gradient_slots
                                     : point.parameter_slots + point.gradient_slots;
    memory.at_once = std::max(
        memory.at_once, still + slots_held + point.sharded_gradients + bytes(point.activations));
  }
  return memory;
}

}  // namespace fsccl::forecast
