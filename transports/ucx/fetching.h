// Bytes that a rank has offered, on their way to their place here; keeps the memory there, whatever
// becomes of the channel.
#pragma once
#include "transports/ucx/lending.h"
#include "transports/ucx/node.h"

namespace fsccl::ucx {

struct Node::Fetching {
  Node* node;
  uint64_t channel;
  int from, peer;  // rank of the job, and of the channel
  mirror::Header header;
  std::byte* place;
  std::shared_ptr<mirror::Mirrors> memory;
  std::shared_ptr<Lending> lending;  // of a get
  uint32_t number;                   // of the offer
  size_t bytes;
};

}  // namespace fsccl::ucx
