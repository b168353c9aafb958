#include "select/unit_algorithm.h"

#include <fmt/format.h>

#include "select/native.h"
#include "topo/connection.h"

namespace fsccl {
namespace {

constexpr double kLaunchNs = 2'000;  // a kernel or a batch of copies, on an H200 (docs/gpu.md)
constexpr double kLaunches = 5;      // cast, ready, wait, copy and done (stream_plan.h)

// The order is that of UnitAlgorithm.
constexpr std::array kUnitAlgorithms{Algorithm::p2p, Algorithm::collectives};

double predicted_ns(const UnitCall& call, UnitAlgorithm algorithm, const SelectOptions& options) {
  if (algorithm == UnitAlgorithm::collectives) {
    // The unit casts into its slot, and then gathers. NCCL's time stands for the collectives.
    const NativeCall gather{OpCode::all_gather, call.bytes, call.ranks, true, call.one_host, {}};
    return kLaunchNs + native_ns(gather, NativeAlgorithm::nccl, options);
  }
  const double others = static_cast<double>(call.ranks - 1) / std::max(call.ranks, 1);
  return kLaunches * kLaunchNs +
         others * static_cast<double>(call.bytes) / topo::traits(topo::LinkClass::pcie).gb_per_s;
}

}  // namespace

UnitCall unit_call(uint64_t bytes, int ranks, bool one_host, DeviceTransport asked,
                   std::string_view unreached) {
  UnitCall call{bytes, ranks, one_host, {}};
  std::string_view &p2p = call.obstacles[0], &collectives = call.obstacles[1];
  if (asked == DeviceTransport::kP2p)
    collectives = "FSCCL_DEVICE_TRANSPORT is p2p";
  else if (asked != DeviceTransport::kAuto)
    p2p = "FSCCL_DEVICE_TRANSPORT is neither auto nor p2p";
  else
    p2p = unreached;
  return call;
}

UnitChoice choose_unit_algorithm(const UnitCall& call, const SelectOptions& options) {
  UnitChoice choice;
  const auto at = [&](UnitAlgorithm algorithm) -> UnitCandidate& {
    return choice.candidates[static_cast<size_t>(algorithm)];
  };
  for (const UnitAlgorithm algorithm : {UnitAlgorithm::p2p, UnitAlgorithm::collectives}) {
    const auto i = static_cast<size_t>(algorithm);
    const NativePrice* const known = measured_price(options.native.get(), OpCode::unshard,
                                                    kUnitAlgorithms[i], options.host_shape);
    at(algorithm) = {algorithm, call.obstacles[i],
                     known ? known->at(call.bytes) : predicted_ns(call, algorithm, options),
                     known != nullptr};
  }
  const UnitCandidate &p2p = at(UnitAlgorithm::p2p), &collectives = at(UnitAlgorithm::collectives);
  choice.algorithm = !p2p.obstacle.empty()           ? UnitAlgorithm::collectives
                     : !collectives.obstacle.empty() ? UnitAlgorithm::p2p
                     : collectives.ns < p2p.ns       ? UnitAlgorithm::collectives
                                                     : UnitAlgorithm::p2p;
  choice.why = "least predicted time of the candidates without an obstacle";
  const Rule* const rule = options.rule(rule_of_device, OpCode::unshard, call.bytes);
  if (!rule) return choice;
  const auto named =
      rule->algorithm == Algorithm::p2p ? UnitAlgorithm::p2p : UnitAlgorithm::collectives;
  if (at(named).obstacle.empty()) {
    choice.algorithm = named;
    choice.why = rule->origin + " says so";
  } else {
    choice.why =
        fmt::format("{}; {} is not followed: {}", choice.why, rule->origin, at(named).obstacle);
  }
  return choice;
}

}  // namespace fsccl
