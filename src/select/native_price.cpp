#include "select/native_price.h"

#include <algorithm>

namespace fsccl {

double NativePrice::at(uint64_t bytes) const {
  const auto next = std::find_if(points.begin(), points.end(),
                                 [&](const Point& point) { return point.bytes >= bytes; });
  if (next == points.begin()) return points.front().ns;
  const Point& before =
      next == points.end() && points.size() > 1 ? points[points.size() - 2] : *std::prev(next);
  const Point& after = next == points.end() ? points.back() : *next;
  const auto from = static_cast<double>(before.bytes), wanted = static_cast<double>(bytes);
  if (points.size() == 1) return before.ns * wanted / std::max(from, 1.0);
  const double slope =
      std::max(0.0, (after.ns - before.ns) / (static_cast<double>(after.bytes) - from));
  return before.ns + slope * (wanted - from);
}

const NativePrice* measured_price(const std::vector<NativePrice>* prices, OpCode op,
                                  Algorithm algorithm, const HostShape& host_shape) {
  if (!prices) return nullptr;
  const auto found = std::find_if(prices->begin(), prices->end(), [&](const NativePrice& one) {
    return one.op == even_form(op) && one.algorithm == algorithm && one.hosts == host_shape.hosts &&
           one.per_host == host_shape.per_host;
  });
  return found == prices->end() ? nullptr : &*found;
}

}  // namespace fsccl
