// One measurement: a collective of one size, type, operator and kind of memory, in place or out of
// place.
#pragma once
#include <algorithm>
#include <memory>
#include <optional>

#include "collectives.h"
#include "report.h"
#include "shared_output.h"

namespace fsccl::perf {

struct CaseChoice {
  const CollectiveKind* kind;
  fsccl_dtype_t dtype;
  fsccl_op_t op;
  Memory memory;
  bool in_place;
  uint64_t bytes;
};

class CollectiveCase {
 public:
  CollectiveCase(const Session& session, const CollectivesOptions& options,
                 const CaseChoice& choice);
  CollectiveCase(const CollectiveCase&) = delete;  // place_ refers to a member
  CollectiveCase& operator=(const CollectiveCase&) = delete;

  // Returns true if the size is less than one element for each rank.
  bool empty() const { return count_ == 0 && !choice_.kind->empty(); }
  // Returns true if the library has this call, which it finds out by a call without elements.
  bool available();
  // Returns the bytes of the buffers that this rank needs at least.
  uint64_t buffer_bytes() const {
    const uint64_t both = choice_.in_place ? std::max(input_elements_, output_elements_)
                                           : input_elements_ + output_elements_;
    return both * element_bytes_;
  }
  CollectiveRow run();

 private:
  // A reduction in place overwrites its input, so each call of a sample has its own copy.
  bool consumes_input() const { return choice_.in_place && choice_.kind->reduces; }
  bool holds(Holder holder) const {
    return holder == Holder::kEveryRank || session_.rank() == options_.root;
  }

  void allocate(int copies);
  char* input(uint64_t copy) const;
  char* output(uint64_t copy) const;
  void call(uint64_t copy);
  void prepare(uint32_t generation) const;
  uint64_t check(uint32_t generation) const;
  uint64_t check_copy(const char* data, uint32_t stream, uint32_t generation) const;
  double sample(int calls, uint32_t generation);
  int choose_calls();
  CollectiveRow row(const std::vector<double>& times, int calls, uint64_t wrong) const;

  const Session& session_;
  const CollectivesOptions& options_;
  const CaseChoice choice_;
  uint64_t element_bytes_, count_ = 0, bytes_ = 0;
  Blocks blocks_;
  Position place_;
  uint64_t input_elements_ = 0, output_elements_ = 0, own_begin_bytes_ = 0, stride_ = 0,
           copies_ = 1;
  std::optional<Buffer> input_, output_;
  std::optional<SharedOutput> shared_;
  uint32_t generation_ = 0;
};

}  // namespace fsccl::perf
