// The list forms: many tensors in one operation. If all of them fit a slot, they travel packed, in
// one exchange. Otherwise the ranks first exchange where their buffers are, so that all know
// whether the bytes can go straight between the buffers. If some buffer is private memory, peers
// read it by the system, or the bytes go through slots, whichever takes less time. If slots are
// mirrored (plan.h), bytes always go through slots.
#pragma once
#include <mutex>
#include <optional>

#include "comm/collective.h"
#include "plan/list_plans.h"

namespace fsccl {

struct ListCall {
  const fsccl_tensor_t* tensors = nullptr;
  size_t count = 0;
  ListKind kind{};
  fsccl_op_t reduction = FSCCL_SUM;
  int root = 0;
  // For a reduce_scatter, the dtype of each tensor's received elements. Null: the dtype of the sent
  // elements.
  const fsccl_dtype_t* received = nullptr;
  // Is called with the operation before it is submitted, to give it a gate. May be empty.
  FunctionRef<void(Operation&)> prepare{};
};

inline fsccl_dtype_t received_dtype(const ListCall& call, size_t t) {
  return call.received ? call.received[t] : call.tensors[t].dtype;
}
OpCode op_code(ListKind kind);
// Returns what all ranks must agree on about the call, without its tensors and its reduction.
Fingerprint described(const ListCall& call);
Status check_list(const ListCall& call, const Engine& engine);

// The plans of lists that were seen before, by everything but their addresses.
class Lists {
 public:
  struct KeptList {
    ListShape shape;
    Plan direct;
    std::optional<ListBuckets> slots;  // a communicator of one rank has none
    bool one_slot = false;  // all tensors travel packed in one slot, so no rank asks for addresses
    // The plan that runs instead of `direct` if some buffer is private memory. It has no steps if
    // the buckets run then.
    Plan read;
    // The sizes of the send and the recv buffer of each tensor.
    std::vector<std::pair<uint64_t, uint64_t>> bytes;
    uint64_t bytes_read = 0, bytes_written = 0;

    // Returns the plans of `slots`, which are made when they are first used. Any thread.
    const std::vector<ListBucket>& buckets() const;
    uint64_t memory() const;  // about what the kept list takes, with its buckets

   private:
    mutable std::once_flag once_;
    mutable std::vector<ListBucket> buckets_;
  };
  Status run(Collectives& collectives, const ListCall& call, bool wait, fsccl_status_t* state);

 private:
  // Plans grow with the list, so both the kept lists and their memory are limited.
  static constexpr size_t kMostKept = 256;
  static constexpr uint64_t kMostMemory = 64u << 20;
  std::shared_ptr<const KeptList> kept_list(const ListCall& call, uint64_t hash,
                                            Collectives& collectives);
  std::unordered_multimap<uint64_t, std::shared_ptr<const KeptList>> kept_lists_;
  uint64_t memory_ = 0;  // memory of all kept lists
};

}  // namespace fsccl
