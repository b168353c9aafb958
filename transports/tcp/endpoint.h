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
// Decodes the front of `bytes`.
Result<Endpoint> decode_endpoint(ByteView bytes);
// On the interface of FSCCL_TCP_INTERFACE, else of FSCCL_BOOTSTRAP_INTERFACE, else on all that are
// up.
Result<Endpoint> own_endpoint(uint16_t port);

}  // namespace fsccl::tcp
