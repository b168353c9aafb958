#include "transports/shm/read_memory.h"

#include <sys/uio.h>

#include <array>
#include <cerrno>

#include "kernels/kernels.h"
#include "transports/shm/mapping.h"

namespace fsccl::shm {
namespace {

bool read_once(int32_t pid, uint64_t address, void* destination, size_t* bytes) {
  const iovec local{destination, *bytes};
  const iovec remote{reinterpret_cast<void*>(address), *bytes};
  ssize_t got;
  do got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
  while (got < 0 && errno == EINTR);
  *bytes = got > 0 ? static_cast<size_t>(got) : 0;
  return got > 0;
}

}  // namespace

// Reads a peer's memory. Blocks that the system would move slowly are read in pieces: each piece
// goes to a buffer with the source's offset in a page, and is copied to its destination while it is
// still in the cache.
bool read_memory(int32_t pid, uint64_t address, void* destination, size_t bytes) {
  alignas(4096) std::array<std::byte, 9 * 4096> piece;
  auto* to = static_cast<std::byte*>(destination);
  while (bytes) {
    const auto* from = reinterpret_cast<const std::byte*>(address);
    const bool slow = slow_to_move(to, from, bytes);
    std::byte* place = slow ? piece.data() + address % 4096 : to;
    size_t now = slow ? std::min(bytes, piece.size() - 4096) : bytes;
    if (!read_once(pid, address, place, &now)) return false;
    if (slow) copy_bytes(to, place, now, Stores::cached);
    to += now;
    address += now;
    bytes -= now;
  }
  return true;
}

}  // namespace fsccl::shm
