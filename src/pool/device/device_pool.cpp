#include "pool/device/device_pool.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "base/round_up.h"
#include "base/undo.h"
#include "comm/consensus.h"
#include "fsccl/insight.h"
#include "pool/host/pool_report.h"

namespace fsccl {
namespace {

constexpr size_t kSlotsInJournal = 1;  // each rank's own slots

// Returns this rank's description of its device, or the reason why it cannot take part.
Result<DeviceRank> describe(const Result<const cuda::Device*>& opened,
                            const fsccl_pool_config_t& config, const Config& settings,
                            const Result<DeviceMemory::Source>& source) {
  if (!opened.ok()) return opened.status().clone();
  const cuda::Device& device = *opened.value();
  if (config.dry_run)
    return fail(
        FSCCL_ERR_NOT_AVAILABLE,
        "rehearse (dry_run) on a pool of host memory, which needs no GPU: plans are the same");
  FSCCL_TRY(DeviceMemory::check(source, device));
  DeviceRank rank{};
  rank.posix_handles = device.posix_handles();
  rank.transport = static_cast<uint8_t>(settings.device_transport);
  rank.debug = config.debug != 0 || settings.pool_debug;
  rank.record = config.record != 0;
  std::memcpy(rank.uuid, device.uuid(), sizeof rank.uuid);
  rank.limit_bytes =
      config.limit_bytes ? config.limit_bytes : static_cast<uint64_t>(settings.pool_limit_bytes);
  size_t granularity = 0, free = 0, total = 0;
  cuda::CUmemAllocationProp properties;
  properties.location.id = device.ordinal();
  properties.requestedHandleTypes = device.posix_handles()
                                        ? cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                        : cuda::CU_MEM_HANDLE_TYPE_NONE;
  const cuda::Current current(device);
  FSCCL_TRY(
      device.check("cuMemGetAllocationGranularity",
                   device.driver().cuMemGetAllocationGranularity(&granularity, &properties, 0)));
  FSCCL_TRY(device.check("cuMemGetInfo", device.driver().cuMemGetInfo(&free, &total)));
  rank.granularity = granularity;
  rank.free_bytes = free;
  return rank;
}

}  // namespace

DevicePool::DevicePool(Communicator& comm, const cuda::Device& device, uint64_t slots_limit,
                       bool record)
    : Pool(comm),
      device_(&device),
      region_(std::make_unique<CollectiveRegion>(slots_limit, record)),
      marks_(device) {
  comm.dependents++;
}

Result<std::unique_ptr<DevicePool>> DevicePool::create(Communicator& comm,
                                                       const fsccl_pool_config_t& config,
                                                       Result<DeviceMemory::Source> source) {
  FSCCL_TRY(config_status());
  const ConfigRef settings = fsccl::config();
  const Result<const cuda::Device*> device = cuda::Device::open(config.device);
  const Result<DeviceRank> mine = describe(device, config, *settings, source);
  FSCCL_ASSIGN(const Reach reach,
               exchange_reach(comm, device.ok() ? device.value() : nullptr, mine));
  std::unique_ptr<DevicePool> pool(
      new DevicePool(comm, *device.value(), reach.slots_limit, config.record != 0));
  pool->debug_ = mine.value().debug != 0;
  FSCCL_TRY(all_ok(comm, pool->make(config, reach, std::move(source)),
                   "reserve the addresses of the pool, or open its log"));
  FSCCL_ASSIGN(pool->slots_, SlotMemory::create(comm, *pool->memory_, reach));
  pool->metrics_ = std::make_unique<MetricsSource>(
      [made = pool.get()](MetricSamples& samples, std::string_view id) {
        fsccl_pool_stats_t now = FSCCL_POOL_STATS_INIT;
        made->stats(&now);
        pool_report::add_samples(samples, made->comm_, made->name_, id, now);
      });
  return pool;
}

Status DevicePool::make(const fsccl_pool_config_t& config, const Reach& reach,
                        Result<DeviceMemory::Source> source) {
  const ConfigRef settings = fsccl::config();
  name_ = config.name ? config.name : "pool";
  FSCCL_ASSIGN(own_stream_, cuda::OwnedStream::create(*device_));
  FSCCL_ASSIGN(journal_, pool_report::open_journal(*settings, comm_));
  DeviceMemory::Limits limits;
  limits.all = reach.limits[static_cast<size_t>(comm_.rank())];
  limits.slots = reach.slots_limit;
  limits.soft = config.soft_limit_bytes ? config.soft_limit_bytes
                                        : static_cast<uint64_t>(settings->pool_soft_limit_bytes);
  FSCCL_ASSIGN(memory_, DeviceMemory::reserve(*device_, limits, name_, comm_.rank()));
  memory_->set_source(source.take());
  memory_->set_journal(journal_.get());
  const auto ask = [this](uint64_t bytes) {
    if (ask_) ask_(bytes);
  };
  memory_->set_relief({.trim = [this] { trim(); },
                       .ask = ask,
                       .holders = [this] { return pool_report::holders(*journal_); }});
  blocks_ = std::make_unique<DeviceBlocks>(*memory_, marks_, mutex_, *journal_, name_, debug_);
  return success();
}

Status DevicePool::import(void*, uint64_t) {
  return fail(FSCCL_ERR_NOT_AVAILABLE,
              "pool '{}' is on a GPU, whose driver exchanges no pages under memory that is there: "
              "copy into a block of the pool",
              name_);
}

// Memory that work on the device may still use is not unmapped. If the work does not end, or if it
// is not known whether it has ended, the memory stays.
DevicePool::~DevicePool() {
  if (metrics_) comm_.context().write_metrics();
  metrics_.reset();
  if (memory_) {
    const Result<bool> over = marks_.finish(deadline());
    if (!over.ok() || !over.value()) {
      FSCCL_LOG(kError, "pool '{}': {}, so {} bytes of the GPU stay reserved", name_,
                over.ok() ? fmt::format("streams have not finished with its memory within {} ms",
                                        comm_.timeout_ms())
                          : "whether streams have finished with its memory cannot be told: " +
                                over.status().text(),
                memory_->held());
      if (slots_) slots_->leak();
      memory_->leak();
    }
  }
  slots_.reset();
  blocks_.reset();
  memory_.reset();
  comm_.dependents--;
}

Status DevicePool::note_end(cuda::CUstream stream) {
  const std::lock_guard lock(mutex_);
  const std::optional<uint32_t> number = marks_.known(stream);
  return number ? marks_.record(*number) : success();
}

void DevicePool::update_figures() {
  const std::lock_guard lock(figures_mutex_);
  slot_figures_ = {.live = region_->live(),
                   .peak = region_->peak(),
                   .plan_bytes = region_->plan_bytes(),
                   .plan_bound = region_->plan_bound(),
                   .clique_bound = region_->plan_clique_bound(),
                   .hits = region_->hits(),
                   .misses = region_->misses()};
}

Status DevicePool::put_waits(cuda::CUstream stream,
                             std::vector<cuda::CUstreamBatchMemOpParams>& waits) const {
  if (waits.empty()) return success();
  const cuda::Current current(*device_);
  return device_->put_values(waits, stream);
}

Status DevicePool::poison(const Held& slot, cuda::CUstream stream) const {
  const cuda::Current current(*device_);
  return device_->check("cuMemsetD8Async",
                        device_->driver().cuMemsetD8Async(slots(comm_.rank()) + slot.offset,
                                                          kPoison, slot.bytes, stream));
}

Result<uint32_t> DevicePool::number_of(cuda::CUstream stream) {
  const std::lock_guard lock(mutex_);
  return marks_.number(stream);
}

// Makes the stream, which has this number, wait for the last uses of the slot's bytes.
Status DevicePool::order(const Held& slot, cuda::CUstream stream, uint32_t number) {
  const std::lock_guard lock(mutex_);
  std::optional<StreamMarks::Calls> calls;
  if (marks_.streams() > 1) calls.emplace(marks_);  // with one stream, the driver is not called
  const uint64_t end = slot.offset + slot.bytes;
  released_.needs(slot.offset, end, &needed_, &needed_waits_);
  for (const StreamMark& mark : needed_) FSCCL_TRY(marks_.make_wait(number, mark));
  FSCCL_TRY(put_waits(stream, needed_waits_));
  if (debug_) FSCCL_TRY(poison(slot, stream));
  released_.forget(slot.offset, end);
  update_figures();
  return success();
}

DevicePool::Held& DevicePool::held(uint64_t key) {
  Held& slot = held_[key];
  if (!slot.in_journal) slot.in_journal = &journal_->slot(key);
  return slot;
}

void DevicePool::forget_slot(uint64_t key) {
  held_.erase(key);
  journal_->forget_slot(key);
}

Result<uint64_t> DevicePool::take(uint64_t key, uint64_t bytes, bool stable,
                                  cuda::CUstream stream) {
  FSCCL_ASSIGN(const uint32_t number, number_of(stream));
  Held& slot = held(key);
  const StepTable::Row* const row = region_->take_by_table(key, bytes, stable);
  const Result<SlotGrant> grant =
      row ? SlotGrant{.offset = row->offset} : region_->take(key, bytes, stable, position_ + 1);
  position_++;
  if (!grant.ok()) {
    journal_->slot_refused(key, bytes, memory_->left());
    return fail(grant.status().code(), "{}. Pool '{}' of rank {} is on a GPU and holds: {}",
                grant.status().text(), name_, comm_.rank(), pool_report::holders(*journal_));
  }
  slot.offset = grant.value().offset;
  slot.bytes = round_up(std::max<uint64_t>(bytes, 1), CollectiveRegion::kAlignment);
  Undo undo([&] {
    slot.now = false;
    (void)region_->give_back(key, ++position_).ok();
  });
  if (Status grown = slots_->grow(slot.offset + slot.bytes); !grown.ok()) {
    journal_->slot_refused(key, bytes, memory_->left());
    return grown;
  }
  slot.now = true;
  const uint64_t address = slots(comm_.rank()) + slot.offset;
  if (row)
    journal_->slot_taken_again(*slot.in_journal, kSlotsInJournal, address, slot.bytes, bytes,
                               row->live);
  else
    journal_->slot_taken(*slot.in_journal, kSlotsInJournal, address, slot.bytes, bytes);
  if (Status ordered = order(slot, stream, number); !ordered.ok()) {
    comm_.engine().fail_all(ordered.error());  // the other ranks hold the slot
    journal_->slot_given_back(*slot.in_journal, kSlotsInJournal);
    return ordered;
  }
  undo.keep();
  return slot.offset;
}

// Marks the stream's last use of the slot. In debug mode the slot's bytes are overwritten at once,
// so the stream waits for their last readers now.
Result<StreamMark> DevicePool::mark(const Held& slot, cuda::CUstream stream,
                                    std::vector<cuda::CUstreamBatchMemOpParams>* waits) {
  FSCCL_ASSIGN(const uint32_t number, marks_.number(stream));
  if (debug_) {
    FSCCL_TRY(put_waits(stream, *waits));
    waits->clear();
    FSCCL_TRY(poison(slot, stream));
  }
  return marks_.set(number);
}

Status DevicePool::give_back(uint64_t key, cuda::CUstream stream,
                             std::vector<cuda::CUstreamBatchMemOpParams> waits) {
  const auto found = held_.find(key);
  if (found == held_.end() || !found->second.now)
    return fail(FSCCL_ERR_INVALID_STATE,
                "slot {:#x} of pool '{}' is given back, but it is not held", key, name_);
  Held& slot = found->second;
  const std::lock_guard lock(mutex_);
  std::optional<StreamMarks::Calls> calls;
  if (marks_.streams() > 1) calls.emplace(marks_);  // with one stream, the driver is not called
  FSCCL_ASSIGN(const StreamMark marked, mark(slot, stream, &waits));
  released_.add(slot.offset, slot.offset + slot.bytes, marked, std::move(waits));
  Undo undo([&] { released_.forget(slot.offset, slot.offset + slot.bytes); });
  const StepTable::Row* const row = region_->give_back_by_table(key, ++position_);
  if (!row) FSCCL_TRY(region_->give_back(key, position_));
  undo.keep();
  slot.now = false;
  update_figures();
  if (row)
    journal_->slot_given_back_again(*slot.in_journal, kSlotsInJournal, row->live);
  else
    journal_->slot_given_back(*slot.in_journal, kSlotsInJournal);
  return success();
}

Status DevicePool::declare(const std::vector<StepEvent>& events) {
  const CollectiveRegion before = *region_;
  Status status = region_->declare(events);
  if (status.ok()) status = slots_->grow(region_->extent());
  if (!status.ok()) *region_ = before;
  const std::lock_guard lock(mutex_);
  update_figures();
  return status;
}

// Gives back the surplus of a recorded step, which takes more memory than its plan. Whole segments
// above the plan are released when all work on this rank's released bytes is over. This rank's
// streams then read no slots of peers any more, and after the vote the same holds for the streams
// of all ranks.
Status DevicePool::give_back_surplus() {
  const uint64_t kept =
      slots_->kept_by_shrink(std::max<uint64_t>(region_->extent(), keeps_first_slots_ ? 1 : 0));
  if (kept == slots_->bytes()) return success();
  Result<bool> over = false;
  {
    const std::lock_guard lock(mutex_);
    over = marks_.wait_for_all(deadline());
  }
  Status status = over.ok() ? success() : over.take_status();
  if (status.ok() && !over.value())
    status = fail(FSCCL_ERR_TIMEOUT,
                  "pool '{}' waited {} ms for streams to finish with slots of the step before. See "
                  "FSCCL_TIMEOUT_MS",
                  name_, comm_.timeout_ms());
  FSCCL_TRY(all_ok(comm_, std::move(status), "finish with the slots of the step before"));
  const uint64_t released = slots_->shrink(kept);
  region_->give_up(kept, ++position_);
  const std::lock_guard lock(mutex_);
  released_.forget(kept, UINT64_MAX);
  FSCCL_LOG(kInfo, "pool '{}' gives {} bytes of the GPU back that its plan does not need", name_,
            released);
  return success();
}

Status DevicePool::end_step() {
  region_->end_step();
  journal_->step();
  FSCCL_TRY(give_back_surplus());
  if (memory_->beyond_soft_limit()) blocks_->trim(Deadline::at(0));
  const std::lock_guard lock(mutex_);
  update_figures();
  const std::lock_guard counting(figures_mutex_);
  steps_++;
  return success();
}

Result<std::vector<cuda::CUdeviceptr>> DevicePool::slots_of(const Communicator& comm) const {
  std::vector<cuda::CUdeviceptr> all;
  for (int rank = 0; rank < comm.size(); rank++) {
    const int in_pool = comm_.rank_of(comm.job_rank(rank));
    if (in_pool < 0 || !reaches(in_pool))
      return fail(
          FSCCL_ERR_NOT_AVAILABLE, "the GPU of rank {} ({}) cannot reach the slots of rank {}: {}",
          comm.rank(), device_->name(), rank,
          in_pool < 0 ? fmt::format("pool '{}' was made without that rank", name_)
                      : "they are on another host, or there is no peer-to-peer access between "
                        "the two (nvidia-smi topo -p2p r)");
    all.push_back(slots(in_pool));
  }
  return all;
}

uint64_t DevicePool::trim() { return blocks_->trim(deadline()); }

Status DevicePool::check_empty() {
  const uint64_t blocks = blocks_->figures().blocks;
  if (units_.empty() && blocks == 0) return success();
  std::string list = blocks_->list();
  for (const auto& [key, name] : units_)
    list += fmt::format("{}unit '{}'", list.empty() ? "" : ", ", name);
  return fail(
      FSCCL_ERR_INVALID_STATE,
      "pool '{}' still has {} unit(s) and {} block(s): destroy and free them first. They are: {}",
      name_, units_.size(), blocks, list);
}

}  // namespace fsccl
