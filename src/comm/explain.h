// Why a collective is carried out as it is, as JSON (insight.h, fsccl_explain and
// fsccl_explain_for): on a communicator, or on ranks that are only imagined.
#pragma once
#include <string>

#include "select/stages.h"

namespace fsccl {

// The ranks and the machine that an operation runs on.
struct Circumstances {
  GroupShape whole;
  bool by_hosts = false;  // it has several hosts and can go by them
  HierarchyMode mode = HierarchyMode::kAuto;
  std::string machine;
  std::string_view transport;
  std::string why_transport;  // if there was a choice
  // the chosen one of several paths of the transport; null: it has one path, or the choice is not
  // known yet
  const char* path = nullptr;
  topo::LinkClass link{};  // class of the link between the two farthest ranks
  // kernels_json(); empty for a machine that is only known from a file
  std::string kernels;
  // bytes of a pass over memory from which on its stores bypass the caches; 0: not known
  uint64_t streaming_bytes = 0;
};

Result<OpCode> explained_operation(std::string_view name);
// `bytes` of the larger buffer.
Result<std::string> explanation(OpCode op, uint64_t bytes, const Circumstances& where);

// Ranks that are only imagined: what they would find at their start is typical of the topology's
// links, or in the tuning file.
struct Imagined {
  int hosts = 1, per_host = 2;
  std::string topology, tuning;  // files; empty: this machine; FSCCL_TUNING_FILE
};
Result<std::string> explanation_for(std::string_view operation, uint64_t bytes,
                                    const Imagined& ranks);

}  // namespace fsccl
