// Makes random calls with random, mostly wrong, arguments. Every call returns a status that the
// header names, nothing crashes, nothing hangs, and objects that are alive afterwards still work.
// There is one rank, so that every call ends by itself, and two ranks for sequences that are valid.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <vector>

#include "collective_case.h"
#include "fsccl/insight.h"
#include "unit_case.h"

namespace fsccl::testing {
namespace {

class Monkey {
 public:
  explicit Monkey(uint64_t seed) : random_(seed) {}
  ~Monkey() { clean(); }

  void call() {
    const auto what = static_cast<size_t>(random_.below(40));
    const fsccl_status_t status = one(what);
    counts_[status]++;
    const char* const name = fsccl_status_string(status);
    ASSERT_EQ(std::string(name).find("unknown"), std::string::npos)
        << "call " << what << " returned " << status;
    ASSERT_NE(status, FSCCL_ERR_INTERNAL) << "call " << what << ": " << last_error().text;
    if (status < 0) {
      ASSERT_EQ(last_error().code, status) << "call " << what;
      ASSERT_STRNE(last_error().text, "") << "call " << what;
    }
  }
  void clean() {
    for (const auto& [unit, pool] : units_) fsccl_unit_destroy(unit);
    for (const auto& [block, pool] : blocks_) fsccl_pool_free(pool, block, nullptr);
    for (const fsccl_pool_t pool : pools_) fsccl_pool_destroy(pool);
    for (const fsccl_comm_t comm : comms_) {
      fsccl_comm_abort(comm);
      EXPECT_OK(fsccl_comm_destroy(comm));
    }
    comms_.clear(), pools_.clear(), units_.clear(), blocks_.clear();
  }
  const std::map<int, int>& counts() const { return counts_; }

 private:
  // Returns mostly a live handle, sometimes an old one, one of another kind, or nonsense.
  template <class Handle, class List>
  Handle pick(const List& live) {
    const uint64_t kind = random_.below(20);
    if (kind == 0) return nullptr;
    if (kind == 1) return reinterpret_cast<Handle>(static_cast<uintptr_t>(random_.next()));
    if (kind == 2 && !graves_.empty())
      return reinterpret_cast<Handle>(graves_[random_.below(graves_.size())]);
    if (kind == 3) return reinterpret_cast<Handle>(static_cast<uintptr_t>(random_.below(1000)));
    if (live.empty()) return nullptr;
    return *std::next(live.begin(), static_cast<std::ptrdiff_t>(random_.below(live.size())));
  }
  fsccl_comm_t comm() { return pick<fsccl_comm_t>(comms_); }
  fsccl_pool_t pool() { return pick<fsccl_pool_t>(pools_); }
  fsccl_work_t work() { return pick<fsccl_work_t>(works_); }
  fsccl_unit_t unit() {
    std::vector<fsccl_unit_t> live;
    for (const auto& [one, its_pool] : units_) live.push_back(one);
    return pick<fsccl_unit_t>(live);
  }
  size_t count() {
    return random_.below(8) == 0 ? static_cast<size_t>(random_.next()) | size_t{1} << 47
                                 : random_.below(2000);
  }
  fsccl_dtype_t dtype() { return wild<fsccl_dtype_t>(static_cast<int>(random_.below(18)) - 1); }
  fsccl_op_t op() {
    fsccl_op_t result = FSCCL_SUM;
    result.kind = static_cast<int>(random_.below(8)) - 1;
    result.scale = random_.below(2) ? 0.5 : std::nan("");
    return result;
  }
  int small() { return static_cast<int>(random_.below(6)) - 2; }
  void* buffer() {
    return random_.below(10) == 0 ? nullptr : memory_ + random_.below(3) * sizeof memory_ / 3;
  }
  void* stream() { return random_.below(30) == 0 ? memory_ : nullptr; }
  fsccl_work_t* work_out() { return random_.below(2) ? &new_work_ : nullptr; }
  fsccl_view_t* view_out() { return random_.below(20) == 0 ? nullptr : &view_; }
  template <class T>
  T* maybe(T* pointer) {
    return random_.below(20) == 0 ? nullptr : pointer;
  }

  fsccl_status_t one(size_t what) {
    return what < 12 ? call_memory(what) : what < 27 ? call_unit(what) : call_collective(what);
  }
  fsccl_status_t call_memory(size_t what);
  fsccl_status_t call_unit(size_t what);
  fsccl_status_t call_collective(size_t what);
  fsccl_status_t make_comm();
  fsccl_status_t make_unit();
  fsccl_status_t schedule();
  fsccl_status_t reduce();
  fsccl_status_t keep_work(fsccl_status_t status) {
    if (status >= 0 && new_work_) works_.push_back(new_work_);
    if (works_.size() > 50) works_.erase(works_.begin());
    new_work_ = nullptr;
    return status;
  }
  template <class List, class Handle>
  void bury(List& list, Handle handle) {
    const auto found = std::find(list.begin(), list.end(), handle);
    if (found != list.end()) list.erase(found);
    graves_.push_back(reinterpret_cast<uintptr_t>(handle));
  }

