// Bytes that a rank has offered and that are being fetched to their place here. This keeps the
// memory there alive, even if the channel is closed.
#pragma once
#include "transports/ucx/node.h"
#include "transports/ucx/registration.h"

namespace fsccl::ucx {

struct Node::Fetching {
  Node* node;
  uint64_t channel;
  int from, peer;  // rank of the job, and of the channel
  mirror::Header header;
  std::byte* place;
  std::shared_ptr<mirror::Mirrors> memory;
  std::shared_ptr<Registration> registration;  // registration of a get
  uint32_t number;                             // number of the offer
  size_t bytes;
};

}  // namespace fsccl::ucx
