// The UCX transport (see node.h).
#pragma once
#include "transports/exchange.h"
#include "transports/transport.h"

namespace fsccl {
namespace ucx {
inline constexpr const char* kNotBuilt =
    "this library was built without the headers of UCX 1.13 or later (Debian: libucx-dev)";
// UCX moves larger messages in pieces of its own.
inline constexpr size_t kMostSlotBytes = 128u << 10;
// These are the functions of ../exchange.h.
ExchangeTerms exchange_terms();
Result<std::unique_ptr<Exchange>> make_exchange(int rank, int ranks);
}  // namespace ucx
const Transport* ucx_transport();
}  // namespace fsccl
