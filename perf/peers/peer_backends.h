// Adapts the library to the harness's interface for collectives. There is one class per kind of
// memory: the caller's own, blocks of a pool, and one physical output per host. The classes use the
// public API alone, and each call blocks until its result is there.
#pragma once
#include <fsccl/fsccl.h>

#include <map>
#include <vector>

#include "fsb.hpp"

namespace fsccl_peer {

// Ends the process with the library's own words if `status` is an error.
inline void must(fsccl_status_t status, const char* what) {
  if (status == FSCCL_OK) return;
  fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&info);
  fprintf(stderr, "fsccl-peer: rank %d: %s: %s: %s\n", fsb::g_rank, what,
          fsccl_status_string(status), info.text);
  exit(1);
}

// The communicator of all ranks and a pool on it. Ranks meet through the harness's page, which only
// the user can read.
class Job {
 public:
  Job() {
    fsccl_unique_id_t id;
    if (fsb::g_rank == 0) {
      must(fsccl_unique_id_create(&id), "fsccl_unique_id_create");
      memcpy(fsb::g_ctl->blob, &id, sizeof id);
    }
    fsb::bar();
    memcpy(&id, fsb::g_ctl->blob, sizeof id);
    fsb::bar();
    if (fsb::g_rank == 0) explicit_bzero(fsb::g_ctl->blob, sizeof id);
    fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
    config.unique_id = &id;
    config.rank = fsb::g_rank;
    config.ranks = fsb::g_size;
    must(fsccl_comm_create(&config, &comm_), "fsccl_comm_create");
    explicit_bzero(&id, sizeof id);
    fsccl_pool_config_t pool = FSCCL_POOL_CONFIG_INIT;
    must(fsccl_pool_create(comm_, &pool, &pool_), "fsccl_pool_create");
  }
  ~Job() {
    must(fsccl_pool_destroy(pool_), "fsccl_pool_destroy");
    must(fsccl_barrier(comm_, nullptr, nullptr), "fsccl_barrier");
    must(fsccl_comm_destroy(comm_), "fsccl_comm_destroy");
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  fsccl_comm_t comm() const { return comm_; }
  fsccl_pool_t pool() const { return pool_; }

 private:
  fsccl_comm_t comm_ = nullptr;
  fsccl_pool_t pool_ = nullptr;
};

inline fsccl_dtype_t dtype_of(fsb::DT dtype) {
  return dtype == fsb::F32 ? FSCCL_FLOAT32 : dtype == fsb::BF16 ? FSCCL_BFLOAT16 : FSCCL_UINT8;
}

// The memory "caller" is plain private memory, as the harness allocates it.
class CallerBackend : public fsb::Backend {
 public:
  explicit CallerBackend(Job& job) : comm_(job.comm()) {}
  bool has(const char*, fsb::DT) { return true; }
  void allgather(void* buffer, size_t shard) {
    const char* own = static_cast<char*>(buffer) + static_cast<size_t>(fsb::g_rank) * shard;
    must(fsccl_all_gather(own, buffer, shard, FSCCL_UINT8, comm_, nullptr, nullptr),
         "fsccl_all_gather");
  }
  void reduce_scatter(const void* in, void* out, size_t count, fsb::DT dtype) {
    must(fsccl_reduce_scatter(in, out, count, dtype_of(dtype), FSCCL_SUM, comm_, nullptr, nullptr),
         "fsccl_reduce_scatter");
  }
  void allreduce(const void* in, void* out, size_t count, fsb::DT dtype) {
    must(fsccl_all_reduce(in, out, count, dtype_of(dtype), FSCCL_SUM, comm_, nullptr, nullptr),
         "fsccl_all_reduce");
  }
  void bcast(void* buffer, size_t bytes) {
    must(fsccl_broadcast(buffer, bytes, FSCCL_UINT8, 0, comm_, nullptr, nullptr),
         "fsccl_broadcast");
  }
  void bcast_list(char** tensors, const size_t* bytes, size_t count) {
    list_.clear();
    for (size_t i = 0; i < count; i++)
      list_.push_back({nullptr, tensors[i], bytes + i, FSCCL_UINT8});
    must(fsccl_broadcast_list(list_.data(), count, 0, comm_, nullptr, nullptr),
         "fsccl_broadcast_list");
  }
  void barrier() { must(fsccl_barrier(comm_, nullptr, nullptr), "fsccl_barrier"); }

 protected:
  fsccl_comm_t comm_;
  std::vector<fsccl_tensor_t> list_;
};

// The memory "pool" consists of blocks of the library's pool, private to the rank.
class PoolBackend : public CallerBackend {
 public:
  explicit PoolBackend(Job& job) : CallerBackend(job), pool_(job.pool()) {}
  const char* memory() { return "pool"; }
  void* alloc(size_t bytes) {
    void* block = nullptr;
    must(fsccl_pool_alloc(pool_, bytes, nullptr, &block), "fsccl_pool_alloc");
    memset(block, 1, bytes);
    return block;
  }
  void free_(void* block, size_t) {
    must(fsccl_pool_free(pool_, block, nullptr), "fsccl_pool_free");
  }

