#include "shared_output.h"

namespace fsccl::perf {

SharedOutput::SharedOutput(const Session& session, SharedSlot slot, void* input, uint64_t elements,
                           fsccl_dtype_t dtype)
    : pool_(session.pool()) {
  fsccl_param_t param = FSCCL_PARAM_INIT;
  param.name = "output";
  const bool row = slot == SharedSlot::kRow;  // a parameter of a single row lies on rank 0 alone
  param.dims = row ? 2 : 1;
  param.shape[0] = row ? 1 : static_cast<int64_t>(elements);
  param.shape[1] = static_cast<int64_t>(elements);
  param.dtype = dtype;
  param.flags = FSCCL_PARAM_FROZEN;
  param.shard = input;
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  config.name = "shared output";
  config.layout = row ? FSCCL_LAYOUT_PER_PARAM : FSCCL_LAYOUT_FLAT;
  config.shard_comm = session.comm();
  config.pool = pool_;
  config.wire_dtype = dtype;
  config.sharing = FSCCL_SHARING_READ_ONLY;
  config.marks_changes = 1;
  must(fsccl_unit_create(&config, &param, 1, &unit_), "fsccl_unit_create");
}

SharedOutput::~SharedOutput() {
  if (gathered_) must(fsccl_unit_reshard(unit_, nullptr), "fsccl_unit_reshard");
  must(fsccl_unit_destroy(unit_), "fsccl_unit_destroy");
}

void SharedOutput::gather() {
  if (gathered_) {
    must(fsccl_pool_step(pool_), "fsccl_pool_step");
    must(fsccl_unit_reshard(unit_, nullptr), "fsccl_unit_reshard");
  }
  must(fsccl_unit_unshard(unit_, FSCCL_UNSHARD_READ, nullptr, nullptr), "fsccl_unit_unshard");
  gathered_ = true;
}

char* SharedOutput::data() const {
  fsccl_view_t view;
  must(fsccl_unit_param(unit_, 0, &view), "fsccl_unit_param");
  return static_cast<char*>(view.data);
}

}  // namespace fsccl::perf
