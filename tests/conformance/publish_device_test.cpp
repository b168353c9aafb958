// Tests that the weights of a publication lie in memory of the host on both sides. Calls with
// memory of a GPU are refused, and change nothing.
#include <fsccl/publish.h>

#include <vector>

#include "gpu.h"
#include "support.h"

namespace fsccl::testing {
namespace {

TEST(PublishDevice, MemoryOfAGpuIsRefused) {
  Gpu gpu(0);
  void* const there = gpu.memory(1 << 16);
  std::vector<uint16_t> weights(20, 7), got(20);
  fsccl_param_t param = FSCCL_PARAM_INIT;
  param.name = "w";
  param.dims = 1;
  param.shape[0] = 20;
  param.dtype = FSCCL_BFLOAT16;
  param.shard = there;
  fsccl_publish_config_t config = FSCCL_PUBLISH_CONFIG_INIT;
  config.params = &param;
  config.count = 1;
  run_ranks(1, [&](Rank& self) {
    fsccl_publisher_t publisher = nullptr;
    EXPECT_ERROR(fsccl_publisher_create(&config, self.comm, &publisher), FSCCL_ERR_NOT_AVAILABLE,
                 "parameter 0 ('w') is memory of GPU 0", "copy it there");
    param.shard = weights.data();
    ASSERT_OK(fsccl_publisher_create(&config, self.comm, &publisher));
    const void* const shards[] = {there};
    EXPECT_ERROR(fsccl_publish(publisher, shards, 1), FSCCL_ERR_NOT_AVAILABLE,
                 "parameter 0 ('w') is memory of GPU 0", "copy it there");
    ASSERT_OK(fsccl_publish(publisher, nullptr, 2)) << "the shards are those of the host";

    fsccl_unique_id_t ticket;
    ASSERT_OK(fsccl_publisher_ticket(publisher, &ticket));
    fsccl_subscribe_config_t wanted = FSCCL_SUBSCRIBE_CONFIG_INIT;
    wanted.ticket = &ticket;
    wanted.params = &param;
    wanted.count = 1;
    fsccl_subscriber_t subscriber = nullptr;
    param.shard = there;
    EXPECT_ERROR(fsccl_subscribe(&wanted, &subscriber), FSCCL_ERR_NOT_AVAILABLE,
                 "parameter 0 ('w') is memory of GPU 0", "copy it there");
    param.shard = got.data();
    ASSERT_OK(fsccl_subscribe(&wanted, &subscriber));
    fsccl_publication_t version = FSCCL_PUBLICATION_INIT;
    ASSERT_OK(fsccl_subscriber_update(subscriber, -1, &version));
    EXPECT_EQ(version.label, 2u);
    EXPECT_EQ(got, weights);
    EXPECT_OK(fsccl_subscriber_destroy(subscriber));
    EXPECT_OK(fsccl_publisher_destroy(publisher));
  });
}

}  // namespace
}  // namespace fsccl::testing
