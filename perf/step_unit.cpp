#include "step_unit.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "drift.h"
#include "fsccl/codec.h"
#include "fsccl/insight.h"
#include "verify.h"

namespace fsccl::perf {

Memory4k::Memory4k(uint64_t bytes, bool addresses_only) : bytes_(std::max<uint64_t>(bytes, 1)) {
  const int access = addresses_only ? PROT_NONE : PROT_READ | PROT_WRITE;
  void* data = mmap(nullptr, bytes_, access,
                    MAP_PRIVATE | MAP_ANONYMOUS | (addresses_only ? MAP_NORESERVE : 0), -1, 0);
  if (data == MAP_FAILED) {
    fmt::print(
        stderr,
        "fsccl-perf: no memory for {} bytes of shards or gradients: {}; use fewer --layers\n",
        bytes_, strerror(errno));
    std::_Exit(1);
  }
  data_ = static_cast<char*>(data);
}
Memory4k::~Memory4k() {
  if (data_) munmap(data_, bytes_);
}
Memory4k::Memory4k(Memory4k&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

uint64_t gradient_bytes(const ModelUnit& unit, const StepOptions& options) {
  uint64_t sum = 0;
  for (const ModelParam& param : unit.params)
    sum += (param.elements() * fsccl_dtype_size(options.wire) + 63) / 64 * 64;
  return sum;
}

StepUnit::StepUnit(const Session& session, const ModelUnit& unit, size_t index, bool stays,
                   const StepOptions& options, char* gradients)
    : session_(session), options_(options) {
  std::vector<fsccl_param_t> definitions = params_of(unit, options.block);
  std::vector<fsccl_piece_t> pieces(definitions.size());
  must(fsccl_layout_plan(options.layout, definitions.data(), definitions.size(), session.ranks(),
                         session.rank(), pieces.data(), nullptr),
       "fsccl_layout_plan");
  for (size_t i = 0; i < unit.params.size(); i++) {
    Param param;
    param.elements = unit.params[i].elements();
    param.first = pieces[i].begin;
    param.count = pieces[i].count;
    param.stream = static_cast<uint32_t>(2 * (index * 4096 + i));
    param.shard =
        reinterpret_cast<float*>(memory_.emplace_back(param.count * 4, options.dry_run).data());
    param.sharded_grad =
        reinterpret_cast<float*>(memory_.emplace_back(param.count * 4, options.dry_run).data());
    if (!options.gradient_slots) {
      param.grad = gradients;
      private_grads_.push_back(gradients);
      gradients += (param.elements * fsccl_dtype_size(options.wire) + 63) / 64 * 64;
    }
    definitions[i].shard = param.shard;
    definitions[i].sharded_grad = param.sharded_grad;
    params_.push_back(param);
  }
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  config.name = unit.name.c_str();
  config.layout = options.layout;
  config.shard_comm = session.comm();
  config.pool = session.pool();
  config.wire_dtype = options.wire;
  config.reduce_dtype = options.wire;
  config.grad_dtype = FSCCL_FLOAT32;
  config.sharing = options.shared ? FSCCL_SHARING_READ_ONLY : FSCCL_SHARING_PRIVATE;
  config.by_parameter = options.by_parameter;
  // a unit that stays is not gathered twice in a step
  config.keep = stays ? FSCCL_KEEP_NONE : options.keep;
  config.keep_budget_bytes = options.keep_budget_bytes;
  fsccl_codec_t codec = FSCCL_CODEC_INIT;
  codec.kind = options.codec;
  if (options.codec_always && options.codec == FSCCL_CODEC_DELTA)
    codec.flags = FSCCL_CODEC_NEVER_DECLINES;
  if (options.codec != FSCCL_CODEC_NONE) config.gather_codec = &codec;
  must(fsccl_unit_create(&config, definitions.data(), definitions.size(), &unit_),
       "fsccl_unit_create");
}

StepUnit::~StepUnit() { must(fsccl_unit_destroy(unit_), "fsccl_unit_destroy"); }

void StepUnit::unshard(fsccl_work_t* work) {
  const fsccl_status_t status = fsccl_unit_unshard(unit_, FSCCL_UNSHARD_READ, nullptr, work);
  must(work && status == FSCCL_IN_PROGRESS ? FSCCL_OK : status, "fsccl_unit_unshard");
}

void StepUnit::reshard() { must(fsccl_unit_reshard(unit_, nullptr), "fsccl_unit_reshard"); }

void StepUnit::release(size_t param) {
  must(fsccl_unit_release(unit_, param, nullptr), "fsccl_unit_release");
}

void StepUnit::take_gradients() {
  for (size_t i = 0; i < params_.size(); i++) take_gradient(i);
}

void StepUnit::take_gradient(size_t param) {
  if (!options_.gradient_slots) return;
  fsccl_view_t view;
  must(fsccl_unit_grad(unit_, param, nullptr, &view), "fsccl_unit_grad");
  params_[param].grad = view.data;
}

void StepUnit::reduce() { reduce(0, 0); }
void StepUnit::reduce(size_t param) { reduce(param, 1); }

void StepUnit::reduce(size_t first, size_t count) {
  fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
  config.first = first;
  config.count = count;
  if (!options_.gradient_slots) config.grads = private_grads_.data();
  must(fsccl_unit_reduce_grads(unit_, &config, nullptr, nullptr), "fsccl_unit_reduce_grads");
}

void StepUnit::write_shards(uint32_t generation) {
  for (Param& param : params_)
    if (options_.drifts)
      fill_drifted(param.shard, param.count, param.first, param.stream, generation);
    else
      fill(param.shard, FSCCL_FLOAT32, param.count, param.first,
           seeds_of(param.stream, generation, 0));
}

void StepUnit::write_gradients(uint32_t generation) {
  for (size_t i = 0; i < params_.size(); i++) write_gradient(i, generation);
}

void StepUnit::write_gradient(size_t param, uint32_t generation) {
  const Param& one = params_[param];
  fill(one.grad, options_.wire, one.elements, 0,
       seeds_of(one.stream + 1, generation, static_cast<uint32_t>(session_.rank())));
}

uint64_t StepUnit::look(uint32_t generation) const {
  constexpr uint64_t kLooks = 16;
  const uint64_t element = fsccl_dtype_size(options_.wire);
  uint64_t wrong = 0;
  for (size_t i = 0; i < params_.size(); i++) {
    fsccl_view_t view;
    must(fsccl_unit_param(unit_, i, &view), "fsccl_unit_param");
    const uint64_t count = params_[i].elements, looks = std::min(kLooks, count);
    for (uint64_t k = 0; k < looks; k++) {
      const uint64_t at = looks < 2 ? 0 : (count - 1) * k / (looks - 1);
      const char* const place = static_cast<const char*>(view.data) + at * element;
      wrong += options_.codec > FSCCL_CODEC_DELTA
                   ? count_far_drifted(place, options_.wire, 1, at, params_[i].stream, generation,
                                       options_.codec)
               : options_.drifts
                   ? count_wrong_drifted(place, options_.wire, 1, at, params_[i].stream, generation)
                   : count_wrong_cast(place, options_.wire, 1, at,
                                      seeds_of(params_[i].stream, generation, 0));
    }
  }
  return wrong;
}

uint64_t StepUnit::check_gathered(uint32_t generation) {
  unshard(nullptr);
  uint64_t wrong = 0;
  for (size_t i = 0; i < params_.size(); i++) {
    fsccl_view_t view;
    must(fsccl_unit_param(unit_, i, &view), "fsccl_unit_param");
    if (view.count != params_[i].elements || view.dtype != options_.wire)
      wrong += params_[i].elements;
    else if (options_.drifts)
      wrong += count_wrong_drifted(view.data, options_.wire, view.count, 0, params_[i].stream,
                                   generation);
    else
      wrong += count_wrong_cast(view.data, options_.wire, view.count, 0,
                                seeds_of(params_[i].stream, generation, 0));
  }
  reshard();
  return wrong;
}

uint64_t StepUnit::check_reduced(uint32_t generation) const {
  uint64_t wrong = 0;
  for (size_t i = 0; i < params_.size(); i++) {
    const Param& param = params_[i];
    fsccl_view_t view;
    must(fsccl_unit_sharded_grad(unit_, i, &view), "fsccl_unit_sharded_grad");
    if (view.count != param.count || (param.count > 0 && view.offset != param.first))
      wrong += std::max<uint64_t>(1, param.count);
    else
      wrong += count_wrong_reduced(view.data, FSCCL_FLOAT32, options_.wire, param.count,
                                   param.first, param.stream + 1, generation,
                                   static_cast<uint32_t>(session_.ranks()), FSCCL_AVG);
  }
  return wrong;
}

}  // namespace fsccl::perf
