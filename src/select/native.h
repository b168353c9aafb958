// Chooses the algorithm of a collective on memory of a GPU. NCCL, or an exchange of parts by UCX,
// carries out the whole operation; or this library exchanges the parts and sums them by one kernel;
// or the bytes are staged through host memory. Each algorithm is a candidate with a predicted time.
// A candidate that must not be chosen has an obstacle. The cheapest candidate without an obstacle
// wins, unless a rule (rules.h) names another one without an obstacle.
//
// All ranks make the same choice. The facts on which it depends were agreed before
// (comm/device/agreement.h). Predictions are made from constants, or from the times in a tuning
// file, whose content is the same on all ranks.
//
// The plan of an algorithm has native steps (plan/native_plans.h).
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "select/select.h"

namespace fsccl {

inline constexpr size_t kNativeAlgorithms = kNativeNames.size();

struct NativeCall {
  OpCode op{};
  uint64_t bytes = 0;  // bytes of the larger buffer
  int ranks = 1;
  bool by_nccl = false;   // parts are exchanged by NCCL, and not by UCX
  bool one_host = false;  // all ranks are on one host
  // By algorithm: the reason why it must not be chosen, or empty.
  std::array<std::string_view, kNativeAlgorithms> obstacles{};
};

struct NativeCandidate {
  NativeAlgorithm algorithm{};
  std::string_view obstacle;
  double ns = 0;          // predicted
  bool measured = false;  // the prediction is a time from a tuning file
  bool chosen = false;
};

struct NativeChoice {
  NativeAlgorithm algorithm{};
  std::string why;
  std::array<NativeCandidate, kNativeAlgorithms> candidates{};
};

// Returns the time of an algorithm: the measured one if a tuning file has it, else the predicted
// one.
double native_ns(const NativeCall& call, NativeAlgorithm algorithm, const SelectOptions& options);
// Returns the algorithm. Logs once that a rule is not followed.
NativeAlgorithm choose_native(const NativeCall& call, const SelectOptions& options);
// Returns the algorithm with the reasons of the choice, for fsccl_explain().
NativeChoice explain_native(const NativeCall& call, const SelectOptions& options);

}  // namespace fsccl
