// The time of a collective that NCCL carries over rings: the latency in NCCL's own tuner, and the
// time of the bytes over the narrowest link. The tuner (src/graph/tuning.cc of NCCL 2.3x) has these
// numbers for the protocols LL, LL128 and Simple: base 6.6, 14 and 8.4 us; a hop of 0.6, 1.9 and
// 3.4 us over NVLink, of 1.0, 2.5 and 5.7 us over PCIe, and of 2.7, 4.0 and 14 us over the network.
// LL reaches half of the bandwidth, LL128 0.92 of it. All-gathers of 16 GiB on 8 H200 reach 361
// of 450 GB/s (stas00/ml-engineering, network/benchmarks), which is 0.8 of the link. EFA with
// 400 Gbit/s reaches 340, which is 0.85.
#pragma once
#include "forecast/machine.h"
#include "forecast/prices.h"

namespace fsccl::forecast {

enum class NcclOp : uint8_t { all_gather, reduce_scatter, all_reduce };

// `bytes` is the size of the larger buffer.
Carried nccl_price(NcclOp op, double bytes, const Group& group, const Machine& machine);

}  // namespace fsccl::forecast
