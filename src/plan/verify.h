// Proves a collective right for one set of ranks, by running the plans of all of them symbolically.
// Bytes are not computed: every range of memory holds a value of the form "rank q's input from byte
// x on", that converted, or the reduction of it over all ranks. Work is per range, never per byte,
// so size does not matter.
//
// Checked: the rules of plan.h; every operand within its buffer and every access to a peer allowed;
// no deadlock; no read of what nobody wrote; no two accesses to the same bytes, one of them a
// write, that signals and waits do not order (vector clocks, so the verdict holds for every timing,
// not for one; a put lasts from its step until its peer has the bytes); no access to a rank's
// memory after its plan ended; results written once, with the right value, and nothing else
// written.
#pragma once
#include <vector>

#include "base/status.h"
#include "plan/plan.h"

namespace fsccl {

// The value that a range of a result must hold at the end: element k of `count` is element k of the
// source, converted from `from` to `to`.
struct Expected {
  Operand operand;  // in a shared buffer: any rank
  // initial contents of an input or inout buffer; `rank` is ignored when reduced
  Operand source;
  uint64_t count = 0;  // elements
  fsccl_dtype_t from = FSCCL_UINT8;
  fsccl_dtype_t to = FSCCL_UINT8;
  bool reduced = false;    // over all ranks, in rank order
  bool any_order = false;  // reduced: in any order
};

// An in-place call: one rank passes the same memory twice, its `buffer` being part of its buffer
// `inside` from byte `offset` on. A copy from a place to itself is then no access at all.
struct Alias {
  int32_t rank = 0;
  uint32_t buffer = 0;
  uint32_t inside = 0;
  uint64_t offset = 0;
};

// `plans[r]` is rank r's. Buffers other than scratch may be written only where `expected` names
// them. The error names algorithm, rank, step and reason (FSCCL_ERR_INTERNAL: a wrong plan is a
// defect of a builder).
Status verify(const std::vector<Plan>& plans, const std::vector<Expected>& expected,
              const std::vector<Alias>& aliases = {});

}  // namespace fsccl
