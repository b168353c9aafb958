// The TCP transport's table (see README.md).
#pragma once
#include "fsccl/transport.h"

namespace fsccl {
const fsccl_transport_ops_t* tcp_transport();
}
