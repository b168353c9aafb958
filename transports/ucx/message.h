// A message as UCX carries it: an active message of one kind, whose header is this one.
#pragma once
#include <array>

#include "kernels/crc32c.h"
#include "transports/mirror/message.h"

namespace fsccl::ucx {

// Proves the sender, and that it belongs to the job: a proof over the nonces of both ranks, which
// only ranks of the job can make. UCX itself has no authentication: any process that can connect
// can send.
using Token = std::array<uint64_t, 2>;

enum class Act : uint32_t {
  message,  // its bytes are in it
  arrived,  // they have been put to the receiver's mirror
  offer,    // they can be got from the sender's ring; `number` is the sender's
  got,      // the bytes of offer `number` have arrived
  key,      // to the sender's mirrors of this channel, which begin at `header.at` and have `bytes`
  holds,    // the sender has, and may use, the receiver's key
  // the sender does not use a key of the receiver's any more, or never has; `number` 1: nor could
  // it
  returned,
};

struct Envelope {
  Token token;
  mirror::Header header;
  uint64_t bytes;  // bytes that are not in the message
  Act act;
  uint32_t number;
  uint32_t from;  // rank of the job
  uint32_t sum;   // with FSCCL_CHECKSUM: CRC32C of all before it, else 0
};
static_assert(sizeof(Envelope) == 144);
inline uint32_t checksum_of(const Envelope& envelope) {
  return crc32c(&envelope, offsetof(Envelope, sum));
}

}  // namespace fsccl::ucx
