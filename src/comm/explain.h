// Explains as JSON why a collective is carried out as it is (fsccl_explain and fsccl_explain_for in
// insight.h), on a communicator or on ranks that are only imagined.
#pragma once
#include <string>

#include "select/stages.h"

namespace fsccl {

// The ranks and the machine on which an operation runs.
struct Circumstances {
  GroupShape whole;
  bool by_hosts = false;  // the ranks can run operations in two levels (hierarchy.h)
  HierarchyMode mode = HierarchyMode::kAuto;
  std::string machine;
  std::string_view transport;
  std::string why_transport;  // if there was a choice
  // The chosen path, if the transport has several. Null: it has one, or the choice is not known
  // yet.
  const char* path = nullptr;
  topo::LinkClass link{};  // class of the link between the two farthest ranks
  // The text of kernels_json(); empty for a machine that is known only from a file.
  std::string kernels;
  // A pass over so many bytes or more has stores that bypass the caches; 0: not known.
  uint64_t streaming_bytes = 0;
};

Result<OpCode> explained_operation(std::string_view name);
// `bytes` is the size of the larger buffer.
Result<std::string> explanation(OpCode op, uint64_t bytes, const Circumstances& where);

// Ranks that are only imagined. Instead of measurements they use typical values of the topology's
// links, or the tuning file.
struct Imagined {
  int hosts = 1, per_host = 2;
  std::string topology, tuning;  // names of files; empty: this machine, and FSCCL_TUNING_FILE
};
Result<std::string> explanation_for(std::string_view operation, uint64_t bytes,
                                    const Imagined& ranks);

}  // namespace fsccl
