#include "unit/codec_staging.h"

#include <map>
#include <mutex>

#include "base/immortal.h"
#include "engine/communicator.h"

namespace fsccl {
namespace {

struct Known {
  std::mutex mutex;
  std::map<std::pair<const Pool*, const Communicator*>, std::weak_ptr<CodecStaging>> of;
};
Known& known() {
  static Immortal<Known> all;  // units may go when statics have gone
  return all.get();
}

}  // namespace

std::shared_ptr<CodecStaging> CodecStaging::of(Pool& pool, Communicator& lane) {
  const std::lock_guard lock(known().mutex);
  std::weak_ptr<CodecStaging>& entry = known().of[{&pool, &lane}];
  std::shared_ptr<CodecStaging> made = entry.lock();
  if (!made) entry = made = std::shared_ptr<CodecStaging>(new CodecStaging(pool, lane));
  return made;
}

CodecStaging::CodecStaging(Pool& pool, Communicator& lane) : pool_(pool) {
  const Costs& costs = lane.collectives().options().select.costs;
  constexpr auto kBytes = static_cast<double>(Cost::kSizes.back());
  link.byte_ns = costs.slot_cached.ns.back() / kBytes;
  link.exchange_ns = costs.exchange;
}

CodecStaging::~CodecStaging() {
  for (const Room& room : {sent_, received_})
    if (room.at) (void)pool_.free(room.at).ok();
  const std::lock_guard lock(known().mutex);
  std::erase_if(known().of, [](const auto& entry) { return entry.second.expired(); });
}

Status CodecStaging::reserve(uint64_t send_bytes, uint64_t receive_bytes) {
  FSCCL_TRY(enlarge(&sent_, send_bytes));
  return enlarge(&received_, receive_bytes);
}

Status CodecStaging::enlarge(Room* room, uint64_t bytes) {
  if (bytes <= room->bytes) return success();
  FSCCL_ASSIGN(void* const memory, pool_.alloc(bytes, nullptr, 1, {UseKind::kCodec, ""}));
  if (room->at) (void)pool_.free(room->at).ok();
  *room = {static_cast<uint8_t*>(memory), bytes};
  return success();
}

}  // namespace fsccl
