#include "unit/device/inboxes.h"

#include <algorithm>
#include <map>

#include "base/hash.h"
#include "unit/unit_definition.h"

namespace fsccl {

// The inboxes that a communicator keeps for itself, and for other communicators with the same
// ranks.
struct KeptInboxes {
  struct OfOne {
    std::vector<std::shared_ptr<Inboxes>> all;  // only the last one may have free channels
    uint32_t taken = Inboxes::kChannels;        // channels of the last one that are taken
  };
  std::map<uint64_t, OfOne> by_tag;
};

namespace {

constexpr uint64_t kLineBytes = 64;

KeptInboxes& kept_by(Communicator& keeper) {
  if (!keeper.inboxes) keeper.inboxes = std::make_shared<KeptInboxes>();
  return *keeper.inboxes;
}

}  // namespace

uint64_t Inboxes::region_bytes(int ranks) {
  return uint64_t{kChannels} * static_cast<uint64_t>(ranks) * kLineBytes +
         kLogEntries * sizeof(Record);
}

Inboxes::Inboxes(HostArena arena, const cuda::Device& device, int rank, int ranks)
    : arena_(std::move(arena)), device_(device), rank_(rank), ranks_(ranks) {}

Inboxes::~Inboxes() {
  if (!registered_) return;
  const cuda::Current current(device_);
  (void)device_.driver().cuMemHostUnregister(arena_.control());
}

Status Inboxes::register_memory() {
  const cuda::Current current(device_);
  const cuda::Driver& driver = device_.driver();
  const uint64_t bytes = region_bytes(ranks_) * static_cast<uint64_t>(ranks_);
  FSCCL_TRY(device_.check("cuMemHostRegister",
                          driver.cuMemHostRegister(arena_.control(), bytes,
                                                   cuda::CU_MEMHOSTREGISTER_PORTABLE |
                                                       cuda::CU_MEMHOSTREGISTER_DEVICEMAP)));
  registered_ = true;
  return device_.check("cuMemHostGetDevicePointer",
                       driver.cuMemHostGetDevicePointer(&base_, arena_.control(), 0));
}

// Maps the memory for all ranks. Rank 0 has made it, in an anonymous file that cannot shrink.
Result<HostArena> Inboxes::map(Communicator& comm, uint64_t tag, Result<HostArena> made) {
  const uint64_t bytes = region_bytes(comm.size()) * static_cast<uint64_t>(comm.size());
  if (comm.rank() == 0) return made;
  const Engine::RecordedWait recorded(comm.engine(), 0, recording::Duty::give_descriptor);
  FSCCL_ASSIGN(Fd fd, comm.context().job().fetch_fd(comm.job_rank(0), tag, comm.deadline(),
                                                    [&comm] { return comm.engine().intact(); }));
  return HostArena::open(std::move(fd), comm.size(), bytes, 0);
}

Result<std::shared_ptr<Inboxes>> Inboxes::open(Communicator& comm, const cuda::Device& device,
                                               uint64_t number) {
  const auto ranks = static_cast<size_t>(comm.size());
  const uint64_t bytes = region_bytes(comm.size()) * ranks,
                 tag = mix_in_order(mix_in_order(comm.tag(), 0x696e626f78), number);
  Job& job = comm.context().job();
  Result<HostArena> arena =
      fail(FSCCL_ERR_OUT_OF_MEMORY,
           "rank 0 could not make the memory for signals; its own error says why");
  if (comm.rank() == 0) {
    arena = HostArena::create(comm.size(), bytes, 0);
    if (arena.ok()) {
      const Status published = job.publish_fd(tag, arena.value().fd());
      if (!published.ok()) arena = published.clone();
    }
  }
  FSCCL_TRY(all_ok(comm, comm.rank() == 0 ? arena.status().clone() : success(),
                   "make the memory for signals"));
  arena = map(comm, tag, std::move(arena));
  std::shared_ptr<Inboxes> inboxes;
  Status mine = arena.ok() ? success() : arena.take_status();
  if (mine.ok()) {
    inboxes.reset(new Inboxes(arena.take(), device, comm.rank(), comm.size()));
    mine = inboxes->register_memory();
  }
  mine =
      all_ok(comm, std::move(mine), fmt::format("map the memory for signals of '{}'", comm.name()));
  if (comm.rank() == 0) job.withdraw_fd(tag);
  FSCCL_TRY(std::move(mine));
  FSCCL_ASSIGN(const std::vector<uint8_t> all, all_gather<uint8_t>(comm, device.wide_values()));
  inboxes->wide_ = std::all_of(all.begin(), all.end(), [](uint8_t one) { return one != 0; });
  return inboxes;
}

uint64_t Inboxes::offset(int owner, uint32_t channel, int from, int word) const {
  const uint64_t line =
      uint64_t{channel} * static_cast<uint64_t>(ranks_) + static_cast<uint64_t>(from);
  return region_bytes(ranks_) * static_cast<uint64_t>(owner) + line * kLineBytes +
         static_cast<uint64_t>(word) * sizeof(uint64_t);
}

cuda::CUstreamBatchMemOpParams Inboxes::write(int owner, uint32_t channel, int from, int word,
                                              uint64_t value) const {
  return {.operation =
              wide_ ? cuda::CU_STREAM_MEM_OP_WRITE_VALUE_64 : cuda::CU_STREAM_MEM_OP_WRITE_VALUE_32,
          .address = base_ + offset(owner, channel, from, word),
          .value64 = wide_ ? value : static_cast<uint32_t>(value)};
}

cuda::CUstreamBatchMemOpParams Inboxes::wait(uint32_t channel, int from, int word, uint64_t value,
                                             Until until) const {
  return {.operation =
              wide_ ? cuda::CU_STREAM_MEM_OP_WAIT_VALUE_64 : cuda::CU_STREAM_MEM_OP_WAIT_VALUE_32,
          .address = base_ + offset(rank_, channel, from, word),
          .value64 = wide_ ? value : static_cast<uint32_t>(value),
          .flags = static_cast<unsigned>(until)};
}

uint64_t Inboxes::read(uint32_t channel, int from, int word) const {
  auto& place = *reinterpret_cast<uint64_t*>(arena_.control() + offset(rank_, channel, from, word));
  // This load pairs with the values that streams write there, and with the store in let_go().
  return std::atomic_ref(place).load(std::memory_order_acquire);
}

void Inboxes::let_go(uint32_t channel, int from, int word, uint64_t value) {
  auto& place = *reinterpret_cast<uint64_t*>(arena_.control() + offset(rank_, channel, from, word));
  // This store pairs with the load in read(), and with the waits of streams.
  std::atomic_ref(place).store(wide_ ? value : static_cast<uint32_t>(value),
                               std::memory_order_release);
}

Inboxes::Record& Inboxes::record(int rank, uint64_t number) const {
  const uint64_t region = region_bytes(ranks_);
  std::byte* const log =
      arena_.control() + region * static_cast<uint64_t>(rank + 1) - kLogEntries * sizeof(Record);
  return reinterpret_cast<Record*>(log)[number % kLogEntries];
}

// Writes an entry of the log. The number is cleared first and set last, so a reader that finds the
// same number before and after its reads has read one whole entry. The words are stored with
// release and loaded with acquire, because the thread sanitizer does not know fences. A reader that
// sees a new value therefore also sees that the old number is gone.
void Inboxes::log(const LogEntry& entry) {
  Record& to = record(rank_, entry.number);
  std::atomic_ref(to.number).store(0, std::memory_order_relaxed);
  // Each of these stores pairs with the load of the same word in read_log().
  std::atomic_ref(to.hash).store(entry.hash, std::memory_order_release);
  std::atomic_ref(to.what).store(
      uint64_t{entry.channel} << 16 | uint64_t{entry.op} << 8 | entry.flags,
      std::memory_order_release);
  std::atomic_ref(to.sequence).store(entry.sequence, std::memory_order_release);
  std::atomic_ref(to.number).store(entry.number, std::memory_order_release);
}

bool Inboxes::read_log(int rank, uint64_t number, LogEntry* entry) const {
  Record& from = record(rank, number);
  // Each of these loads pairs with the store of the same word in log().
  if (std::atomic_ref(from.number).load(std::memory_order_acquire) != number) return false;
  const uint64_t what = std::atomic_ref(from.what).load(std::memory_order_acquire);
  *entry = {.number = number,
            .hash = std::atomic_ref(from.hash).load(std::memory_order_acquire),
            .channel = static_cast<uint32_t>(what >> 16),
            .op = static_cast<uint8_t>(what >> 8),
            .flags = static_cast<uint8_t>(what),
            .sequence = std::atomic_ref(from.sequence).load(std::memory_order_acquire)};
  return std::atomic_ref(from.number).load(std::memory_order_relaxed) == number;
}

std::string Inboxes::unit_of(uint32_t channel) const {
  const std::lock_guard lock(names_mutex_);
  return channel < units_.size() ? units_[channel] : std::string();
}

Result<InboxChannel> InboxChannel::open(Communicator& comm, Communicator& keeper,
                                        const cuda::Device& device, const std::string& unit) {
  KeptInboxes::OfOne& kept = kept_by(keeper).by_tag[comm.tag()];
  if (kept.taken == Inboxes::kChannels) {
    FSCCL_ASSIGN(std::shared_ptr<Inboxes> made, Inboxes::open(comm, device, kept.all.size()));
    kept.all.push_back(std::move(made));
    kept.taken = 0;
  }
  InboxChannel channel{kept.all.back(), kept.taken++};
  const std::lock_guard lock(channel.inboxes->names_mutex_);
  channel.inboxes->units_.push_back(unit);
  return channel;
}

}  // namespace fsccl
