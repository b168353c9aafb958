// A unit with a known value for every element of every parameter and of every rank's gradients. So
// a test can check in full what is gathered, where shards lie and what is reduced. Values depend on
// (unit, parameter, element, version), so bytes of a stale slot, of another unit or of a
// neighbouring element are found to be wrong.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "fsccl/codec.h"
#include "reference.h"
#include "support.h"

namespace fsccl::testing {

struct UnitCase {
  struct Param {
    std::vector<int64_t> shape;
    fsccl_dtype_t dtype = FSCCL_FLOAT32;
    bool frozen = false;
    int tied_to = -1;
    bool own_shard = false, own_grad = false;  // in memory of the test
    uint64_t block_rows = 0, block_columns = 0;
  };
  std::vector<Param> params;
  fsccl_layout_t layout = FSCCL_LAYOUT_PER_PARAM;
  fsccl_dtype_t wire = FSCCL_BFLOAT16, reduce = FSCCL_BFLOAT16, grad = FSCCL_FLOAT32;
  fsccl_sharing_t sharing = FSCCL_SHARING_READ_ONLY;
  fsccl_keep_t keep = FSCCL_KEEP_NONE;
  uint64_t keep_budget_bytes = 0;
  bool marks_changes = false;
  bool by_parameter = false;  // excludes `keep`; TestUnit ignores it if there are replicas
  uint64_t seed = 1;
  fsccl_codec_t gather_codec = FSCCL_CODEC_INIT, reduce_codec = FSCCL_CODEC_INIT;
};
std::string describe(const UnitCase& c);
// Return the arguments of fsccl_unit_create(). The config keeps pointers to `name` and `c`.
// by_parameter, replicas and memory of the test are not set.
std::string name_of(const UnitCase& c);
fsccl_unit_config_t config_of(const UnitCase& c, fsccl_comm_t comm, fsccl_pool_t pool,
                              const std::string& name);
fsccl_param_t param_of(const UnitCase::Param& given);
UnitCase simple_unit(std::vector<std::vector<int64_t>> shapes, uint64_t seed = 1);
UnitCase random_unit(Random& random, int64_t most_elements = 600);

class TestUnit {
 public:
  // `replicas` is HSDP's communicator, or null.
  TestUnit(const UnitCase& c, fsccl_comm_t comm, fsccl_pool_t pool,
           fsccl_comm_t replicas = nullptr);
  ~TestUnit();
  TestUnit(const TestUnit&) = delete;

  fsccl_unit_t get() const { return unit_; }
  size_t size() const { return case_.params.size(); }
  uint64_t numel(size_t i) const;
  bool by_parameter() const { return case_.by_parameter; }
  bool has_gradient(size_t i) const { return !case_.params[owner(i)].frozen; }

  void write_shards(uint64_t version);  // stands for an optimizer
  void check_shards(uint64_t version);
  void check_layout();  // collective: the pieces of all ranks must make up the parameters
  void unshard(fsccl_unshard_mode_t mode = FSCCL_UNSHARD_READ);
  // Checks the view and every element of each parameter before `end`. With an `end` it skips tied
  // parameters, whose owner may have been released.
  void check_params(uint64_t version, size_t end = ~size_t{0});
  void write_params(uint64_t version);  // into a writable slot
  void reshard();
  const void* address(size_t i);  // returns the address of parameter i

  // The first two write gradients of `step` into slots of the unit. own_grads() writes them into
  // memory of the test, and returns its addresses for fsccl_reduce_config_t.grads.
  void write_grads(uint64_t step, int contributor);
  void write_grad(size_t i, uint64_t step, int contributor);
  const void* const* own_grads(uint64_t step, int contributor);
  void reduce(const fsccl_reduce_config_t* config, fsccl_work_t* work = nullptr);
  // Runs backward of an unsharded unit by parameter, from its last parameter to its first, and then
  // reshards the unit. Each parameter is given back when backward has passed it, and its gradient,
  // every second one in memory of the test, is reduced while the next one is written. Returns the
  // sum of the reductions' results.
  fsccl_reduce_result_t backward_by_parameter(uint64_t step, int contributor, uint64_t version);

  // Checks the sharded gradients after the reductions of `history`. Each list of `replicas` has the
  // `contributor` numbers of the ranks of one replica, in the order of the reduction.
  struct Reduction {
    uint64_t step = 0;
    double scale = 0;  // 0: the mean
    bool accumulate = false;
  };
  void check_sharded_grads(const std::vector<Reduction>& history,
                           const std::vector<std::vector<int>>& replicas);
  void check_sharded_grads(const std::vector<Reduction>& history) {
    check_sharded_grads(history, {ranks_list()});
  }
  void check_result(const fsccl_reduce_result_t& result);  // must describe the sharded gradients

  std::vector<int> ranks_list() const;
  int rank() const { return rank_; }

 private:
  size_t owner(size_t i) const {
    return case_.params[i].tied_to < 0 ? i : static_cast<size_t>(case_.params[i].tied_to);
  }
  double master(size_t i, uint64_t element, uint64_t version) const;
  double gradient(size_t i, uint64_t element, uint64_t step, int contributor) const;
  double reduced(size_t i, uint64_t element, const Reduction& one, const std::vector<int>& ranks,
                 const std::vector<int>& of_rank, const Finish& finish,
                 const double* accumulate) const;
  void put_master(size_t i, void* place, uint64_t at, uint64_t element, uint64_t version) const;
  fsccl_dtype_t wire_of(size_t i) const {
    return is_float(case_.params[owner(i)].dtype) ? case_.wire : case_.params[owner(i)].dtype;
  }

  const UnitCase case_;
  const fsccl_comm_t comm_;
  int rank_ = 0, ranks_ = 1;
  std::vector<int> hosts_;  // host of each rank, where there are some
  fsccl_unit_t unit_ = nullptr;
  std::vector<std::vector<char>> shard_memory_, grad_memory_, whole_grads_;
  std::vector<const void*> pointers_;
};

// The shards of which note_ready() has been told. It is the context of note_ready().
struct ReadyShards {
  fsccl_unit_t unit = nullptr;
  std::vector<size_t> indices;
};

// Is the `shard_ready` of a reduction: notes the index, and expects that the sharded gradient of it
// can be read.
void note_ready(void* context, fsccl_unit_t unit, size_t index);

}  // namespace fsccl::testing
