// What a rank tells the others of where it listens.
#pragma once
#include <vector>

#include "base/socket.h"
#include "wire/bytes.h"

namespace fsccl::tcp {

struct Card {
  uint16_t port = 0;
  std::vector<IpAddress> addresses;  // at most kMostAddresses, in the order in which they are tried
};
inline constexpr size_t kMostAddresses = 16;

Bytes encode(const Card& card);
// Of the front of `bytes`.
Result<Card> decode_card(ByteView bytes);
// On the interface of FSCCL_TCP_INTERFACE, else of FSCCL_BOOTSTRAP_INTERFACE, else on all that are
// up.
Result<Card> own_card(uint16_t port);

}  // namespace fsccl::tcp
