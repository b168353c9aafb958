// The name of an operation on this rank: a message between two ranks is a send on the first rank of
// its pair and a recv on the other, though the operation is one. Errors use the caller's name.
#pragma once
#include <string>

#include "plan/fingerprint.h"

namespace fsccl {

inline bool receives(const Fingerprint& what, int rank) {
  return what.op == OpCode::send && rank != 0;
}
inline const char* name_for(int rank, const Fingerprint& what) {
  return receives(what, rank) ? "recv" : op_name(called(what));
}
inline std::string describe_for(int rank, const Fingerprint& what) {
  const std::string text = describe(what);
  return receives(what, rank) ? "recv" + text.substr(std::string(op_name(what.op)).size()) : text;
}

}  // namespace fsccl
