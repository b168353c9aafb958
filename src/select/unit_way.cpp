#include "select/unit_way.h"

#include <fmt/format.h>

#include "select/native.h"
#include "topo/connection.h"

namespace fsccl {
namespace {

constexpr double kLaunchNs = 2'000;  // a kernel or a batch of copies, on an H200 (docs/gpu.md)
constexpr double kLaunches = 5;      // cast, ready, wait, copy and done (unit/device/README.md)

constexpr std::array kAlgorithms{Algorithm::p2p, Algorithm::collectives};  // by UnitWay

double predicted_ns(const UnitCall& call, UnitWay way, const SelectOptions& options) {
  if (way == UnitWay::collectives) {
    // The unit casts into its slot, and gathers then by the cheapest means that there may be.
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

UnitChoice choose_unit_way(const UnitCall& call, const SelectOptions& options) {
  UnitChoice choice;
  const auto at = [&](UnitWay way) -> UnitCandidate& {
    return choice.candidates[static_cast<size_t>(way)];
  };
  for (const UnitWay way : {UnitWay::p2p, UnitWay::collectives}) {
    const auto i = static_cast<size_t>(way);
    const NativePrice* const known =
        measured_price(options.native.get(), OpCode::unshard, kAlgorithms[i], options.spread);
    at(way) = {way, call.obstacles[i],
               known ? known->at(call.bytes) : predicted_ns(call, way, options), known != nullptr};
  }
  const UnitCandidate &p2p = at(UnitWay::p2p), &collectives = at(UnitWay::collectives);
  choice.way = !p2p.obstacle.empty()           ? UnitWay::collectives
               : !collectives.obstacle.empty() ? UnitWay::p2p
               : collectives.ns < p2p.ns       ? UnitWay::collectives
                                               : UnitWay::p2p;
  choice.why = "least predicted time of the ways without an obstacle";
  const Rule* const rule = options.rule(rule_of_device, OpCode::unshard, call.bytes);
  if (!rule) return choice;
  const auto named = rule->algorithm == Algorithm::p2p ? UnitWay::p2p : UnitWay::collectives;
  if (at(named).obstacle.empty()) {
    choice.way = named;
    choice.why = rule->origin + " says so";
  } else {
    choice.why =
        fmt::format("{}; {} is not followed: {}", choice.why, rule->origin, at(named).obstacle);
  }
  return choice;
}

}  // namespace fsccl
