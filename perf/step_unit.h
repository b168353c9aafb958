// One unit of a replayed step: the library's unit, the caller's shards and sharded gradients beside
// it, and the data that goes in and must come out.
#pragma once
#include <fsccl/fsccl.h>

#include <cstdint>
#include <vector>

#include "model.h"
#include "session.h"
#include "step.h"

namespace fsccl::perf {

// Plain memory of the caller; ends the process when there is none. With `addresses_only` it must
// not be touched.
class Memory4k {
 public:
  Memory4k(uint64_t bytes, bool addresses_only);
  ~Memory4k();
  Memory4k(Memory4k&& other) noexcept;
  Memory4k(const Memory4k&) = delete;
  Memory4k& operator=(const Memory4k&) = delete;
  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  uint64_t bytes_ = 0;
};

uint64_t gradient_bytes(const ModelUnit& unit, const StepOptions& options);

class StepUnit {
 public:
  // `gradients`: where private gradients are written, gradient_bytes(unit, options); units may have
  // it in common, because it is used from writing to reducing.
  StepUnit(const Session& session, const ModelUnit& unit, size_t index, bool stays,
           const StepOptions& options, char* gradients);
  ~StepUnit();
  StepUnit(const StepUnit&) = delete;
  StepUnit& operator=(const StepUnit&) = delete;

  fsccl_unit_t handle() const { return unit_; }

  // Blocking without `work`.
  void unshard(fsccl_work_t* work);
  void reshard();
  void take_gradients();
  void reduce();
  void release(size_t param);
  void take_gradient(size_t param);
  void reduce(size_t param);

  void write_shards(uint32_t generation);
  void write_gradients(uint32_t generation);
  void write_gradient(size_t param, uint32_t generation);
  // The number of wrong elements: a few of each parameter while gathered; all of them; all of this
  // rank's reduced gradients.
  uint64_t look(uint32_t generation) const;
  uint64_t check_gathered(uint32_t generation);
  uint64_t check_reduced(uint32_t generation) const;

 private:
  void reduce(size_t first, size_t count);
  struct Param {
    uint64_t elements = 0;
    uint64_t first = 0, count = 0;  // this rank's part
    float* shard = nullptr;
    float* sharded_grad = nullptr;
    void* grad = nullptr;  // whole; in the slot, or the caller's
    uint32_t stream = 0;   // stream of its values; its gradients have stream + 1
  };

  const Session& session_;
  const StepOptions& options_;
  std::vector<Param> params_;
  std::vector<const void*> private_grads_;
  std::vector<Memory4k> memory_;
  fsccl_unit_t unit_ = nullptr;
};

}  // namespace fsccl::perf
