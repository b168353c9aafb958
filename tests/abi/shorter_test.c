/* Tests a program that was compiled with an older header, whose structs were shorter. The library
 * must neither read nor write a byte beyond their size. */
#include <fsccl/allocator.h>
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <fsccl/publish.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static int failures;

#define CHECK(call)                                                                            \
  do {                                                                                         \
    const fsccl_status_t status_ = (call);                                                     \
    fsccl_error_info_t info_ = FSCCL_ERROR_INFO_INIT;                                          \
    (void)fsccl_last_error(&info_);                                                            \
    if (status_ != FSCCL_OK) {                                                                 \
      printf("%s:%d: %s: %s\n", __FILE__, __LINE__, fsccl_status_string(status_), info_.text); \
      ++failures;                                                                              \
    }                                                                                          \
  } while (0)

/* Memory for a struct, and behind it bytes that the library may not touch. */
typedef union {
  size_t size;
  unsigned char bytes[1024];
} room_t;

static void begin(room_t* room, size_t size) {
  memset(room->bytes, 0xa5, sizeof room->bytes);
  room->size = size;
}

static void end(const room_t* room, size_t size, const char* name) {
  size_t i;
  int beyond = 0, within = 0;
  for (i = size; i < sizeof room->bytes; ++i) beyond += room->bytes[i] != 0xa5;
  for (i = sizeof(size_t); i < size; ++i) within += room->bytes[i] != 0xa5;
  if (room->size != size || beyond || (size > sizeof(size_t) && !within)) {
    printf("%s of %u bytes: size %u, %d bytes beyond it, %d within\n", name, (unsigned)size,
           (unsigned)room->size, beyond, within);
    ++failures;
  }
}

/* Makes the call with every size that the struct of an older or newer header may have. The call
 * must leave the size as it was, and not touch fields that the library does not know. */
