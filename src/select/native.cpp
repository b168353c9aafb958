#include "select/native.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "topo/connection.h"

namespace fsccl {
namespace {

// Typical values of GPUs of 2022 to 2025, which were not measured. They are good enough to order
// the candidates, whose times are far apart.
constexpr double kNcclLaunchNs = 12'000;      // the launch of NCCL's kernel, and its first step
constexpr double kExchangeLaunchNs = 20'000;  // the host waits for the stream, then for messages
constexpr double kKernelNs = 4'000;           // a launch of this library's kernel
constexpr double kStagingNs = 60'000;    // two copies, two waits for a stream, and the host's call
constexpr double kMemoryGbPerS = 1'500;  // bandwidth of a GPU's memory
constexpr double kStagingGbPerS = 20;    // between a GPU and pinned host memory
constexpr double kHostGbPerS = 8;        // rate of the host's collective

double transfer_ns(double bytes, double gb_per_s) { return bytes / gb_per_s; }

// Returns the bytes that cross this rank's link in the operation, in the direction with more bytes.
double bytes_on_link(const NativeCall& call) {
  const double share = static_cast<double>(call.ranks - 1) / std::max(call.ranks, 1);
  const double twice = call.op == OpCode::all_reduce ? 2 : 1;
  return twice * share * static_cast<double>(call.bytes);
}

double predicted_ns(const NativeCall& call, NativeAlgorithm algorithm) {
  const double link =
      topo::traits(call.one_host ? topo::LinkClass::pcie : topo::LinkClass::network).gb_per_s;
  const auto bytes = static_cast<double>(call.bytes);
  const double moved = transfer_ns(bytes_on_link(call), link);
  const double launch = call.by_nccl ? kNcclLaunchNs : kExchangeLaunchNs;
  switch (algorithm) {
    case NativeAlgorithm::nccl:
    case NativeAlgorithm::exchanged:
      return launch + moved;
    case NativeAlgorithm::summed: {
      // The parts of all ranks are written to memory and read again, which NCCL avoids.
      const double exchanges = call.op == OpCode::all_reduce ? 2 : 1;
      return exchanges * launch + moved + kKernelNs + transfer_ns(2 * bytes, kMemoryGbPerS);
    }
    case NativeAlgorithm::staged:
      return kStagingNs + transfer_ns(2 * bytes, kStagingGbPerS) +
             std::max(moved, transfer_ns(2 * bytes, kHostGbPerS));
  }
  return 0;
}

constexpr std::array kNatives{Algorithm::nccl, Algorithm::ucx, Algorithm::summed,
                              Algorithm::staged};  // in the order of NativeAlgorithm

const NativePrice* measured(const NativeCall& call, NativeAlgorithm algorithm,
                            const SelectOptions& options) {
  return measured_price(options.native.get(), call.op, kNatives[static_cast<size_t>(algorithm)],
                        options.host_shape);
}

NativeAlgorithm algorithm_of(const Rule& rule) {
  return static_cast<NativeAlgorithm>(std::find(kNatives.begin(), kNatives.end(), rule.algorithm) -
                                      kNatives.begin());
}

std::string_view obstacle(const NativeCall& call, NativeAlgorithm algorithm) {
  return call.obstacles[static_cast<size_t>(algorithm)];
}

struct Choice {
  NativeAlgorithm algorithm = NativeAlgorithm::staged;
  const Rule* rule = nullptr;  // the rule that fits the call, even if it cannot be followed
  bool followed = false;
};

Choice choose(const NativeCall& call, const SelectOptions& options) {
  Choice choice;
  choice.rule = options.rule(rule_of_device, call.op, call.bytes);
  if (choice.rule && obstacle(call, algorithm_of(*choice.rule)).empty())
    return {algorithm_of(*choice.rule), choice.rule, true};
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < kNativeAlgorithms; i++) {
    const auto algorithm = static_cast<NativeAlgorithm>(i);
    if (!obstacle(call, algorithm).empty()) continue;
    const double ns = native_ns(call, algorithm, options);
    if (ns >= least) continue;
    least = ns;
    choice.algorithm = algorithm;
  }
  return choice;
}

}  // namespace

double native_ns(const NativeCall& call, NativeAlgorithm algorithm, const SelectOptions& options) {
  const NativePrice* const known = measured(call, algorithm, options);
  return known ? known->at(call.bytes) : predicted_ns(call, algorithm);
}

NativeAlgorithm choose_native(const NativeCall& call, const SelectOptions& options) {
  const Choice choice = choose(call, options);
  if (choice.rule && !choice.followed) [[unlikely]]
    announce_ignored(*choice.rule, call.op, obstacle(call, algorithm_of(*choice.rule)));
  return choice.algorithm;
}

NativeChoice explain_native(const NativeCall& call, const SelectOptions& options) {
  const Choice choice = choose(call, options);
  NativeChoice made;
  made.algorithm = choice.algorithm;
  made.why = choice.followed ? choice.rule->origin + " says so"
             : choice.rule
                 ? fmt::format("least predicted time; {} is not followed: {}", choice.rule->origin,
                               obstacle(call, algorithm_of(*choice.rule)))
                 : "least predicted time of the candidates without an obstacle";
  for (size_t i = 0; i < kNativeAlgorithms; i++) {
    const auto algorithm = static_cast<NativeAlgorithm>(i);
    made.candidates[i] = {algorithm, obstacle(call, algorithm), native_ns(call, algorithm, options),
                          measured(call, algorithm, options) != nullptr,
                          algorithm == choice.algorithm};
  }
  return made;
}

}  // namespace fsccl
