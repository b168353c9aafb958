#include "perf/pool/fsdp2_order.h"

#include <optional>

#include "perf/pool/caching_policy.h"

namespace fsccl::perf {
namespace {

enum Stream : uint32_t { kCompute, kGather };
constexpr uint64_t kReducedBytes = 4;

class Step {
 public:
  Step(const Model& model, uint64_t ranks, uint64_t wire_bytes)
      : model_(model), ranks_(ranks), wire_bytes_(wire_bytes) {
    copied_.assign(model.units.size(), false);
    gathered_.assign(model.units.size(), false);
  }

  void gather(size_t unit) {
    if (gathered_[unit] || copied_[unit]) return;
    take(kGather, key(unit, kGathered), padded(unit) * wire_bytes_);
    gathered_[unit] = true;
  }
  // Copies a gathered unit out. The gathered buffer of the unit before is free then. The unit's own
  // buffer is free once the next unit is copied out, or at once if `at_once` is set.
  void copy_out(size_t unit, bool at_once) {
    if (copied_[unit]) return;
    gather(unit);
    end_copies();
    const auto& params = model_.units[unit].params;
    for (size_t i = 0; i < params.size(); i++)
      take(kCompute, key(unit, kParameter, i), padded(params[i]) * wire_bytes_);
    copied_[unit] = true;
    last_copied_ = unit;
    if (at_once) end_copies();
  }
  void end_copies() {
    if (!last_copied_) return;
    give_back(key(*last_copied_, kGathered));
    gathered_[*last_copied_] = false;
    last_copied_.reset();
  }
  void reshard(size_t unit) {
    for (size_t i = 0; i < model_.units[unit].params.size(); i++)
      give_back(key(unit, kParameter, i));
    copied_[unit] = false;
  }
  void reduce(size_t unit) {
    const auto& params = model_.units[unit].params;
    for (size_t i = params.size(); i-- > 0;)
      take(kCompute, key(unit, kGradient, i), params[i].elements() * wire_bytes_);
    reshard(unit);
    end_reduction();
    take(kCompute, key(unit, kReduced), padded(unit) * kReducedBytes);
    for (size_t i = 0; i < params.size(); i++) give_back(key(unit, kGradient, i));
    reducing_ = unit;
  }
  void end_reduction() {
    if (reducing_) give_back(key(*reducing_, kReduced));
    reducing_.reset();
  }
  std::vector<fsccl::StepEvent> events() && { return std::move(events_); }

 private:
  enum Kind : uint64_t { kGathered, kParameter, kGradient, kReduced };

  static uint64_t key(size_t unit, Kind kind, size_t param = 0) {
    return uint64_t{unit} << 24 | uint64_t{param} << 2 | kind;
  }
  void take(Stream stream, uint64_t key, uint64_t bytes) {
    if (bytes) events_.push_back({StepOp::kTake, false, stream, key, bytes});
  }
  void give_back(uint64_t key) { events_.push_back({StepOp::kGiveBack, false, 0, key, 0}); }
  // Returns the elements of a parameter after padding, which gives every rank as many rows as the
  // first rank has.
  uint64_t padded(const ModelParam& param) const {
    if (param.dims.empty() || param.elements() == 0) return param.elements();
    const auto rows = static_cast<uint64_t>(param.dims[0]);
    return (rows + ranks_ - 1) / ranks_ * ranks_ * (param.elements() / rows);
  }
  uint64_t padded(size_t unit) const {
    uint64_t sum = 0;
    for (const ModelParam& param : model_.units[unit].params) sum += padded(param);
    return sum;
  }

  const Model& model_;
  uint64_t ranks_, wire_bytes_;
  std::vector<fsccl::StepEvent> events_;
  std::vector<bool> gathered_, copied_;
  std::optional<size_t> last_copied_, reducing_;
};

}  // namespace

std::vector<fsccl::StepEvent> fsdp2_step(const Model& model, uint64_t ranks, uint64_t wire_bytes,
                                         const std::vector<bool>& kept) {
  Step step(model, ranks, wire_bytes);
  const size_t units = model.units.size();
  for (size_t u = 0; u < units; u++) {
    step.copy_out(u, false);
    if (u != model.stays && !kept[u]) step.reshard(u);
  }
  step.end_copies();
  for (size_t u = units; u-- > 0;) {
    step.copy_out(u, true);
    if (u > 0) step.gather(u - 1);
    step.reduce(u);
  }
  step.end_reduction();
  return std::move(step).events();
}

uint64_t fsdp2_reserved_bytes(const std::vector<fsccl::StepEvent>& step, bool expandable) {
  constexpr int kSteps = 4;  // the reserved bytes do not grow in later steps
  CachingPolicy policy(expandable);
  for (int i = 0; i < kSteps; i++)
    for (const fsccl::StepEvent& event : step) policy.apply(event);
  return policy.reserved_bytes();
}

}  // namespace fsccl::perf
