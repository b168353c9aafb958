// One unit of a replayed step: the library's unit, the caller's shards and sharded gradients, and
// the values that are written into them and must come out.
#pragma once
#include <fsccl/fsccl.h>

#include <cstdint>
#include <vector>

#include "model.h"
#include "session.h"
#include "step.h"

namespace fsccl::perf {

// Plain memory of the caller. The constructor ends the process if there is none. With
// `addresses_only` the memory must not be touched.
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
  // Private gradients are written to `gradients`, which has gradient_bytes(unit, options) bytes.
  // Units may share this memory, because a unit uses it only from the writing of its gradients to
  // their reduction.
  StepUnit(const Session& session, const ModelUnit& unit, size_t index, bool stays,
           const StepOptions& options, char* gradients);
  ~StepUnit();
  StepUnit(const StepUnit&) = delete;
  StepUnit& operator=(const StepUnit&) = delete;

  fsccl_unit_t handle() const { return unit_; }

  // Gathers the parameters. The call blocks unless `work` is given.
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
  // These return the number of wrong elements: look() among a few of each parameter, while the unit
  // is gathered; check_gathered() among all parameters, which it gathers first; check_reduced()
  // among all of this rank's sharded gradients.
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
    void* grad = nullptr;  // the whole gradient, in its slot or in the caller's memory
    uint32_t stream = 0;   // seeds its values; stream + 1 seeds its gradients
  };

  const Session& session_;
  const StepOptions& options_;
  std::vector<Param> params_;
  std::vector<const void*> private_grads_;
  std::vector<Memory4k> memory_;
  fsccl_unit_t unit_ = nullptr;
};

}  // namespace fsccl::perf
