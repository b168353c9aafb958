#include "transports/shm/mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <mutex>

#include "base/immortal.h"

namespace fsccl::shm {

struct Mapping::All {
  std::mutex mutex;
  std::map<Key, std::weak_ptr<Mapping>> list;
};

Mapping::All& Mapping::all() {
  static Immortal<All> all;
  return all.get();
}

Result<std::shared_ptr<Mapping>> Mapping::of(int fd, size_t offset, size_t bytes) {
  struct stat st{};
  if (fstat(fd, &st)) return fail_errno(errno, "fstat of a shm channel");
  const Key key{st.st_dev, st.st_ino, offset, bytes};
  const std::shared_ptr<Mapping> made(new Mapping(key));  // before the lock: ~Mapping() takes it
  const std::lock_guard lock(all().mutex);
  std::weak_ptr<Mapping>& entry = all().list[key];
  if (std::shared_ptr<Mapping> known = entry.lock()) return known;
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd,
                    static_cast<off_t>(offset));
  if (base == MAP_FAILED)
    return fail_errno(errno, fmt::format("cannot map the {} bytes of a shm channel", bytes));
  madvise(base, bytes, MADV_DONTFORK);
  made->base_ = static_cast<std::byte*>(base);
  entry = made;
  return made;
}

Mapping::~Mapping() {
  if (base_) munmap(base_, key_.bytes);
  const std::lock_guard lock(all().mutex);
  const auto entry = all().list.find(key_);
  if (entry != all().list.end() && entry->second.expired()) all().list.erase(entry);
}

}  // namespace fsccl::shm
