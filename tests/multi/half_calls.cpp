#include "multi/half_calls.h"

#include <cstdio>
#include <cstring>

namespace fsccl::testing {

void must(bool good, const std::string& what) {
  if (good) return;
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&error);
  std::printf("%s (last error: %d, %s)\n", what.c_str(), error.code, error.text);
  std::fflush(nullptr);
  _exit(1);
}

void must_do(fsccl_status_t status, const char* what) {
  if (status >= 0) return;
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&error);
  if (status == FSCCL_ERR_OUT_OF_MEMORY &&
      std::strstr(error.text, "for what it exchanges with rank"))
    _exit(kLinkBroken);
  must(false, what);
}

fsccl_comm_t part_of(fsccl_comm_t world, int color) {
  fsccl_comm_t part = nullptr;
  must_do(fsccl_comm_split(world, color, 0, nullptr, &part), "split");
  return part;
}

MadeUnit::Params MadeUnit::params() {
  Params params;
  params.fill(fsccl_param_t FSCCL_PARAM_INIT);
  for (fsccl_param_t& param : params) param.dims = 2, param.shape[0] = 64, param.shape[1] = 257;
  return params;
}

MadeUnit::MadeUnit(const UnitCase& c, const Child& self, fsccl_comm_t world) : case_(c) {
  shards_ = part_of(world, c.replicas ? self.rank / 2 : 0);
  if (c.replicas) replicas_ = part_of(world, self.rank % 2);
  must_do(fsccl_pool_create(shards_, nullptr, &pool_), "pool_create");
}

fsccl_status_t MadeUnit::create() {
  const Params given = params();
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  config.shard_comm = shards_;
  config.replicate_comm = replicas_;
  config.pool = pool_;
  config.gather_codec = case_.gather;
  config.reduce_codec = case_.sums;
  return fsccl_unit_create(&config, given.data(), given.size(), &unit_);
}

void MadeUnit::destroy() {
  if (unit_) must_do(fsccl_unit_destroy(unit_), "unit_destroy");
  must_do(fsccl_pool_destroy(pool_), "pool_destroy");
  if (replicas_) must_do(fsccl_comm_destroy(shards_), "destroy");
}

}  // namespace fsccl::testing
