// Proves a collective right for one set of ranks, by running the plans of all of them symbolically.
// Bytes are not computed: every range of memory holds a value of the form "rank q's input from byte
// x on", that converted, or the reduction of it over all ranks. Work is per range, never per byte,
// so size does not matter.
//
// The verifier checks that
//   - the rules of plan.h hold, each operand is within its buffer, and each access to a peer is
//     allowed;
//   - there is no deadlock;
//   - no step reads bytes that nobody has written;
//   - signals and waits order each two accesses to the same bytes of which one is a write. Vector
//     clocks decide this, so the verdict holds for every timing. A put lasts from its step until
//     its peer has the bytes;
//   - no rank's memory is accessed after its plan has ended;
//   - each result is written once, with the right value, and nothing else is written.
#pragma once
#include <vector>

#include "base/status.h"
#include "plan/plan.h"

namespace fsccl {

// The value that a range of a result must hold at the end: element k of `count` is element k of the
// source, converted from `from` to `to`.
struct Expected {
  Operand operand;  // in a shared buffer: any rank
  // the initial contents of an input or inout buffer; `rank` is ignored if `reduced` is set
  Operand source;
  uint64_t count = 0;  // elements
  fsccl_dtype_t from = FSCCL_UINT8;
  fsccl_dtype_t to = FSCCL_UINT8;
  bool reduced = false;    // over all ranks, in rank order
  bool any_order = false;  // reduced: in any order
};

// An in-place call: the memory of a rank's `buffer` is part of its buffer `inside`, from byte
// `offset` on. A copy of bytes to themselves is not an access.
struct Alias {
  int32_t rank = 0;
  uint32_t buffer = 0;
  uint32_t inside = 0;
  uint64_t offset = 0;
};

// `plans[r]` is the plan of rank r. Buffers other than scratch may be written only where `expected`
// names them. The error names the algorithm, the rank, the step and the reason. Its code is
// FSCCL_ERR_INTERNAL, because a wrong plan is a defect of a builder.
Status verify(const std::vector<Plan>& plans, const std::vector<Expected>& expected,
              const std::vector<Alias>& aliases = {});

}  // namespace fsccl
