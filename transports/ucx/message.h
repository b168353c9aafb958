// A message as UCX carries it: an active message of one kind, whose header is this one.
#pragma once
#include <array>

#include "transports/mirror/message.h"

namespace fsccl::ucx {

// Who speaks, and that it belongs to the job: a proof over the nonces of both, which only the ranks of the job can make. UCX itself
// knows no such thing: whoever can connect can send.
using Token = std::array<uint64_t, 2>;

struct Envelope {
  Token token;
  mirror::Header header;
  uint32_t from;  // rank of the job
  uint32_t sum;   // with FSCCL_CHECKSUM: CRC32C of all before it, else 0
};
static_assert(sizeof(Envelope) == 128);

}  // namespace fsccl::ucx
