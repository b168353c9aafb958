#include "faults/fault_points.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <link.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* block);
}

namespace fsccl::testing {

enum Kind : int {
  kMemory,
  kMap,
  kRemap,
  kProtect,
  kTruncate,
  kAllocateFile,
  kMemfd,
  kSocket,
  kBind,
  kListen,
  kConnect,
  kAccept,
  kSend,
  kReceive,
  kOpen,
  kRead,
  kWrite,
  kEventfd,
  kEpoll,
  kWatch,
  kThread,
  kAddresses,
  kInterfaces,
  kReadPeer,
  kFlags,
  kInterruptedSend,
  kInterruptedReceive,
  kInterruptedPoll,
  kInterruptedAccept,
  kHalfSend,
  kHalfReceive,
  kKinds
};

const FaultKind kFaultKinds[] = {
    {"memory", false},
    {"mmap", false},
    {"mremap", false},
    {"mprotect", false},
    {"ftruncate", false},
    {"fallocate", false},
    {"memfd_create", false},
    {"socket", false},
    {"bind", false},
    {"listen", false},
    {"connect", false},
    {"accept", false},
    {"send", false},
    {"recv", false},
    {"open", false},
    {"read", false},
    {"write", false},
    {"eventfd", false},
    {"epoll_create", false},
    {"epoll_ctl", false},
    {"thread", false},
    {"getaddrinfo", false},
    {"getifaddrs", false},
    {"process_vm_readv", false},
    {"fcntl", false},
    {"interrupted_send", true},
    {"interrupted_recv", true},
    {"interrupted_poll", true},
    {"interrupted_accept", true},
    {"half_send", true},
    {"half_recv", true},
};
const int kFaultKindCount = kKinds;
static_assert(std::size(kFaultKinds) == kKinds && kKinds <= kMostFaultKinds);

namespace {

struct Range {
  uintptr_t begin = 0, end = 0;
  bool holds(const void* address) const {
    const auto at = reinterpret_cast<uintptr_t>(address);
    return at >= begin && at < end;
  }
};

// libfsccl, and libstdc++, through which it allocates memory and starts threads.
Range library, standard_library;

std::atomic<bool> armed{false};
std::atomic<uint64_t> calls[kKinds];
int failing_kind = 0;
uint64_t failing = 0;
bool all_further = false;
std::atomic<bool> happened{false};
std::atomic<int64_t> live{0};
FaultPlace* place = nullptr;

int note_library(dl_phdr_info* info, size_t, void*) {
  Range* range = std::strstr(info->dlpi_name, "libfsccl.so") ? &library
                 : std::strstr(info->dlpi_name, "libstdc++") ? &standard_library
                                                             : nullptr;
  if (!range) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
    const uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
    if (range->begin == 0) range->begin = info->dlpi_addr;
    range->end = begin + info->dlpi_phdr[i].p_memsz;
  }
  return 0;
}

// Searches the stack for words that may be return addresses into the library. That is enough to
// find the place with addr2line.
void note_place() {
  const auto* at = static_cast<const uintptr_t*>(__builtin_frame_address(0));
  for (size_t i = 0; i < 400 && place->depth < std::size(place->offsets); i++)
    if (library.holds(reinterpret_cast<const void*>(at[i])))
      place->offsets[place->depth++] = at[i] - library.begin;
}

bool count(int kind, const void* caller) {
  if (!armed.load(std::memory_order_relaxed)) return false;
  if (!library.holds(caller) && !standard_library.holds(caller)) return false;
  const uint64_t number = calls[kind].fetch_add(1) + 1;
  if (kind != failing_kind || failing == 0 || number < failing ||
      (number > failing && !all_further))
    return false;
  // If the fault is harmless, every other call succeeds, so a caller that tries again goes on.
  if (kFaultKinds[kind].harmless && (number - failing) % 2) return false;
  if (!happened.exchange(true)) note_place();
  return true;
}

// Returns the system's own function of this name.
template <class F>
F* system_function(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

void arm_fault(int kind, uint64_t number, bool from_there_on, FaultPlace* noted) {
  place = noted;
  if (library.begin == 0) dl_iterate_phdr(note_library, nullptr);
  for (auto& of_kind : calls) of_kind = 0;
  failing_kind = kind;
  failing = number;
  all_further = from_there_on;
  happened = false;
  armed = true;
}

void disarm_fault(uint64_t* counts) {
  armed = false;
  for (int kind = 0; kind < kKinds; kind++) counts[kind] = calls[kind];
}

bool fault_happened() { return happened; }

int64_t live_blocks() { return live.load(); }

}  // namespace fsccl::testing

using namespace fsccl::testing;

// NOLINTBEGIN: names and types of the system
#define FAILS(kind) count(kind, __builtin_return_address(0))
#define SYSTEM(name) static const auto next = system_function<decltype(name)>(#name)

extern "C" {

void* malloc(size_t bytes) {
  if (FAILS(kMemory)) return errno = ENOMEM, nullptr;
  void* const block = __libc_malloc(bytes);
  if (block) live.fetch_add(1, std::memory_order_relaxed);
  return block;
}
void free(void* block) {
  if (block) live.fetch_sub(1, std::memory_order_relaxed);
  __libc_free(block);
}
void* calloc(size_t number, size_t bytes) {
  if (FAILS(kMemory)) return errno = ENOMEM, nullptr;
  void* const block = __libc_calloc(number, bytes);
  if (block) live.fetch_add(1, std::memory_order_relaxed);
  return block;
}
void* realloc(void* old, size_t bytes) {
  if (FAILS(kMemory)) return errno = ENOMEM, nullptr;
  void* const block = __libc_realloc(old, bytes);
  if (block && !old) live.fetch_add(1, std::memory_order_relaxed);
  return block;
}
void* memalign(size_t alignment, size_t bytes) {
  if (FAILS(kMemory)) return errno = ENOMEM, nullptr;
  void* const block = __libc_memalign(alignment, bytes);
  if (block) live.fetch_add(1, std::memory_order_relaxed);
  return block;
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  if (FAILS(kMemory)) return errno = ENOMEM, nullptr;
  void* const block = __libc_memalign(alignment, bytes);
  if (block) live.fetch_add(1, std::memory_order_relaxed);
  return block;
}
int posix_memalign(void** result, size_t alignment, size_t bytes) {
  if (FAILS(kMemory)) return ENOMEM;
  *result = __libc_memalign(alignment, bytes);
  if (*result) live.fetch_add(1, std::memory_order_relaxed);
  return *result ? 0 : ENOMEM;
}

void* mmap64(void* address, size_t bytes, int protection, int flags, int fd, off64_t offset) {
  if (FAILS(kMap)) return errno = ENOMEM, MAP_FAILED;
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
}
void* mremap(void* address, size_t old_bytes, size_t bytes, int flags, ...) {
  if (FAILS(kRemap)) return errno = ENOMEM, MAP_FAILED;
  va_list list;
  va_start(list, flags);
  void* const place = flags & MREMAP_FIXED ? va_arg(list, void*) : nullptr;
  va_end(list);
  return reinterpret_cast<void*>(syscall(SYS_mremap, address, old_bytes, bytes, flags, place));
}
int mprotect(void* address, size_t bytes, int protection) {
  if (FAILS(kProtect)) return errno = ENOMEM, -1;
  return static_cast<int>(syscall(SYS_mprotect, address, bytes, protection));
}
int ftruncate64(int fd, off64_t bytes) {
  if (FAILS(kTruncate)) return errno = EFBIG, -1;
  return static_cast<int>(syscall(SYS_ftruncate, fd, bytes));
}
int fallocate64(int fd, int mode, off64_t offset, off64_t bytes) {
  if (FAILS(kAllocateFile)) return errno = ENOSPC, -1;
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, bytes));
}
int posix_fallocate64(int fd, off64_t offset, off64_t bytes) {
  if (FAILS(kAllocateFile)) return ENOSPC;
  return syscall(SYS_fallocate, fd, 0, offset, bytes) == 0 ? 0 : errno;
}
int memfd_create(const char* name, unsigned flags) {
  if (FAILS(kMemfd)) return errno = EMFILE, -1;
  return static_cast<int>(syscall(SYS_memfd_create, name, flags));
}
int socket(int domain, int type, int protocol) {
  if (FAILS(kSocket)) return errno = EMFILE, -1;
  return static_cast<int>(syscall(SYS_socket, domain, type, protocol));
}
int bind(int fd, const sockaddr* address, socklen_t bytes) {
  if (FAILS(kBind)) return errno = ENOMEM, -1;
  return static_cast<int>(syscall(SYS_bind, fd, address, bytes));
}
int listen(int fd, int backlog) {
  if (FAILS(kListen)) return errno = ENOBUFS, -1;
  return static_cast<int>(syscall(SYS_listen, fd, backlog));
}
int connect(int fd, const sockaddr* address, socklen_t bytes) {
  if (FAILS(kConnect)) return errno = ENOBUFS, -1;
  return static_cast<int>(syscall(SYS_connect, fd, address, bytes));
}
int accept4(int fd, sockaddr* address, socklen_t* bytes, int flags) {
  if (FAILS(kAccept)) return errno = EMFILE, -1;
  if (FAILS(kInterruptedAccept)) return errno = EINTR, -1;
  return static_cast<int>(syscall(SYS_accept4, fd, address, bytes, flags));
}
ssize_t send(int fd, const void* bytes, size_t length, int flags) {
  if (FAILS(kSend)) return errno = ENOBUFS, -1;
  if (FAILS(kInterruptedSend)) return errno = EINTR, -1;
  if (FAILS(kHalfSend)) length = (length + 1) / 2;
  return syscall(SYS_sendto, fd, bytes, length, flags, nullptr, 0);
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  if (FAILS(kSend)) return errno = ENOBUFS, -1;
  if (FAILS(kInterruptedSend)) return errno = EINTR, -1;
  return syscall(SYS_sendmsg, fd, message, flags);
}
ssize_t recv(int fd, void* bytes, size_t length, int flags) {
  if (FAILS(kReceive)) return errno = ECONNRESET, -1;
  if (FAILS(kInterruptedReceive)) return errno = EINTR, -1;
  if (FAILS(kHalfReceive) && length > 1) length = 1;
  return syscall(SYS_recvfrom, fd, bytes, length, flags, nullptr, nullptr);
}
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  if (FAILS(kReceive)) return errno = ECONNRESET, -1;
  if (FAILS(kInterruptedReceive)) return errno = EINTR, -1;
  return syscall(SYS_recvmsg, fd, message, flags);
}
int poll(pollfd* polled, nfds_t number, int timeout_ms) {
  if (FAILS(kInterruptedPoll)) return errno = EINTR, -1;
  return static_cast<int>(syscall(SYS_poll, polled, number, timeout_ms));
}
int ppoll(pollfd* polled, nfds_t number, const timespec* timeout, const sigset_t* signals) {
  if (FAILS(kInterruptedPoll)) return errno = EINTR, -1;
  SYSTEM(ppoll);
  return next(polled, number, timeout, signals);
}
int open64(const char* path, int flags, ...) {
  if (FAILS(kOpen)) return errno = EMFILE, -1;
  va_list list;
  va_start(list, flags);
  const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, int) : 0;
  va_end(list);
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
ssize_t read(int fd, void* bytes, size_t length) {
  if (FAILS(kRead)) return errno = EIO, -1;
  return syscall(SYS_read, fd, bytes, length);
}
ssize_t pread64(int fd, void* bytes, size_t length, off64_t offset) {
  if (FAILS(kRead)) return errno = EIO, -1;
  return syscall(SYS_pread64, fd, bytes, length, offset);
}
ssize_t write(int fd, const void* bytes, size_t length) {
  if (FAILS(kWrite)) return errno = EIO, -1;
  return syscall(SYS_write, fd, bytes, length);
}
int eventfd(unsigned value, int flags) {
  if (FAILS(kEventfd)) return errno = EMFILE, -1;
  return static_cast<int>(syscall(SYS_eventfd2, value, flags));
}
int epoll_create1(int flags) {
  if (FAILS(kEpoll)) return errno = EMFILE, -1;
  return static_cast<int>(syscall(SYS_epoll_create1, flags));
}
int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) {
  if (operation != EPOLL_CTL_DEL && FAILS(kWatch)) return errno = ENOMEM, -1;
  return static_cast<int>(syscall(SYS_epoll_ctl, epoll, operation, fd, event));
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) {
  if (FAILS(kThread)) return EAGAIN;
  SYSTEM(pthread_create);
  return next(thread, attributes, run, argument);
}
int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** result) {
  if (FAILS(kAddresses)) return EAI_MEMORY;
  SYSTEM(getaddrinfo);
  return next(node, service, hints, result);
}
int getifaddrs(ifaddrs** result) {
  if (FAILS(kInterfaces)) return errno = ENOMEM, -1;
  SYSTEM(getifaddrs);
  return next(result);
}
ssize_t process_vm_readv(pid_t pid, const iovec* local, unsigned long locals, const iovec* remote,
                         unsigned long remotes, unsigned long flags) {
  if (FAILS(kReadPeer)) return errno = ENOMEM, -1;
  return syscall(SYS_process_vm_readv, pid, local, locals, remote, remotes, flags);
}
int fcntl64(int fd, int command, ...) {
  if (FAILS(kFlags)) return errno = EINVAL, -1;
  va_list list;
  va_start(list, command);
  const long argument = va_arg(list, long);
  va_end(list);
  return static_cast<int>(syscall(SYS_fcntl, fd, command, argument));
}

}  // extern "C"
// NOLINTEND
