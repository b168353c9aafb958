// The memory of one buffer of one rank, or of one shared buffer, during verification: a map from
// ranges of bytes to the values that they hold. Ranges never overlap.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/plan.h"

namespace fsccl {

// The value of a range: elements of `to` that come from elements of `from`, the first of which lies
// at `offset` of a rank's initial buffer.
struct SymbolicValue {
  int32_t rank = 0;  // the rank that has the buffer; 0 for a reduced value
  uint32_t buffer = 0;
  uint64_t offset = 0;
  fsccl_dtype_t from = FSCCL_UINT8;
  fsccl_dtype_t to = FSCCL_UINT8;
  bool reduced = false;    // the reduction over all ranks
  bool any_order = false;  // if reduced: not in rank order, but in an order of the native step
  bool undivided = false;  // if reduced: a `divide` step must still make an average of it

  // Bytes that were neither converted nor reduced. They may be read as any dtype and cut anywhere.
  bool raw() const { return !reduced && from == to; }
  bool operator==(const SymbolicValue& other) const;
  // Moves on by `bytes`, so that this is the value there. Returns false if that cuts an element.
  bool advance(uint64_t bytes);
  std::string text() const;
};

struct SymbolicRange {
  uint64_t begin = 0, end = 0;  // bytes
  SymbolicValue value;
  bool written = false;  // a step has written it; otherwise it has its initial contents
};

class SymbolicMemory {
 public:
  void set_initial(uint64_t begin, uint64_t bytes, const SymbolicValue& value);
  // Returns the ranges that make up [begin, begin + bytes), cut to it. Fails if some byte has no
  // value.
  Result<std::vector<SymbolicRange>> read(uint64_t begin, uint64_t bytes) const;
  // Fails if it cuts an element, or if part of the range was written before and `once` is set.
  Status write(uint64_t begin, uint64_t bytes, const SymbolicValue& value, bool once);
  const std::map<uint64_t, SymbolicRange>& ranges() const { return ranges_; }

 private:
  Status cut(uint64_t at);                    // no range crosses `at` afterwards
  std::map<uint64_t, SymbolicRange> ranges_;  // by begin
};

}  // namespace fsccl
