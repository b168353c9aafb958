// Plain collectives on any memory: from a call to an operation. The plan of a (operation, count, dtype, root) is made at its first
// use and kept. What a call adds is where the buffers are, and how peers reach them:
//   in an arena         by its offset: every rank maps it
//   small private       copied to this rank's scratch when the operation begins
//   large private       read by the system (Linux process_vm_readv), or, where that is forbidden on any rank, in chunks through
//   scratch (staged.h)
// Each rank decides for its own buffers alone, and says so in its enter signal.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <unordered_map>

#include "engine/engine.h"

namespace fsccl {

struct CollectiveCall {
  OpCode op = OpCode::barrier;
  const void* input = nullptr;
  void* output = nullptr;
  uint64_t count = 0;
  fsccl_dtype_t dtype = FSCCL_UINT8;
  fsccl_op_t reduction = FSCCL_SUM;
  int root = -1;
};

struct CollectiveOptions {
  uint64_t eager_bytes = 0;      // private buffers up to this go through scratch
  uint64_t stage_bytes = 0;      // of a chunk
  uint64_t streaming_bytes = 0;  // from this working set on, stores bypass the caches
};

class Collectives {
 public:
  Collectives(Engine& engine, const CollectiveOptions& options);

  // Checks, submits. See Engine::submit for `wait` and `state`.
  Status run(const CollectiveCall& call, bool wait, fsccl_status_t* state);

  // Everything about a call but its buffers and its scale, made once.
  struct Entry {
    Plan plan;
    OperationSettings settings;
    Fingerprint fingerprint;
    uint64_t bytes_read = 0, bytes_written = 0;
    uint64_t input_bytes = 0, output_bytes = 0;
    int64_t in_place = 0;        // input - output where the two may overlap
    bool private_large = false;  // private buffers are too large for scratch
  };
  // The entry of a call that is right in all but its buffers; lives until run() of an idle engine clears them.
  Result<const Entry*> entry_for(const CollectiveCall& call);
  Engine& engine() { return engine_; }
  const CollectiveOptions& options() const { return options_; }

 private:
  struct Key {
    uint64_t count = ~uint64_t{0};
    uint64_t rest = 0;  // operation, dtype, operator, root
    bool operator==(const Key&) const = default;
  };
  static Key key_of(const CollectiveCall& call) {
    const auto byte = [](auto value) { return std::min<uint64_t>(static_cast<uint32_t>(value), 255); };  // 255: nothing valid
    return {call.count, uint64_t{static_cast<uint8_t>(call.op)} | byte(call.dtype) << 8 | byte(call.reduction.kind) << 16 |
                            uint64_t{static_cast<uint32_t>(call.root)} << 32};
  }
  struct KeyHash {
    size_t operator()(const Key& key) const { return mix_hash(key.count, key.rest); }
  };
  static constexpr size_t kRecent = 64, kMostEntries = 4096;

  Status check_call(const CollectiveCall& call) const;
  [[gnu::cold]] Status bad_buffers(const CollectiveCall& call, const Entry& entry) const;
  std::unique_ptr<Entry> make_entry(const CollectiveCall& call) const;
  bool publish(Operation& op, uint32_t buffer, size_t slot);
  bool common(uint32_t arena);

  Engine& engine_;
  const CollectiveOptions options_;
  struct Recent {
    Key key;
    const Entry* entry = nullptr;
  };
  std::array<Recent, kRecent> recent_;
  std::unordered_map<Key, std::unique_ptr<Entry>, KeyHash> entries_;
  std::unique_ptr<std::byte[]> inline_scratch_;
  std::vector<std::pair<uint32_t, bool>> common_;  // arenas seen, and whether every rank here maps them
};

// What a plan moves, in bytes of operands.
void count_bytes(const Plan& plan, uint64_t* read, uint64_t* written);

}  // namespace fsccl
