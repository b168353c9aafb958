#include "transports/shm/peer_memory.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/fd.h"
#include "kernels/kernels.h"
#include "transports/shm/mapping.h"

namespace fsccl::shm {
namespace {

using SystemMove = decltype(&process_vm_readv);

// Moves at most *bytes bytes, and sets *bytes to their number.
bool move_once(SystemMove move, int32_t pid, uint64_t address, const void* local, size_t* bytes) {
  const iovec here{const_cast<void*>(local), *bytes};
  const iovec there{reinterpret_cast<void*>(address), *bytes};
  ssize_t moved;
  do moved = move(pid, &here, 1, &there, 1, 0);
  while (moved < 0 && errno == EINTR);
  *bytes = moved > 0 ? static_cast<size_t>(moved) : 0;
  return moved > 0;
}

// Blocks that the system would move slowly are moved in pieces, which pass through this buffer
// while they are in the cache. A piece has the same offset in a page there as in the peer's memory.
struct Passage {
  alignas(4096) std::array<std::byte, 9 * 4096> bytes;

  std::byte* place(uint64_t address) { return bytes.data() + address % 4096; }
  size_t most() const { return bytes.size() - 4096; }
};

}  // namespace

bool read_memory(int32_t pid, uint64_t address, void* destination, size_t bytes) {
  Passage passage;
  auto* to = static_cast<std::byte*>(destination);
  while (bytes) {
    const bool slow = slow_to_move(to, reinterpret_cast<const std::byte*>(address), bytes);
    std::byte* const place = slow ? passage.place(address) : to;
    size_t now = slow ? std::min(bytes, passage.most()) : bytes;
    if (!move_once(process_vm_readv, pid, address, place, &now)) return false;
    if (slow) copy_bytes(to, place, now, Stores::cached);
    to += now;
    address += now;
    bytes -= now;
  }
  return true;
}

bool write_memory(int32_t pid, uint64_t address, const void* source, size_t bytes,
                  const uint32_t& stop) {
  Passage passage;
  const auto* from = static_cast<const std::byte*>(source);
  while (bytes) {
    if (__atomic_load_n(&stop, __ATOMIC_RELAXED)) return false;
    const bool slow = slow_to_move(reinterpret_cast<std::byte*>(address), from, bytes);
    size_t now = slow ? std::min(bytes, passage.most()) : bytes;
    if (slow) copy_bytes(passage.place(address), from, now, Stores::cached);
    if (!move_once(process_vm_writev, pid, address, slow ? passage.place(address) : from, &now))
      return false;
    from += now;
    address += now;
    bytes -= now;
  }
  return true;
}

bool has_ended(int32_t pid) {
  char path[32], text[512];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int error = 0;
  const Fd file = make_fd([&] {
    const int opened = ::open(path, O_RDONLY | O_CLOEXEC);
    error = errno;
    return opened;
  });
  // The file is also missing where /proc is not mounted, or hides the process.
  if (!file.valid()) return error == ENOENT && kill(pid, 0) != 0 && errno == ESRCH;
  const ssize_t bytes = ::read(file.get(), text, sizeof text - 1);
  if (bytes <= 0) return bytes < 0 && errno == ESRCH;
  text[bytes] = '\0';
  // The name of the program is in parentheses, and may contain anything. The state follows it. A
  // process is a zombie, too, if its first thread alone has ended, so its threads are counted.
  const char* const name_end = std::strrchr(text, ')');
  char state = 0;
  int threads = 0;
  return name_end &&
         std::sscanf(name_end + 1,
                     " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d",
                     &state, &threads) == 2 &&
         (state == 'Z' || state == 'X') && threads <= 1;
}

}  // namespace fsccl::shm