#define WITH_EACH_SIZE(type, call)                                         \
  do {                                                                     \
    size_t size_;                                                          \
    for (size_ = sizeof(size_t); size_ <= sizeof(type) + 16; size_ += 8) { \
      room_t room;                                                         \
      type* const out = (type*)(void*)room.bytes;                          \
      begin(&room, size_);                                                 \
      CHECK(call);                                                         \
      end(&room, size_, #type);                                            \
    }                                                                      \
  } while (0)

static void check_publishing(fsccl_comm_t comm) {
  float weights[4] = {1, 2, 3, 4}, received[4] = {0, 0, 0, 0};
  const size_t all = 8;
  fsccl_publish_config_t published = FSCCL_PUBLISH_CONFIG_INIT;
  fsccl_subscribe_config_t wanted = FSCCL_SUBSCRIBE_CONFIG_INIT;
  fsccl_publisher_t publisher;
  fsccl_subscriber_t subscriber;
  fsccl_param_t weight = FSCCL_PARAM_INIT;
  fsccl_unique_id_t id;
  weight.dims = 1;
  weight.shape[0] = 4;
  weight.shard = weights;
  published.params = wanted.params = &weight;
  published.count = wanted.count = 1;
  CHECK(fsccl_publisher_create(&published, comm, &publisher));
  CHECK(fsccl_publisher_ticket(publisher, &id));
  wanted.ticket = &id;
  wanted.size = offsetof(fsccl_subscribe_config_t, param_size);
  wanted.param_size = 4000; /* lies beyond the struct's size, so the library must not read it */
  weight.shard = received;
  CHECK(fsccl_subscribe(&wanted, &subscriber));
  WITH_EACH_SIZE(fsccl_publish_report_t, fsccl_publisher_report(publisher, out));
  WITH_EACH_SIZE(fsccl_subscribe_report_t, fsccl_subscriber_report(subscriber, out));
  /* Each size publishes a version of its own, because a publication has no field that all sizes
   * have. */
  WITH_EACH_SIZE(fsccl_publication_t, (fsccl_publish(publisher, NULL, size_ / all),
                                       fsccl_subscriber_update(subscriber, -1, out)));
  if (received[3] != 4) printf("what was published did not come\n"), ++failures;
  CHECK(fsccl_subscriber_destroy(subscriber));
  CHECK(fsccl_publisher_destroy(publisher));
}

int main(void) {
  fsccl_comm_config_t where = FSCCL_COMM_CONFIG_INIT;
  fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  fsccl_allocator_t host = FSCCL_ALLOCATOR_INIT, counts = FSCCL_ALLOCATOR_INIT;
  fsccl_param_t weight = FSCCL_PARAM_INIT;
  fsccl_unique_id_t id;
  fsccl_unit_t unit;
  fsccl_view_t view;
  CHECK(fsccl_unique_id_create(&id));
  where.unique_id = &id;
  where.ranks = 1;
  where.rank = 0;
  CHECK(fsccl_comm_create(&where, &config.shard_comm));
  CHECK(fsccl_pool_create(config.shard_comm, &memory, &config.pool));
  WITH_EACH_SIZE(fsccl_pool_stats_t, fsccl_pool_stats(config.pool, out));
  WITH_EACH_SIZE(fsccl_counters_t, fsccl_comm_counters(config.shard_comm, out));
  WITH_EACH_SIZE(fsccl_launch_info_t, fsccl_launcher(out));
  WITH_EACH_SIZE(fsccl_error_info_t, fsccl_last_error(out));
  weight.dims = 1;
  weight.shape[0] = 4;
  WITH_EACH_SIZE(fsccl_layout_stats_t,
                 fsccl_layout_plan(FSCCL_LAYOUT_FLAT, &weight, 1, 2, 0, NULL, out));
  CHECK(fsccl_allocator_host(&host));
  CHECK(fsccl_allocator_count(&host, &counts));
  WITH_EACH_SIZE(fsccl_allocator_stats_t, fsccl_allocator_stats(&counts, out));

  check_publishing(config.shard_comm);
  /* The config has not its last fields, so its two parameters have the size of release 0.1. */
  {
    fsccl_param_t two[2] = {FSCCL_PARAM_INIT, FSCCL_PARAM_INIT};
    two[0].dims = two[1].dims = 1;
    two[0].shape[0] = 3;
    two[1].shape[0] = 5;
    config.size = offsetof(fsccl_unit_config_t, param_size);
    config.param_size = 4000; /* lies beyond the struct's size, so the library must not read it */
    CHECK(fsccl_unit_create(&config, two, 2, &unit));
    CHECK(fsccl_unit_shard(unit, 1, &view));
    if (view.count != 5) printf("parameter 1 has %u elements\n", (unsigned)view.count), ++failures;
    CHECK(fsccl_unit_destroy(unit));
  }
  /* The parameters are longer, as with a newer header. */
  {
    struct {
      fsccl_param_t known;
      uint64_t unknown;
    } two[2] = {{FSCCL_PARAM_INIT, 7}, {FSCCL_PARAM_INIT, 7}};
    two[0].known.dims = two[1].known.dims = 1;
    two[0].known.shape[0] = 3;
    two[1].known.shape[0] = 6;
    config.size = sizeof config;
    config.param_size = sizeof two[0];
    CHECK(fsccl_unit_create(&config, &two[0].known, 2, &unit));
    CHECK(fsccl_unit_shard(unit, 1, &view));
    if (view.count != 6) printf("parameter 1 has %u elements\n", (unsigned)view.count), ++failures;
    CHECK(fsccl_unit_destroy(unit));
    config.param_size = 12;
    if (fsccl_unit_create(&config, &two[0].known, 2, &unit) != FSCCL_ERR_INVALID_ARGUMENT)
      printf("a param_size of 12 was taken\n"), ++failures;
  }
  CHECK(fsccl_pool_destroy(config.pool));
  CHECK(fsccl_comm_destroy(config.shard_comm));
  if (failures) return 1;
  printf("shorter and longer structs are read and written up to their sizes\n");
  return 0;
}
