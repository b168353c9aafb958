// A message as UCX carries it: an active message of one kind, whose header is this one. With
// FSCCL_CHECKSUM=1 the header is checked before it is used. One whose token has changed is dropped
// like a stranger's.
#pragma once
#include <array>

#include "kernels/crc32c.h"
#include "transports/mirror/message.h"

namespace fsccl::ucx {

// Proves that the sender belongs to the job, and which rank it is. It is a proof over the nonces of
// both ranks, which only ranks of the job can make. UCX itself has no authentication: any process
// that can connect can send.
using Token = std::array<uint64_t, 2>;

enum class Act : uint32_t {
  message,  // the message has its bytes
  arrived,  // the bytes have been put into the receiver's mirror
  offer,    // the bytes can be got from the sender's ring; `number` is a number of the sender
  got,      // the bytes of offer `number` have arrived
  key,      // a key to the sender's mirrors of this channel, which begin at `header.at` and have
            // `bytes` bytes
  holds,    // the sender has a key of the receiver, and may use it
  // The sender does not use a key of the receiver any more, or never did. `number` is 1 if it could
  // not use it.
  returned,
};

struct Envelope {
  Token token;
  mirror::Header header;
  uint64_t bytes;  // bytes that are not in the message
  Act act;
  uint32_t number;
  uint32_t from;  // the sender's rank in the job
  uint32_t sum;   // with FSCCL_CHECKSUM: CRC32C of everything before it; otherwise 0
};
static_assert(sizeof(Envelope) == 144);
inline uint32_t checksum_of(const Envelope& envelope) {
  return crc32c(&envelope, offsetof(Envelope, sum));
}

}  // namespace fsccl::ucx
