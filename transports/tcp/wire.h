// A message as it goes over a socket: this head, and then its bytes.
#pragma once
#include "transports/mirror/message.h"

namespace fsccl::tcp {

struct Head {
  mirror::Header header;
  uint32_t bytes;  // the number of bytes that follow
  uint32_t seal;   // with FSCCL_CHECKSUM: CRC32C of everything before it; otherwise kSeal
};
static_assert(sizeof(Head) == 112);

Head make_head(const mirror::Header& header, size_t bytes, bool checksum);
// Returns the seal that the head should have.
uint32_t seal_of(const Head& head, bool checksum);
// Returns true if such a message is possible, whatever channel it is for.
bool possible(const Head& head);

}  // namespace fsccl::tcp
