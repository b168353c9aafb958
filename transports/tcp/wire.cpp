#include "transports/tcp/wire.h"

#include "kernels/crc32c.h"

namespace fsccl::tcp {
namespace {

constexpr uint32_t kSeal = 0x50435446;     // "FTCP"
constexpr uint32_t kMostBytes = 1u << 30;  // bytes of a slot

}  // namespace

uint32_t seal_of(const Head& head, bool checksum) {
  return checksum ? crc32c(&head, offsetof(Head, seal)) : kSeal;
}

Head make_head(const mirror::Header& header, size_t bytes, bool checksum) {
  Head head{header, static_cast<uint32_t>(bytes), 0};
  head.seal = seal_of(head, checksum);
  return head;
}

bool possible(const Head& head) {
  switch (head.header.kind) {
    case mirror::MessageKind::bytes:
    case mirror::MessageKind::line:
      return head.bytes <= kMostBytes;
    case mirror::MessageKind::failure:
      return head.bytes == sizeof(fsccl_transport_failure_t);
    case mirror::MessageKind::left:
    case mirror::MessageKind::goodbye:
      return head.bytes == 0;
  }
  return false;
}

}  // namespace fsccl::tcp