  Random random_;
  std::vector<fsccl_comm_t> comms_;
  std::vector<fsccl_pool_t> pools_;
  std::map<fsccl_unit_t, fsccl_pool_t> units_;
  std::map<void*, fsccl_pool_t> blocks_;
  std::vector<fsccl_work_t> works_;
  std::vector<uintptr_t> graves_;
  std::map<int, int> counts_;
  fsccl_work_t new_work_ = nullptr;
  fsccl_view_t view_{};
  alignas(64) char memory_[3 * 2000 * 8] = {};
  alignas(64) char shard_memory_[11 * 11 * 11 * 11 * 8] = {};
};

fsccl_status_t Monkey::make_comm() {
  fsccl_comm_t made = nullptr;
  fsccl_status_t status;
  if (random_.below(2) && !comms_.empty()) {
    status = fsccl_comm_split(comm(), small(), small(), nullptr, maybe(&made));
  } else {
    fsccl_unique_id_t id;
    if (fsccl_unique_id_create(&id) != FSCCL_OK) return last_error().code;
    fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
    config.unique_id = &id;
    config.rank = random_.below(8) == 0 ? small() : 0;
    config.ranks = random_.below(8) == 0 ? std::min(small(), 1) : 1;
    config.timeout_ms = 5000;
    status = fsccl_comm_create(&config, maybe(&made));
  }
  if (made) comms_.push_back(made);
  return status;
}

fsccl_status_t Monkey::make_unit() {
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  config.shard_comm = comm();
  config.pool = pool();
  if (random_.below(6) == 0) config.replicate_comm = comm();
  config.layout = wild<fsccl_layout_t>(
      static_cast<int>(random_.below(10) == 0 ? random_.below(5) : random_.below(2)));
  if (random_.below(4) == 0) config.wire_dtype = dtype();
  if (random_.below(4) == 0) config.grad_dtype = dtype();
  config.sharing =
      wild<fsccl_sharing_t>(static_cast<int>(random_.below(10) == 0 ? 3 : random_.below(2)));
  config.keep = wild<fsccl_keep_t>(static_cast<int>(random_.below(10) == 0 ? 7 : random_.below(3)));
  config.keep_budget_bytes = random_.below(10'000);
  config.marks_changes = small();
  config.by_parameter = random_.below(2) ? small() : 0;
  if (config.by_parameter && random_.below(4)) config.keep = FSCCL_KEEP_NONE;
  fsccl_param_t params[4];
  const size_t n = 1 + random_.below(4);
  for (size_t i = 0; i < n; ++i) {
    params[i] = FSCCL_PARAM_INIT;
    params[i].dims = static_cast<int>(random_.below(3)) + (random_.below(20) == 0 ? small() : 0);
    for (int64_t& dim : params[i].shape) dim = static_cast<int64_t>(random_.below(12));
    if (random_.below(30) == 0) params[i].shape[0] = static_cast<int64_t>(random_.next());
    if (random_.below(8) == 0) params[i].dtype = dtype();
    if (random_.below(8) == 0) params[i].flags = static_cast<uint32_t>(random_.below(3));
    if (random_.below(10) == 0) params[i].tied_to = small();
    // shard_memory_ has room for a parameter of at most 4 dimensions of at most 11 elements. A
    // larger parameter gets none of it: these calls may be wrong in every other way, but memory
    // that they pass must be as large as the parameter says, because the library cannot check that.
    const bool fits = params[i].dims <= 4;
    if (fits && random_.below(8) == 0) params[i].shard = shard_memory_;
    if (fits && random_.below(8) == 0) params[i].sharded_grad = shard_memory_;
  }
  fsccl_unit_t made = nullptr;
  const fsccl_status_t status = fsccl_unit_create(maybe(&config), maybe(params), n, maybe(&made));
  if (made) units_[made] = config.pool;
  return status;
}

fsccl_status_t Monkey::schedule() {
  fsccl_event_t events[8];
  const size_t n = random_.below(8);
  for (size_t i = 0; i < n; ++i)
    events[i] = {wild<fsccl_event_kind_t>(static_cast<int>(random_.below(6))), unit(),
                 random_.below(3), random_.below(3)};
  return fsccl_pool_schedule(pool(), maybe(events), n);
}

void nothing_ready(void*, fsccl_unit_t, size_t) {}

fsccl_status_t Monkey::reduce() {
  fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
  fsccl_reduce_result_t result{};
  const void* grads[4] = {shard_memory_, shard_memory_, shard_memory_, shard_memory_};
  if (random_.below(3) == 0) config.grads = grads;
  if (random_.below(2)) config.result = &result;
  if (random_.below(3) == 0) config.accumulate = 1;
  if (random_.below(2)) config.first = random_.below(5), config.count = random_.below(5);
  if (random_.below(3) == 0) config.defer_replicas = 1;
  if (random_.below(3) == 0) config.shard_ready = nothing_ready;
  config.scale = random_.below(4) == 0 ? std::nan("") : 1;
  const fsccl_status_t status =
      fsccl_unit_reduce_grads(unit(), maybe(&config), nullptr, &new_work_);
  if (status == FSCCL_IN_PROGRESS) fsccl_work_wait(new_work_, -1);  // it writes to `result`
  return keep_work(status);
}

fsccl_status_t Monkey::call_memory(size_t what) {
  int number = 0;
  void* block = nullptr;
  uint64_t released = 0;
  switch (what) {
    case 0:
      return comms_.size() < 6 ? make_comm() : fsccl_comm_size(comm(), maybe(&number));
    case 1: {
      if (random_.below(4)) return fsccl_comm_rank(comm(), maybe(&number));
      const fsccl_comm_t victim = comm();
      if (random_.below(8) == 0 && fsccl_comm_abort(victim) != FSCCL_OK) return last_error().code;
      const fsccl_status_t status = fsccl_comm_destroy(victim);
      if (status == FSCCL_OK) bury(comms_, victim);
      return status;
    }
    case 2: {
      fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
      config.limit_bytes = random_.below(2) ? 64 << 20 : random_.below(1 << 20);
      config.memory = wild<fsccl_memory_t>(random_.below(20) == 0 ? 1 : 0);
      if (random_.below(20) == 0) config.size = random_.below(100);
      fsccl_pool_t made = nullptr;
      if (pools_.size() >= 6) return fsccl_pool_step(pool());
      const fsccl_status_t status = fsccl_pool_create(comm(), maybe(&config), maybe(&made));
      if (made) pools_.push_back(made);
      return status;
    }
    case 3: {
      const fsccl_pool_t victim = pool();
      const fsccl_status_t status = fsccl_pool_destroy(victim);
      if (status == FSCCL_OK) bury(pools_, victim);
      return status;
    }
    case 4:
      return units_.size() < 10 ? make_unit() : fsccl_unit_mark_changed(unit());
    case 5: {
      const fsccl_unit_t victim = unit();
      const fsccl_status_t status = fsccl_unit_destroy(victim);
      if (status == FSCCL_OK)
        units_.erase(victim), graves_.push_back(reinterpret_cast<uintptr_t>(victim));
      return status;
    }
    case 6:
    case 7: {
      const fsccl_pool_t where = pool();
      const fsccl_status_t status = fsccl_pool_alloc(
          where, random_.below(20) ? random_.below(100'000) : count(), stream(), &block);
      if (status == FSCCL_OK) blocks_[block] = where;
      return status;
    }
    case 8:
    case 9: {
      if (blocks_.empty() || random_.below(8) == 0)
        return fsccl_pool_free(
            pool(), random_.below(2) ? memory_ : reinterpret_cast<void*>(random_.next()), nullptr);
      const auto found =
          std::next(blocks_.begin(), static_cast<std::ptrdiff_t>(random_.below(blocks_.size())));
      const auto [pointer, owner] = *found;
      const fsccl_status_t status = random_.below(6) == 0
                                        ? fsccl_pool_free(pool(), pointer, nullptr)
                                        : fsccl_pool_free(owner, pointer, nullptr);
      if (status == FSCCL_OK) blocks_.erase(found);
      return status;
    }
    case 10: {
      fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
      stats.size -= random_.below(20) == 0;
      return fsccl_pool_stats(pool(), maybe(&stats));
    }
    default:
      return fsccl_pool_trim(pool(), maybe(&released));
  }
}

fsccl_status_t Monkey::call_unit(size_t what) {
  switch (what) {
    case 12:
      return schedule();
    case 13:
      return fsccl_pool_step(pool());
    case 14:
    case 15:
    case 16:
      return keep_work(fsccl_unit_unshard(
          unit(),
          wild<fsccl_unshard_mode_t>(static_cast<int>(random_.below(random_.below(9) ? 2 : 4))),
          nullptr, work_out()));
    case 17:
      return fsccl_unit_release(unit(), random_.below(6), nullptr);
    case 18:
      return fsccl_unit_reshard(unit(), nullptr);
    case 19:
      return fsccl_unit_param(unit(), random_.below(6), view_out());
    case 20:
      return fsccl_unit_shard(unit(), random_.below(6), view_out());
    case 21:
    case 22:
      return fsccl_unit_grad(unit(), random_.below(6), nullptr, view_out());
    case 23:
      return fsccl_unit_sharded_grad(unit(), random_.below(6), view_out());
    case 24:
    case 25:
      return reduce();
    default:
      return keep_work(fsccl_unit_broadcast_state(unit(), small(), nullptr, work_out()));
  }
}

fsccl_status_t Monkey::call_collective(size_t what) {
  int number = 0;
  fsccl_status_t state = FSCCL_OK;
  switch (what) {
    case 27:
      return keep_work(
          fsccl_all_gather(buffer(), buffer(), count(), dtype(), comm(), stream(), work_out()));
    case 28:
      return keep_work(fsccl_reduce_scatter(buffer(), buffer(), count(), dtype(), op(), comm(),
                                            stream(), work_out()));
    case 29:
      return keep_work(fsccl_all_reduce(buffer(), buffer(), count(), dtype(), op(), comm(),
                                        stream(), work_out()));
    case 30:
      return keep_work(
          fsccl_broadcast(buffer(), count(), dtype(), small(), comm(), stream(), work_out()));
    case 31:
      return keep_work(fsccl_barrier(comm(), stream(), work_out()));
    case 32:
      return fsccl_work_test(work());
    case 33:
      return fsccl_work_wait(work(), random_.below(2) ? -1 : 0);
    case 34:
      return fsccl_work_error(work());
    case 35:
      return fsccl_work_release(work());
    case 36:
      return fsccl_comm_async_error(comm(), maybe(&state));
    case 37:
      return fsccl_comm_local_rank(comm(), maybe(&number), maybe(&number));
    case 38:
      return fsccl_config_set(random_.below(2) ? "FSCCL_EAGER_BYTES" : "FSCCL_EAGER_BITES",
                              random_.below(2) ? "16K" : "many");
    default: {
      fsccl_counters_t counters = FSCCL_COUNTERS_INIT;
      return fsccl_comm_counters(comm(), maybe(&counters));
    }
  }
}

class Calls : public ::testing::TestWithParam<int> {};

TEST_P(Calls, RandomOnes) {
  Monkey monkey(static_cast<uint64_t>(GetParam()));
  for (int i = 0; i < 50'000 && !HasFailure(); ++i) monkey.call();
  // The test is only useful if the greater part of these calls succeeds.
  EXPECT_GT(monkey.counts().at(FSCCL_OK), 5'000);
  for (const fsccl_status_t code : {FSCCL_ERR_INVALID_ARGUMENT, FSCCL_ERR_INVALID_HANDLE,
                                    FSCCL_ERR_INVALID_STATE, FSCCL_ERR_NOT_AVAILABLE})
    EXPECT_TRUE(monkey.counts().contains(code)) << fsccl_status_string(code);
  monkey.clean();
  run_ranks(1, [](Rank& self) {
    const PoolScope pool(self.comm);
    EXPECT_EQ(pool.stats().live_bytes, 0u);
    EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
  });
}

INSTANTIATE_TEST_SUITE_P(Seeds, Calls, ::testing::Range(1, 4));

// Two ranks make valid sequences of calls that the generator chooses. One rank makes wrong calls in
// between, which are refused and disturb nothing.
TEST(Calls2, WrongCallsBetweenRightOnes) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm);
    Random random(9), own(static_cast<uint64_t>(self.rank) + 5);
    UnitCase c = simple_unit({{30, 5}, {7}});
    TestUnit unit(c, self.comm, pool.get());
    unit.write_shards(1);
    for (uint64_t i = 1; i < 3000 && !HasFailure(); ++i) {
      switch (own.below(8)) {
        case 0:
          EXPECT_LT(fsccl_all_gather(nullptr, nullptr, 5, FSCCL_INT8, self.comm, nullptr, nullptr),
                    0);
          break;
        case 1:
          EXPECT_LT(fsccl_broadcast(&c, 1, FSCCL_INT8, 2, self.comm, nullptr, nullptr), 0);
          break;
        case 2:
          EXPECT_LT(fsccl_unit_reshard(unit.get(), nullptr), 0);
          break;
        case 3:
          EXPECT_LT(fsccl_comm_destroy(self.comm), 0);
          break;
        case 4:
          EXPECT_LT(fsccl_pool_destroy(pool.get()), 0);
          break;
        case 5:
          EXPECT_LT(fsccl_unit_reduce_grads(unit.get(), nullptr, nullptr, nullptr), 0);
          break;
        default:
          break;
      }
      switch (random.below(3)) {
        case 0:
          run_collective(random_case(random, 2, 4000), self, pool.get());
          break;
        case 1:
          unit.unshard();
          unit.check_params(1);
          unit.reshard();
          break;
        default:
          unit.write_grads(i, self.rank);
          unit.reduce(nullptr);
          unit.check_sharded_grads({{i}});
      }
    }
  });
}

}  // namespace
}  // namespace fsccl::testing
