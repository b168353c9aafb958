// Chooses the way that a unit on GPUs moves its bytes from slot to slot: by peer-to-peer access, or
// by the collectives of its communicator, which choose for themselves (native.h). Each way is a
// candidate with the predicted time of a gather of the whole unit, or with the obstacle that rules
// it out. The cheapest without an obstacle wins, unless a rule for `unit_unshard` (rules.h) names
// the other one. A unit's reduction goes the way of its gather, for both have the same obstacles.
//
// All ranks choose alike: the obstacles were agreed before (pool/device/reach.h), and times are
// made of constants, or of those in a tuning file, whose content is the same on all.
#pragma once
#include <array>
#include <string>
#include <string_view>

#include "select/select.h"

namespace fsccl {

enum class UnitAlgorithm : uint8_t { p2p, collectives };
inline constexpr std::array<std::string_view, 2> kUnitAlgorithmNames{"p2p", "collectives"};

struct UnitCall {
  uint64_t bytes = 0;  // bytes of the gathered parameters
  int ranks = 1;
  bool one_host = false;  // all ranks are on one host
  // By way: why it must not be taken; empty where it may be.
  std::array<std::string_view, kUnitAlgorithmNames.size()> obstacles{};
};

// The gather of a unit of so many bytes under FSCCL_DEVICE_TRANSPORT. `unreached`: why ranks do not
// reach each other's slots; empty: they do.
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
  std::array<UnitCandidate, kUnitAlgorithmNames.size()> candidates{};  // by way
};

// Does not announce a rule that is not followed: `why` tells it.
UnitChoice choose_unit_algorithm(const UnitCall& call, const SelectOptions& options);

}  // namespace fsccl