 private:
  fsccl_pool_t pool_;
};

// The memory "shared" is one physical output per host: the host-shared slot of a unit with one
// parameter. For the all-gather the unit is flat, so that every rank holds an equal part; for the
// broadcast the parameter is a single row, which rank 0 holds alone. A unit takes its input's
// address when it is made, but the harness allocates inputs after outputs. alloc() therefore makes
// a unit with its own shards to learn the slot's address, and the first (untimed) call replaces it.
class SharedBackend : public CallerBackend {
 public:
  explicit SharedBackend(Job& job) : CallerBackend(job), pool_(job.pool()) {}
  const char* memory() { return "shared"; }
  bool has(const char* name, fsb::DT) {
    return !strcmp(name, "all_gather") || !strcmp(name, "broadcast");
  }
  void* alloc(size_t bytes) {
    Output output = make(bytes, FSCCL_LAYOUT_FLAT, nullptr);
    void* address = unshard(output);
    outputs_[address] = output;
    return address;
  }
  void free_(void* out, size_t) {
    destroy(outputs_.at(out));
    outputs_.erase(out);
    last_address_ = nullptr;
  }
  void allgather_from(const void* own, void* out, size_t shard) {
    gather(out, FSCCL_LAYOUT_FLAT, own, shard * static_cast<size_t>(fsb::g_size));
  }
  void bcast_from(const void* source, void* out, size_t bytes) {
    gather(out, FSCCL_LAYOUT_PER_PARAM, source, bytes);
  }

 private:
  struct Output {
    fsccl_unit_t unit = nullptr;
    const void* input = nullptr;
    bool ready = false;  // true if the unit was made for this input
  };

  Output make(size_t bytes, fsccl_layout_t layout, const void* input) {
    fsccl_param_t param = FSCCL_PARAM_INIT;
    param.name = "output";
    param.dims = layout == FSCCL_LAYOUT_FLAT ? 1 : 2;
    param.shape[0] = layout == FSCCL_LAYOUT_FLAT ? static_cast<int64_t>(bytes) : 1;
    param.shape[1] = static_cast<int64_t>(bytes);
    param.dtype = FSCCL_UINT8;
    param.flags = FSCCL_PARAM_FROZEN;
    param.shard = const_cast<void*>(input);
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    config.name = "shared output";
    config.layout = layout;
    config.shard_comm = comm_;
    config.pool = pool_;
    config.wire_dtype = FSCCL_UINT8;
    config.sharing = FSCCL_SHARING_READ_ONLY;
    config.marks_changes = 1;
    Output output;
    output.input = input;
    must(fsccl_unit_create(&config, &param, 1, &output.unit), "fsccl_unit_create");
    return output;
  }
  void destroy(const Output& output) {
    must(fsccl_unit_reshard(output.unit, nullptr), "fsccl_unit_reshard");
    must(fsccl_unit_destroy(output.unit), "fsccl_unit_destroy");
  }
  void* unshard(const Output& output) {
    must(fsccl_unit_unshard(output.unit, FSCCL_UNSHARD_READ, nullptr, nullptr),
         "fsccl_unit_unshard");
    fsccl_view_t view;
    must(fsccl_unit_param(output.unit, 0, &view), "fsccl_unit_param");
    return view.data;
  }
  void gather(void* out, fsccl_layout_t layout, const void* input, size_t bytes) {
    Output& output = last_address_ == out ? *last_ : find(out);
    if (output.ready && output.input == input) {
      must(fsccl_pool_step(pool_), "fsccl_pool_step");
      must(fsccl_unit_reshard(output.unit, nullptr), "fsccl_unit_reshard");
      must(fsccl_unit_unshard(output.unit, FSCCL_UNSHARD_READ, nullptr, nullptr),
           "fsccl_unit_unshard");
      return;
    }
    destroy(output);
    output = make(bytes, layout, input);
    output.ready = true;
    if (void* address = unshard(output); address != out) {
      fprintf(
          stderr,
          "fsccl-peer: rank %d: the shared slot moved from %p to %p when its unit was made again\n",
          fsb::g_rank, out, address);
      exit(5);
    }
  }
  Output& find(void* out) {
    last_ = &outputs_.at(out);
    last_address_ = out;
    return *last_;
  }

  fsccl_pool_t pool_;
  std::map<void*, Output> outputs_;
  void* last_address_ = nullptr;
  Output* last_ = nullptr;
};

}  // namespace fsccl_peer
