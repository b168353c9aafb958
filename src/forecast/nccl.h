// The time of a collective that NCCL carries over rings: the latency of NCCL's own tuner
// (src/graph/tuning.cc of 2.3x: base 6.6, 14 and 8.4 us, hops of 0.6, 1.9 and 3.4 us over NVLink,
// 1.0, 2.5 and 5.7 us over PCIe and 2.7, 4.0 and 14 us over the network for the protocols LL, LL128
// and Simple; LL moves half of the bandwidth, LL128 0.92 of it), and the bytes over the narrowest
// link. All-gathers of 16 GiB on 8 H200 reach 361 of 450 GB/s (stas00/ml-engineering,
// network/benchmarks): 0.8 of the link; EFA with 400 Gbit/s reaches 340: 0.85.
#pragma once
#include "forecast/machine.h"
#include "forecast/prices.h"

namespace fsccl::forecast {

enum class NcclOp : uint8_t { all_gather, reduce_scatter, all_reduce };

// `bytes` of the larger buffer.
Carried nccl_price(NcclOp op, double bytes, const Group& group, const Machine& machine);

}  // namespace fsccl::forecast
