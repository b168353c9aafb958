// Tests where the memory of a unit lies: slots that may be written to, and shards and sharded
// gradients that move.
#include "unit_case.h"

namespace fsccl::testing {
namespace {

TEST(UnitMemory, WritableIsPrivateAndDropped) {
  for (const fsccl_sharing_t sharing : {FSCCL_SHARING_READ_ONLY, FSCCL_SHARING_PRIVATE})
    for (const fsccl_keep_t keep : {FSCCL_KEEP_NONE, FSCCL_KEEP_ALWAYS})
      run_ranks(3, [sharing, keep](Rank& self) {
        const PoolScope pool(self.comm);
        UnitCase c = simple_unit({{9, 4}, {5}});
        c.keep = keep;
        c.sharing = sharing;
        TestUnit unit(c, self.comm, pool.get());
        unit.write_shards(1);
        for (int round = 0; round < 3; ++round) {
          unit.unshard(FSCCL_UNSHARD_WRITABLE);
          unit.check_params(1);
          unit.write_params(100 + static_cast<uint64_t>(self.rank));  // other values on each rank
          unit.check_params(100 + static_cast<uint64_t>(self.rank));
          ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
          unit.check_params(100 + static_cast<uint64_t>(self.rank));
          unit.reshard();
          unit.check_shards(1);
          unit.unshard();
          unit.check_params(1);
          unit.reshard();
        }
      });
}

// A program that loads a checkpoint by assignment gives its parameters other memory, and a
// framework gives each reduction its own.
TEST(UnitMemory, ShardsAndShardedGradsMove) {
  for (const fsccl_layout_t layout : {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM})
    run_ranks(3, [layout](Rank& self) {
      const PoolScope pool(self.comm);
      UnitCase c = simple_unit({{9, 4}, {5}, {2}});
      c.layout = layout;
      c.params[0].own_shard = c.params[1].own_grad = true;
      TestUnit unit(c, self.comm, pool.get());
      unit.write_shards(1);
      std::vector<std::vector<char>> memory;
      std::vector<void*> shards, grads;
      for (size_t i = 0; i < unit.size(); ++i) {
        for (std::vector<void*>* places : {&shards, &grads})
          places->push_back(memory.emplace_back(1024).data());
      }
      unit.unshard();
      EXPECT_ERROR(fsccl_unit_set_shards(unit.get(), shards.data()), FSCCL_ERR_INVALID_STATE,
                   "reshard it");
      unit.reshard();
      EXPECT_ERROR(fsccl_unit_set_shards(unit.get(), nullptr), FSCCL_ERR_INVALID_ARGUMENT, "NULL");
      shards[1] = nullptr;  // this shard stays where it is
      ASSERT_OK(fsccl_unit_set_shards(unit.get(), shards.data()));
      unit.write_shards(2);
      fsccl_view_t view{};
      ASSERT_OK(fsccl_unit_shard(unit.get(), 0, &view));
      EXPECT_EQ(view.data, view.count ? shards[0] : nullptr);
      unit.unshard();
      unit.check_params(2);
      unit.write_grads(1, self.rank);
      unit.reshard();
      fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
      grads[2] = nullptr;
      config.sharded_grads = grads.data();
      unit.reduce(&config);
      unit.check_sharded_grads({{1}});
      ASSERT_OK(fsccl_unit_sharded_grad(unit.get(), 0, &view));
      EXPECT_EQ(view.data, view.count ? grads[0] : nullptr);
      unit.write_grads(2, self.rank);
      config.accumulate = 1;
      config.sharded_grads = nullptr;  // sharded gradients stay where they are
      unit.reduce(&config);
      unit.check_sharded_grads({{1}, {2, 0, true}});
    });
}

TEST(UnitMemory, CopyOnWriteKeepsWritesToOneRankAndOneTenancy) {
  for (const fsccl_keep_t keep : {FSCCL_KEEP_NONE, FSCCL_KEEP_ALWAYS})
    run_ranks(3, [keep](Rank& self) {
      const PoolScope pool(self.comm);
      UnitCase c = simple_unit({{90, 40}, {5}, {4000}});
      c.sharing = FSCCL_SHARING_COPY_ON_WRITE;
      c.keep = keep;
      // The second unit takes the slot that the first one left unsharded and written.
      for (int life = 0; life < 2; ++life) {
        TestUnit unit(c, self.comm, pool.get());
        for (uint64_t round = 1; round <= 4; ++round) {
          unit.write_shards(round);
          EXPECT_OK(fsccl_unit_mark_changed(unit.get()));
          unit.unshard();
          unit.check_params(round);
          if (self.rank != 1) unit.write_params(100 + static_cast<uint64_t>(self.rank));
          ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
          unit.check_params(self.rank == 1 ? round : 100 + static_cast<uint64_t>(self.rank));
          ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
          unit.reshard();
          unit.unshard();  // the parameters must be those of the shards, kept or gathered again
          unit.check_params(round);
          if (round == 4) unit.write_params(7);
          if (round != 4) unit.reshard();
        }
      }
      EXPECT_EQ(pool.stats().live_bytes, 0u);
    });
}

}  // namespace
}  // namespace fsccl::testing
