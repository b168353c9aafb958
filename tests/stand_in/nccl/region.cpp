#include "region.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <ctime>

namespace fsccl::stand_in_nccl {

UniqueId make_region() {
  UniqueId id{};
  const int fd = memfd_create("stand-in for NCCL", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, sizeof(Region)) != 0) return id;
  // The file stays open as long as the process lives, because nothing says when all ranks have
  // opened it.
  std::snprintf(id.bytes, sizeof id.bytes, "fsccl stand-in /proc/%d/fd/%d", getpid(), fd);
  return id;
}

std::shared_ptr<Region> open_region(const UniqueId& id) {
  int process = 0, number = 0;
  char text[sizeof id.bytes + 1] = "", path[64];
  std::memcpy(text, id.bytes, sizeof id.bytes);
  if (std::sscanf(text, "fsccl stand-in /proc/%d/fd/%d", &process, &number) != 2) return nullptr;
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", process, number);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* const memory = mmap(nullptr, sizeof(Region), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<Region*>(memory), [](Region* region) { munmap(region, sizeof(Region)); }};
}

bool wait_until(const std::function<bool()>& done, const std::function<bool()>& stop) {
  for (int turn = 0; !done(); turn++) {
    if (stop()) return false;
    if (turn < 20) {
      sched_yield();
    } else {
      const timespec pause{0, 200'000};
      nanosleep(&pause, nullptr);
    }
  }
  return true;
}

}  // namespace fsccl::stand_in_nccl
