// One collective with everything that may vary, run and checked by every rank. Inputs are functions
// of (case, rank, index), so each rank knows what all others gave and computes what it must get.
// Buffers lie between guards, which must survive, at addresses that are not aligned to more than
// the element in half of the cases; inputs must be as they were.
#pragma once
#include <memory>
#include <string>

#include "device_memory.h"
#include "reference.h"
#include "support.h"

namespace fsccl::testing {

enum class Kind { all_gather, reduce_scatter, all_reduce, broadcast, barrier };
// The memory of a case's buffers. With `mixed` some ranks use the pool and the others their own
// memory. With `device` it is memory of a GPU, and the call is on a stream.
enum class Memory { caller, pool, mixed, device };

struct CollectiveCase {
  Kind kind = Kind::barrier;
  fsccl_dtype_t dtype = FSCCL_UINT8;
  fsccl_op_t op = FSCCL_SUM;
  size_t count = 0;
  Memory memory = Memory::caller;
  bool in_place = false;
  int root = 0;
  uint64_t seed = 1;  // the same on all ranks
};
std::string describe(const CollectiveCase& c);

class Collective {
 public:
  // Makes the buffers of this rank. `pool` is needed for pool and mixed memory.
  Collective(const CollectiveCase& c, const Rank& self, fsccl_pool_t pool);
  ~Collective();
  Collective(const Collective&) = delete;

  fsccl_status_t start(fsccl_work_t* work);  // if `work` is null, the call blocks
  void check();                              // the operation must be complete

 private:
  struct Area {
    char* block = nullptr;  // data, with guards around it
    char* data = nullptr;
    size_t bytes = 0;
    bool pooled = false;
    // The operand in memory of a GPU, or null. It is filled from `block`.
    std::shared_ptr<DeviceBlock> device;
    char* operand() const { return device ? device->get() + (data - block) : data; }
  };
  Area make_area(size_t bytes);
  void check_guards(const Area& area, const char* what) const;
  std::vector<char> input_of(int rank) const;
  std::vector<char> expected() const;
  bool in_any_order() const;
  bool near(double got, double wanted) const;
  bool reduces() const {
    return case_.kind == Kind::reduce_scatter || case_.kind == Kind::all_reduce;
  }

  const CollectiveCase case_;
  const Rank self_;
  fsccl_pool_t pool_;
  const size_t size_, parts_in_, parts_out_;
  const cuda::Device* gpu_ = nullptr;
  std::unique_ptr<DeviceStream> stream_;
  Area input_, output_;
};

// Runs the case as a blocking call, from start() to check().
void run_collective(const CollectiveCase& c, const Rank& self, fsccl_pool_t pool);

// Returns all operators that the header allows for a dtype.
std::vector<fsccl_op_t> operators_of(fsccl_dtype_t dtype);

// Returns a random case, which is the same on all ranks that use equal generators.
CollectiveCase random_case(Random& random, int ranks, size_t most_bytes);

}  // namespace fsccl::testing
