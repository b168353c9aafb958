#include "unit/device/codec_room.h"

#include <map>
#include <mutex>

#include "base/immortal.h"
#include "comm/device/collectives.h"

namespace fsccl {
namespace {

struct InUse {
  std::mutex mutex;
  std::map<std::pair<const DevicePool*, const Communicator*>, std::weak_ptr<CodecRoom>> of;
};
InUse& in_use() {
  static Immortal<InUse> all;  // a unit may end after static objects are gone
  return all.get();
}

}  // namespace

Result<cuda::CUdeviceptr> allocate_for_codec(DevicePool& pool, uint64_t bytes, bool zeros) {
  const cuda::OwnedStream& stream = pool.own_stream();
  FSCCL_ASSIGN(void* const memory, pool.alloc(bytes, stream.get(), 256));
  const auto made = reinterpret_cast<cuda::CUdeviceptr>(memory);
  const cuda::Device& device = pool.device();
  const cuda::Current current(device);
  Status ready = zeros ? device.check("cuMemsetD8Async",
                                      device.driver().cuMemsetD8Async(made, 0, bytes, stream.get()))
                       : success();
  if (ready.ok()) ready = stream.finish(Deadline::never());  // the stream has no other work
  if (ready.ok()) return made;
  (void)pool.free(memory, stream.get()).ok();
  return ready;
}

std::shared_ptr<CodecRoom> CodecRoom::of(DevicePool& pool, Communicator& comm) {
  const std::lock_guard lock(in_use().mutex);
  std::weak_ptr<CodecRoom>& entry = in_use().of[{&pool, &comm}];
  std::shared_ptr<CodecRoom> made = entry.lock();
  if (!made) entry = made = std::shared_ptr<CodecRoom>(new CodecRoom(pool, comm));
  return made;
}

CodecRoom::~CodecRoom() {
  (void)give_back();
  const std::lock_guard lock(in_use().mutex);
  std::erase_if(in_use().of, [](const auto& entry) { return entry.second.expired(); });
}

// Returns false if streams may still use the memory, which then stays allocated.
bool CodecRoom::give_back() {
  if (!memory_) return true;
  (void)DeviceCollectives::of(comm_).finish(*last_).ok();
  if (!last_->complete()) return false;
  return pool_.free(reinterpret_cast<void*>(memory_), pool_.own_stream().get()).ok();
}

Status CodecRoom::reserve(uint64_t bytes) {
  if (!last_) {
    FSCCL_ASSIGN(last_, cuda::OwnedEvent::create(pool_.device()));
  }
  if (bytes <= bytes_) return success();
  FSCCL_ASSIGN(const cuda::CUdeviceptr made, allocate_for_codec(pool_, bytes, false));
  (void)give_back();
  memory_ = made;
  bytes_ = bytes;
  return success();
}

}  // namespace fsccl
