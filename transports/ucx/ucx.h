// The UCX transport's table (see README.md).
#pragma once
#include "fsccl/transport.h"

namespace fsccl {
namespace ucx {
inline constexpr size_t kMostSlotBytes = 128u << 10;  // beyond, UCX moves messages in pieces of its own
}
const fsccl_transport_ops_t* ucx_transport();
}  // namespace fsccl
