// A message between two ranks that mirror each other's slots: this header, and then its bytes. A
// transport adds its own framing around it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "fsccl/transport.h"

namespace fsccl::mirror {

enum class MessageKind : uint32_t {
  bytes,    // bytes for the mirror, from `at` on, which belong to the tick of `line`
  line,     // a signal, which may have such bytes as well
  failure,  // the bytes are a fsccl_transport_failure_t
  left,     // the sender has closed its channel
  // A message for no channel, for transports that need it: the sender sends nothing more to this
  // rank.
  goodbye,
};

struct Header {
  uint64_t channel;  // the number of the channel
  // a hash of the channel's number and its ranks; in a pair, the number of the channel around it
  uint64_t tag;
  uint64_t at;  // the place of the bytes in the sender's ring
  // A message of the kind `line` has the number of bytes that its receiver gets under this tick,
  // including those of the message. A message of the kind `left` has the number of messages that
  // its receiver gets before it on this channel.
  uint64_t sent;
  fsccl_transport_line_t line;
  MessageKind kind;
  uint32_t bytes_checksum;  // with FSCCL_CHECKSUM: the CRC32C of the bytes in the sender's memory
};
static_assert(sizeof(Header) == 104);

}  // namespace fsccl::mirror
