#include "forecast/schedule.h"

#include <algorithm>

namespace fsccl::forecast {
namespace {

class Writer {
 public:
  explicit Writer(const Model& model) : model_(model), first_(model.first_trained()) {}
  void add(EventKind kind, size_t unit, bool backward, size_t param = Event::kAll) {
    events_.push_back({kind, unit, backward, param});
  }
  size_t units() const { return model_.units.size(); }

  std::vector<Event> by_unit(int prefetch) {
    pass(prefetch, false);
    pass(prefetch, true);
    return std::move(events_);
  }

  std::vector<Event> by_parameter(int prefetch) {
    const std::vector<ModelParam>& root = model_.units[0].params;
    const bool own_head = std::any_of(root.begin() + 1, root.end(), [&](const ModelParam& param) {
      return param.elements == root[0].elements;
    });
    std::vector<size_t> order;  // the root, the other units, the root again, and back
    const bool has_head = units() > 1 && root.size() > 1;
    for (size_t u = 0; u < units(); u++) order.push_back(u);
    if (has_head) order.push_back(0);
    for (size_t u = units(); u-- > std::max<size_t>(first_, 1);) order.push_back(u);
    const size_t forward = units() > 1 ? units() : 0;
    size_t issued = 0;
    // Gathers the visits before `end`, up to the first whose unit is there for one from `held` on.
    const auto gather_to = [&](size_t end, size_t held) {
      const auto at = [&](size_t k) { return order.begin() + static_cast<ptrdiff_t>(k); };
      for (; issued < std::min(end, order.size()); issued++) {
        if (std::find(at(held), at(issued), order[issued]) != at(issued)) return;
        add(EventKind::gather, order[issued], issued >= forward);
      }
    };
    const auto ahead = static_cast<size_t>(prefetch);
    gather_to(1, 0);
    for (size_t k = 0; k < order.size(); k++) {
      const size_t u = order[k];
      const bool backward = k >= forward;
      add(EventKind::wait, u, backward);
      if (backward && u == 0 && own_head) add(EventKind::give_back, 0, true, 0);
      gather_to(k + 1 + ahead, k);
      if (u != 0) add(EventKind::compute, u, backward);
      if (units() == 1 || (has_head && u == 0 && backward)) compute_head();
      if (backward) backward_params(u, u == 0 ? 1 : 0);
      add(EventKind::give_back, u, backward);
      // A root of one parameter is visited once, but its table is also the head.
      if (units() > 1 && !has_head && k + 1 == units()) compute_head();
      gather_to(k + 1 + std::max<size_t>(ahead, 1), k + 1);
    }
    if (!root[0].frozen) {
      add(EventKind::gradients, 0, true, 0);
      add(EventKind::reduce, 0, true, 0);
    }
    return std::move(events_);
  }

 private:
  void compute_head() {
    add(EventKind::compute, 0, false);
    add(EventKind::compute, 0, true);
  }

  // Writes a pass over the units. The root's parameters are needed first in the forward pass, and
  // its gradients are complete last in the backward pass, because of its embeddings. It is computed
  // between the two passes, because of its head. A first unit that is a layer is no such root.
  void pass(int prefetch, bool backward) {
    const bool has_root = model_.has_root();
    const auto unit_at = [&](size_t k) { return backward ? units() - 1 - k : k; };
    size_t issued = 0;
    const auto issue_to = [&](size_t end) {
      for (; issued < std::min(end, units()); issued++)
        if (const size_t u = unit_at(issued); !backward || (u != 0 && u >= first_))
          add(EventKind::gather, u, backward);
    };
    issue_to(1);
    if (backward && has_root) add(EventKind::compute, 0, true);
    for (size_t k = 0; k < units(); k++) {
      const size_t u = unit_at(k);
      if (backward && u != 0 && u < first_) continue;
      const bool reduces = backward && model_.units[u].trains();
      if (!backward || u != 0) add(EventKind::wait, u, backward);
      if (reduces) add(EventKind::gradients, u, true);
      if (prefetch > 0) issue_to(k + 1 + static_cast<size_t>(prefetch));
      const bool computes = !backward || model_.has_backward(u, first_);
      if (computes && (u != 0 || !has_root)) add(EventKind::compute, u, backward);
      if (backward || u != 0) add(EventKind::give_back, u, backward);
      if (reduces) add(EventKind::reduce, u, true);
      if (prefetch == 0) issue_to(k + 2);
    }
    if (!backward && has_root) add(EventKind::compute, 0, false);
  }
  void backward_params(size_t u, size_t begin) {
    const std::vector<ModelParam>& params = model_.units[u].params;
    size_t last = params.size();  // the parameter whose gradient has not been reduced yet
    for (size_t i = params.size(); i-- > begin;) {
      if (!params[i].frozen) add(EventKind::gradients, u, true, i);
      if (last < params.size()) add(EventKind::reduce, u, true, last);
      last = params[i].frozen ? params.size() : i;
      add(EventKind::give_back, u, true, i);
    }
    if (last < params.size()) add(EventKind::reduce, u, true, last);
  }

  const Model& model_;
  const size_t first_;  // the backward pass ends with this unit, and with the root if there is one
  std::vector<Event> events_;
};

}  // namespace

std::vector<Event> step_events(const Model& model, int prefetch, bool by_parameter) {
  Writer writer(model);
  return by_parameter ? writer.by_parameter(prefetch) : writer.by_unit(prefetch);
}

std::vector<bool> kept_units(const Model& model, const std::vector<uint64_t>& slot_bytes,
                             uint64_t keep_bytes) {
  std::vector<bool> kept(model.units.size(), false);
  uint64_t used = 0;
  for (size_t u = std::max<size_t>(model.first_trained(), 1); u < kept.size(); u++)
    if (slot_bytes[u] <= keep_bytes - used) kept[u] = true, used += slot_bytes[u];
  return kept;
}

}  // namespace fsccl::forecast
