// The TCP transport (see node.h).
#pragma once
#include "transports/transport.h"

namespace fsccl {
const Transport* tcp_transport();
}
