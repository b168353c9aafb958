// The TCP transport (see README.md).
#pragma once
#include "transports/transport.h"

namespace fsccl {
const Transport* tcp_transport();
}
