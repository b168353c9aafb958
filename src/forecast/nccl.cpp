#include "forecast/nccl.h"

#include <algorithm>
#include <array>
#include <limits>

namespace fsccl::forecast {
namespace {

constexpr double kWithinReached = 0.8, kBetweenReached = 0.85;
constexpr double kPostUs = 1;  // time of a message to the proxy, on Intel processors

struct Protocol {
  double base_us, nvlink_us, pcie_us, network_us;
  double share;  // share of the bandwidth
  double posts;  // messages for each hop
};
constexpr std::array kProtocols{Protocol{6.6, 0.6, 1.0, 2.7, 0.5, 1},
                                Protocol{14, 1.9, 2.5, 4.0, 0.92, 1},
                                Protocol{8.4, 3.4, 5.7, 14, 1, 3}};

}  // namespace

Carried nccl_price(NcclOp op, double bytes, const Group& group, const Machine& machine) {
  Carried carried;
  if (group.ranks < 2 || bytes <= 0) return carried;
  const double passes = op == NcclOp::all_reduce ? 2 : 1;
  const double moved = passes * bytes * (group.ranks - 1) / group.ranks;
  // All ranks of a host use its network. If a group has only some ranks of a host, its rings have
  // their part of it.
  const double network =
      kBetweenReached * machine.between.gb_per_s *
      std::min(1.0, static_cast<double>(group.per_host) / machine.ranks_per_host);
  double rate = kWithinReached * machine.within.gb_per_s;
  if (group.hosts > 1) rate = group.per_host > 1 ? std::min(rate, network) : network;
  double ns = std::numeric_limits<double>::max();
  for (const Protocol& protocol : kProtocols) {
    const double hop =
        machine.within.link == topo::LinkClass::nvlink ? protocol.nvlink_us : protocol.pcie_us;
    const double inside = group.hosts > 1 ? std::max(hop, kPostUs * protocol.posts) : hop;
    const double latency = protocol.base_us + passes * ((group.ranks - group.hosts) * inside +
                                                        (group.hosts - 1) * protocol.network_us);
    ns = std::min(ns, latency * 1e3 + moved / (rate * protocol.share));
  }
  carried.ns = ns;
  carried.how = "nccl ring";
  // All rings together bring each host what one rank receives, once from another host.
  carried.between_bytes = group.hosts > 1 ? moved / group.per_host : 0;
  carried.within_bytes = moved - carried.between_bytes;
  return carried;
}

}  // namespace fsccl::forecast
