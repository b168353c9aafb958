// Chooses the algorithm by which a unit on GPUs moves its bytes from slot to slot: peer-to-peer
// access, or the collectives of its communicator, for which native.h chooses. Each is a candidate
// with the predicted time of a gather of the whole unit, or with the obstacle that rules it out.
// The cheapest candidate without an obstacle wins, unless a rule for `unit_unshard` (rules.h) names
// the other one. A unit's reduction uses the algorithm of its gather, because both have the same
// obstacles. The sum over replicas is chosen as a gather of the sharded gradients of all replicas.
//
// All ranks make the same choice. The obstacles were agreed before (pool/device/reach.h). Times are
// predicted from constants, or come from a tuning file, whose content is the same on all ranks.
#pragma once
#include <array>
#include <string>
#include <string_view>

#include "select/select.h"

namespace fsccl {

enum class UnitAlgorithm : uint8_t { p2p, collectives };
inline constexpr std::array<std::string_view, 2> kUnitAlgorithmNames{"p2p", "collectives"};

struct UnitCall {
  uint64_t bytes = 0;  // bytes of what is gathered
  int ranks = 1;
  bool one_host = false;  // all ranks are on one host
  // By algorithm: the reason why it must not be chosen, or empty.
  std::array<std::string_view, kUnitAlgorithmNames.size()> obstacles{};
};

// Returns the call that gathers a unit of `bytes` bytes. `asked` is FSCCL_DEVICE_TRANSPORT.
// `unreached` is the reason why ranks cannot access each other's slots, or empty if they can.
UnitCall unit_call(uint64_t bytes, int ranks, bool one_host, DeviceTransport asked,
                   std::string_view unreached);

struct UnitCandidate {
  UnitAlgorithm algorithm{};
  std::string_view obstacle;
  double ns = 0;          // predicted
  bool measured = false;  // the prediction is a time from a tuning file
};

struct UnitChoice {
  UnitAlgorithm algorithm{};
  std::string why;
  std::array<UnitCandidate, kUnitAlgorithmNames.size()> candidates{};  // by algorithm
};

// Chooses the algorithm. A rule that is not followed is not logged, because `why` names it.
UnitChoice choose_unit_algorithm(const UnitCall& call, const SelectOptions& options);

}  // namespace fsccl
