// The description of a call: 32 bytes that travel in the signal line of its first signal. Ranks
// whose fingerprints differ do not run the same program; every rank then gets an error that says
// how they differ.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>

#include "base/dtype.h"

namespace fsccl {

enum class OpCode : uint8_t {
  none = 0,
  barrier,
  all_gather,
  reduce_scatter,
  all_reduce,
  broadcast,
  unit_create,
  unshard,
  reduce_grads,
  broadcast_state,
  pool_create,
  pool_schedule,
  reduce,
  gather,
  scatter,
  all_to_all,
  all_gather_v,
  reduce_scatter_v,
  all_to_all_v,
  all_gather_list,
  reduce_scatter_list,
  broadcast_list,
  send,
};
const char* op_name(OpCode op);
inline bool reduces(OpCode op) {
  return op == OpCode::reduce_scatter || op == OpCode::all_reduce || op == OpCode::reduce ||
         op == OpCode::reduce_scatter_v || op == OpCode::reduce_scatter_list;
}

// Returns true for the plain collectives with a root.
constexpr bool rooted(OpCode op) {
  return op == OpCode::broadcast || op == OpCode::reduce || op == OpCode::gather ||
         op == OpCode::scatter;
}

// Returns true for operations of units and pools.
constexpr bool of_units(OpCode op) {
  return op >= OpCode::unit_create && op <= OpCode::pool_schedule;
}

struct Fingerprint {
  OpCode op = OpCode::none;
  uint8_t dtype = 0;
  uint8_t kind = 0;  // fsccl_op_kind_t
  // Flags of the operation, such as the unshard mode. For a stage of a collective in two levels
  // (comm/hierarchy.h), the OpCode of that collective.
  uint8_t flags = 0;
  int32_t root = -1;      // for reduce_grads by parameter: the first parameter
  uint64_t count = 0;     // elements; for reduce_grads by parameter: parameters from `root` on
  uint64_t sequence = 0;  // number of the operation in its communicator, from 1
  // A hash of the history of collective memory events and of everything else that must agree, such
  // as the scale and the unit's definition.
  uint64_t history = 0;
};
static_assert(sizeof(Fingerprint) == 32);

// Returns true for a stage of a collective in two levels.
inline bool is_stage(const Fingerprint& what) { return what.flags && !of_units(what.op); }
// Returns the operation that the program called.
inline OpCode called(const Fingerprint& what) {
  return is_stage(what) ? static_cast<OpCode>(what.flags) : what.op;
}

// Returns a hash of all fields except the sequence number. It takes less time than a full hash.
inline uint64_t gist_of(const Fingerprint& what) {
  uint64_t which;
  std::memcpy(&which, &what, sizeof which);
  return which + what.count * 0xbf58476d1ce4e5b9ull + what.history * 0x94d049bb133111ebull;
}
inline bool equal(const Fingerprint& a, const void* line_bytes) {
  return std::memcmp(&a, line_bytes, sizeof a) == 0;
}

// Returns a text like "all_gather of 10 float32 (operation 5)". That of a stage begins like
// "all_reduce, in its stage reduce_scatter".
std::string describe(const Fingerprint& fingerprint);
// The parts of a fingerprint's history that only its own rank knows.
struct HistoryParts {
  uint64_t site = 0;  // the key of the call site; 0: none
  // The sequence number of the first call whose signal was elided. This call is compared only as a
  // part of the history. 0: none.
  uint64_t unheard = 0;
};
// Returns a text of what differs, like "count 10 and 20, dtype float32 and int8".
std::string difference(const Fingerprint& mine, const Fingerprint& theirs,
                       const HistoryParts& parts);

}  // namespace fsccl
