// Chooses the way that a collective on memory of a GPU goes. There the steps are not this
// library's: NCCL, or an exchange of parts by UCX, carries out the whole operation natively, or
// this library exchanges the parts and sums them by one kernel, or everything goes through host
// memory. Each way is a candidate with a predicted time and, where it must not be taken, the
// obstacle; the cheapest without an obstacle wins, unless a rule (rules.h) names another one
// without an obstacle.
//
// All ranks choose alike: what the choice depends on was told to all of them before
// (comm/device/agreement.h), and predictions are made of constants, or of
// the times in a tuning file, whose content is the same on all.
//
// The plan of a way is one of native steps (plan/native_plans.h).
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
  // By way: why it must not be taken; empty where it may be.
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

// The time of a way: measured where a tuning file has it, else predicted.
double native_ns(const NativeCall& call, NativeAlgorithm algorithm, const SelectOptions& options);
// The way alone. A rule that is not followed is announced, once.
NativeAlgorithm choose_native(const NativeCall& call, const SelectOptions& options);
// The way with its reasons, for fsccl_explain().
NativeChoice explain_native(const NativeCall& call, const SelectOptions& options);

}  // namespace fsccl
