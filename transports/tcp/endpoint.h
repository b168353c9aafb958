// A rank's endpoint address, which tells the other ranks where it listens.
#pragma once
#include <vector>

#include "base/socket.h"
#include "wire/bytes.h"

namespace fsccl::tcp {

struct Endpoint {
  uint16_t port = 0;
  std::vector<IpAddress> addresses;  // at most kMostAddresses, in the order in which they are tried
};
inline constexpr size_t kMostAddresses = 16;

Bytes encode(const Endpoint& endpoint);
// Decodes an endpoint at the beginning of `bytes`.
Result<Endpoint> decode_endpoint(ByteView bytes);
// Returns the endpoint of this rank, with the addresses of the interface that FSCCL_TCP_INTERFACE
// or FSCCL_BOOTSTRAP_INTERFACE names, or otherwise of all interfaces that are up.
Result<Endpoint> own_endpoint(uint16_t port);

}  // namespace fsccl::tcp
