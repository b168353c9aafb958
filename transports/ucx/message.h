// What goes between two ranks: UCX active messages of one kind, each this header and then its bytes. With FSCCL_CHECKSUM the header
// ends with sums, else they are not sent.
#pragma once
#include <array>
#include <cstdint>

#include "fsccl/transport.h"

namespace fsccl::ucx {

enum class MessageKind : uint32_t {
  bytes,    // for the mirror, from `at` on; they belong to the tick of `line`
  line,     // a signal; its bytes, if any, likewise
  failure,  // the bytes are a fsccl_transport_failure_t
  left,     // the sender has closed its channel
};

// Who speaks, and that it belongs to the job: a proof over the nonces of both, which only the ranks of the job can make. UCX itself
// knows no such thing: whoever can connect can send.
using Token = std::array<uint64_t, 2>;

struct Header {
  Token token;
  uint64_t channel;  // where its ranks meet
  uint64_t tag;      // and who they are
  uint32_t from;     // rank of the job
  MessageKind kind;
  uint64_t at;    // in the sender's ring
  uint64_t sent;  // bytes of this tick for this receiver, with those of this message; left: of all messages on this channel
  fsccl_transport_line_t line;
  uint32_t bytes_sum;   // CRC32C of what the bytes are meant to be
  uint32_t header_sum;  // of all before it
};
static_assert(sizeof(Header) == 128);
inline constexpr size_t kSumsBytes = 8;

}  // namespace fsccl::ucx
