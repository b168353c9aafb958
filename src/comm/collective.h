// Plain collectives on any memory: from a call to an operation. The plans of a call (operation,
// counts, dtype, root) are made at its first use and kept. A call adds the addresses of the
// buffers. Bytes travel as follows:
//   tiny              in the signals
//   small             through slots, in one exchange
//   large, in arenas  straight between the ranks' buffers
//   large, elsewhere  through slots in rounds; or moved by the kernel (process_vm_readv and, in a
//                     broadcast, process_vm_writev), if that was faster when measured
// Large calls of both kinds begin in the same way: in its first signal each rank says where its
// buffers are, so once all ranks have entered, all know whether every buffer can be touched. After
// some calls whose buffers cannot be touched, the next calls begin with slots (foresight.h).
// Between ranks that share no memory, and with checksums, large calls go through slots at once. On
// several hosts a call may run in two levels (hierarchy.h).
#pragma once
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "comm/kept_calls.h"
#include "engine/engine.h"
#include "plan/collectives.h"
#include "select/select.h"

namespace fsccl {

class Hierarchy;
struct GroupShape;

struct CollectiveCall {
  OpCode op = OpCode::barrier;
  const void* input = nullptr;
  void* output = nullptr;
  uint64_t count = 0;
  fsccl_dtype_t dtype = FSCCL_UINT8;
  fsccl_op_t reduction = FSCCL_SUM;
  int root = -1;
  // The v forms have counts and displacements by rank. Without displacements parts lie end to end.
  const size_t* counts = nullptr;
  const size_t* displacements = nullptr;
  // all_to_all_v has these for what is received, and those above for what is sent.
  const size_t* recv_counts = nullptr;
  const size_t* recv_displacements = nullptr;
  int tag = 0;  // the tag of a message
  // Is called with the operation before it is submitted, to give it a gate or hooks. May be empty.
  FunctionRef<void(Operation&)> prepare{};
};

struct CollectiveOptions {
  SelectOptions select;
  topo::LinkClass link{};  // the class of the link between the farthest ranks
  // The path of the transport between these; null if the transport has only one.
  const char* path = nullptr;
  uint64_t streaming_bytes = 0;     // stores bypass the caches if a call works on so many bytes
  bool streaming_is_asked = false;  // by FSCCL_STREAMING_BYTES
  Stores stores_for(uint64_t bytes) const {
    return bytes >= streaming_bytes ? Stores::streaming : Stores::cached;
  }
  // Returns true if both kinds of stores are tried in calls that work on so many bytes
  // (store_trial.h). Far more bytes fit no cache.
  bool tries_stores(uint64_t bytes) const {
    return !streaming_is_asked && bytes >= streaming_bytes && bytes / 4 < streaming_bytes;
  }
  // Returns the stores that are tried first. The last cache counts by half, because a virtual
  // machine may have less of it than the system says.
  Stores expected_stores(uint64_t bytes) const {
    const auto ranks = static_cast<uint64_t>(select.host_shape.per_host);
    return ranks && ranks * bytes <= last_cache_bytes / 2 ? Stores::cached : Stores::streaming;
  }
  uint64_t cache_bytes = 0;       // bytes of a core's own cache
  uint64_t last_cache_bytes = 0;  // bytes of the last cache, which the ranks of a host share
};

class Collectives {
 public:
  Collectives(Engine& engine, const CollectiveOptions& options);

  // Checks a call and submits it. See Engine::submit for `wait` and `state`.
  Status run(const CollectiveCall& call, bool wait, fsccl_status_t* state);
  // Checks that the arguments are those of a collective. It does not check buffers and the parts of
  // the v forms.
  Status check_call(const CollectiveCall& call) const;

  // Sets the hierarchy, which runs the calls for which two levels are chosen. This comes before the
  // first call.
  void set_hierarchy(Hierarchy* hierarchy) { hierarchy_ = hierarchy; }
  GroupShape group_shape() const;
  Hierarchy* hierarchy() const { return hierarchy_; }
  // Returns the candidates and the measurements as JSON (insight.h).
  Result<std::string> explain(std::string_view operation, uint64_t bytes) const;
  const KeptCalls& kept_calls() const { return kept_calls_; }
  Engine& engine() { return engine_; }
  const CollectiveOptions& options() const { return options_; }
  // Returns the location by which peers find a buffer of this rank.
  Location locate(const void* buffer, uint64_t bytes);

 private:
  static CallKey key_of(const CollectiveCall& call) {
    return {
        call.count,
        uint64_t{static_cast<uint32_t>(call.dtype)} << 32 |
            static_cast<uint32_t>(call.reduction.kind),
        uint64_t{static_cast<uint8_t>(call.op)} << 32 | static_cast<uint32_t>(call.root),
    };
  }

  Status all_to_all_v(const CollectiveCall& call, bool wait, fsccl_status_t* state);
  [[gnu::cold]] Status bad_buffers(const CollectiveCall& call, const KeptCall& kept) const;
  Result<const KeptCall*> kept_call(const CollectiveCall& call, const CallKey& key);
  Status check_parts(const Shape& shape) const;
  Shape shape_of(const CollectiveCall& call) const;
  std::shared_ptr<const KeptCall> make_kept_call(const CollectiveCall& call, const CallKey& key,
                                                 const Shape& shape) const;
  void announce_flat(const CollectiveCall& call, const Shape& shape) const;
  bool common(uint32_t arena);

  Engine& engine_;
  const ArenaTable& arenas_;  // the engine's
  Hierarchy* hierarchy_ = nullptr;
  const CollectiveOptions options_;
  KeptCalls kept_calls_;
  // The arenas that were seen, each with a flag that says whether every rank here maps it.
  std::vector<std::pair<uint32_t, bool>> common_;
  uint64_t removals_ = 0;  // arenas that had been removed when common_ was last cleared
};

// Sets which buffers of `plan` travel with the enter signal, and the plan that runs instead if some
// rank cannot touch one of them.
void set_plans(OperationSettings* settings, const Plan& plan, const Plan& fallback);

}  // namespace fsccl
