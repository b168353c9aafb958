// Random steps of a pool with a limit, on one rank of several that run the same program. After each
// call two things must hold:
//
//   - All ranks get the same answer, success or FSCCL_ERR_OUT_OF_MEMORY, and the communicator goes
//     on.
//   - The call succeeds if the live bytes and the bytes that it requests fit every rank's limit
//     together with that rank's blocks.
#pragma once
#include <fsccl/allocator.h>
#include <fsccl/fsccl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace fsccl::testing {

class LimitedSteps {
 public:
  // If `dry`, the pool is a rehearsal without memory. `source` is the source of its memory, or
  // null. A pool with a source, or on larger pages, does not give back free bytes that lie between
  // used ones, so it may refuse a slot although the bytes are free.
  LimitedSteps(fsccl_comm_t comm, uint64_t seed, bool dry, const fsccl_allocator_t* source);
  ~LimitedSteps();

  // Runs this many steps, and stops early if it finds a problem.
  void run(int steps);
  const std::string& problem() const { return problem_; }  // empty: none
  uint64_t calls() const { return calls_; }
  uint64_t refused() const { return refused_; }
  std::string setting() const;

 private:
  struct Param {
    uint64_t count = 0, slot_bytes = 0, grad_bytes = 0;  // bytes: of a unit by parameter
    bool released = false, has_grad = false;
    std::vector<float> shard, sharded_grad;
  };
  struct Unit {
    fsccl_unit_t handle = nullptr;
    fsccl_unit_config_t config;
    std::vector<Param> params;
    uint64_t slot_bytes = 0, grad_bytes = 0;  // measured
    bool unsharded = false, writable = false, has_grad = false;
    uint64_t writable_bytes = 0;
    fsccl_work_t gathered = nullptr;
  };
  struct Act {
    int what = 0;
    size_t unit = 0, param = 0;
    uint64_t bytes = 0;
  };

  void draw_setting();
  void make_units(fsccl_pool_t pool);
  void destroy_units();
  void measure();
  uint64_t live(fsccl_pool_t pool);
  std::vector<Act> random_step();
  void act(const Act& act);
  void unshard(Unit& unit, bool writable, bool later);
  void look_at(Unit& unit);
  void take_gradient(Unit& unit, size_t param);
  void reduce(Unit& unit, bool later);
  void block(uint64_t bytes, int rank);
  void declare();
  void end_step();
  // Compares the ranks' answers to a call that wanted `bytes`. Returns true if it succeeded.
  bool answered(const char* what, fsccl_status_t status, uint64_t bytes);
  uint64_t in_use() const;
  uint64_t top_of_blocks(int rank) const;
  void problem(std::string text);
  uint64_t below(uint64_t bound) { return random_() % bound; }

  fsccl_comm_t comm_;
  int rank_ = 0, ranks_ = 0;
  const uint64_t seed_;
  const bool dry_, sparse_;
  std::mt19937_64 random_;
  fsccl_pool_t pool_ = nullptr;
  std::vector<uint64_t> limits_;  // by rank
  std::vector<Unit> units_;
  std::vector<std::vector<uint64_t>> blocks_;  // by rank, the last one is the highest
  std::vector<void*> own_blocks_;
  std::vector<fsccl_work_t> works_;
  std::vector<std::vector<Act>> known_;  // steps that may come again
  std::string problem_;
  uint64_t calls_ = 0, refused_ = 0;
};

}  // namespace fsccl::testing
