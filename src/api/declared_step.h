// A step that a program declares event by event, in the form in which the pool's regions plan it.
// An order that no program can follow is refused for each slot: a slot is taken only while it is
// not held, and given back only while it is held. A slot that is held before the step may be given
// back first, or be taken anew.
#pragma once
#include <fsccl/fsccl.h>

#include <unordered_map>
#include <vector>

#include "api/objects.h"
#include "unit/device/parameter_units.h"
#include "unit/host/host_unit.h"

namespace fsccl {

// The state of a slot, or of a unit that is unsharded, at this point of the step. It says whether
// the slot is held, and whether an event has used it.
struct DeclaredHold {
  bool now = false, touched = false;

  bool may(bool take) const { return take != now || (take && !touched); }
  void set(bool taken) { *this = {taken, true}; }
};

class DeclaredStep {
 public:
  explicit DeclaredStep(const Pool& pool) : pool_(pool) {}
  // The `number`-th event.
  Status add(const fsccl_event_t& event, size_t number);

  std::vector<CollectiveRegion::Event> shared, own;  // events of the pool's two regions
  int owner_rank = -1;  // owner of shared slots; negative: there are none
  // equal on all ranks, unless they declared different steps
  uint64_t hash = 0;

 private:
  using Held = DeclaredHold;
  struct UnitState {
    Ref<Unit> object;  // which lives until the step is declared
    Held unsharded;
    std::vector<Held> parameters, gradients;  // by slot
    bool kept = false;                        // its slot was taken, to stay
  };
  UnitState& state_of(const HostUnit& unit);
  // Sets slots_ to the slots that the event is about, given the states of the unit's slots.
  Status find_slots(const HostUnit& unit, const fsccl_event_t& event,
                    const std::vector<Held>& states, size_t number);
  Status move_unit(const HostUnit& unit, const fsccl_event_t& event, UnitState& state,
                   size_t number);
  Status move_slots(const HostUnit& unit, const SlotSet& slots, std::vector<Held>& states,
                    bool take, size_t number);
  void move(const SlotSet& slots, size_t k, bool take);

  const Pool& pool_;
  std::unordered_map<const HostUnit*, UnitState> units_;
  std::vector<size_t> slots_;
};

// The same for a pool on a GPU. A unit of such a pool has one slot for its parameters and one for
// its gradients, or consists of such units, one for each parameter.
class DeclaredDeviceStep {
 public:
  explicit DeclaredDeviceStep(const Pool& pool) : pool_(pool) {}
  Status add(const fsccl_event_t& event, size_t number);

  std::vector<StepEvent> events;
  uint64_t hash = 0;

 private:
  struct UnitState {
    DeclaredHold unsharded, gradients;
    bool kept = false;
  };
  UnitState& state_of(const DeviceUnit& unit);
  Status move_parameters(const ParameterUnits& unit, const fsccl_event_t& event, size_t number);
  Status move(const DeviceUnit& unit, fsccl_event_kind_t kind, size_t number);

  const Pool& pool_;
  std::vector<Ref<Unit>> objects_;  // which the states are of
  std::unordered_map<const DeviceUnit*, UnitState> units_;
};

}  // namespace fsccl
