#include "pool/host/blocks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/asan.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/round_up.h"
#include "base/undo.h"
#include "pool/host/import.h"
#include "pool/largest_blocks.h"

namespace fsccl {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kLargeBlock = 64u << 10;

}  // namespace

Blocks::Blocks(Setup setup) : setup_(std::move(setup)), region_(setup_.bytes) {
  if (setup_.debug && !setup_.dry_run) watch_ = std::make_unique<BlockWatch>(setup_.memory);
}

// Makes the memory accessible again for memory checkers, because its later contents are not free
// memory of this object.
Blocks::~Blocks() { allow_memory(setup_.memory, setup_.dry_run ? 0 : reached_); }

// Takes bytes of the region, and makes them exist.
Result<Blocks::Bytes> Blocks::take(uint64_t room, uint64_t alignment, uint64_t bytes,
                                   std::unique_lock<std::mutex>& lock) {
  const std::optional<uint64_t> begin = region_.alloc(room, alignment);
  if (!begin)
    return fail(FSCCL_ERR_OUT_OF_MEMORY,
                "pool '{}' has no room for a block of {} bytes in its {} bytes of address space "
                "(FSCCL_POOL_REGION_BYTES)",
                setup_.pool, bytes, setup_.bytes);
  const Bytes taken{*begin, *begin + room};
  const uint64_t extent = region_.top();
  reached_ = std::max(reached_, extent);
  Undo undo([&] {
    if (!lock.owns_lock()) lock.lock();
    region_.free(taken.begin);
  });
  lock.unlock();
  Status status = setup_.grow(extent);
  lock.lock();
  FSCCL_TRY(std::move(status));
  if (watch_) FSCCL_TRY(watch_->reuse(taken.begin, taken.end));
  undo.keep();
  return taken;
}

Result<void*> Blocks::add(Block&& block, const Journal::Owner& owner) {
  block.call = calls_ + 1;
  Undo undo([&] { blocks_.erase(block.address); });
  blocks_.emplace(block.address, block);
  setup_.journal->block_taken(owner, reinterpret_cast<uint64_t>(setup_.memory + block.begin),
                              block.end - block.begin, block.bytes);
  undo.keep();
  calls_++;
  if (watch_) {
    watch_->given(block);
  } else if (!setup_.dry_run) {
    allow_memory(setup_.memory + block.begin, block.end - block.begin);
    forbid_memory(setup_.memory + block.data + block.bytes, block.end - block.data - block.bytes);
  }
  const uint64_t live = live_bytes() + block.end - block.begin;
  live_bytes_.store(live, std::memory_order_relaxed);
  figures_.peak_bytes = std::max(figures_.peak_bytes, live);
  figures_.allocations++;
  (block.import ? figures_.imports : figures_.blocks)++;
  return static_cast<void*>(block.address);
}

Result<void*> Blocks::alloc(uint64_t bytes, uint64_t alignment, const Journal::Owner& owner) {
  std::unique_lock lock(mutex_);
  alignment = std::max<uint64_t>(alignment, bytes >= kLargeBlock ? kPage : 64);
  const uint64_t room = watch_ ? BlockWatch::room(bytes, alignment)
                               : round_up(std::max<uint64_t>(bytes, 1), alignment);
  Result<Bytes> found = take(room, alignment, bytes, lock);
  if (!found.ok()) {
    setup_.journal->block_refused(owner, bytes, setup_.left());
    return found.take_status();
  }
  const Bytes taken = found.take();
  Undo undo([&] { region_.free(taken.begin); });
  Block block;
  block.bytes = bytes;
  block.begin = taken.begin;
  block.end = taken.end;
  block.data = watch_ ? watch_->place(taken.begin, alignment) : taken.begin;
  block.address = setup_.memory + block.data;
  Result<void*> added = add(std::move(block), owner);
  if (added.ok()) undo.keep();
  return added;
}

Status Blocks::import(void* pointer, uint64_t bytes) {
  if (setup_.dry_run)
    return fail(FSCCL_ERR_INVALID_STATE, "pool '{}' is a rehearsal (dry_run) and has no memory",
                setup_.pool);
  FSCCL_TRY(check_importable(pointer, bytes));
  FSCCL_ASSIGN(const uint64_t file_begin, setup_.arena->file_offset(setup_.arena->control()));
  std::unique_lock lock(mutex_);
  FSCCL_ASSIGN(const Bytes taken, take(bytes, page_bytes(), bytes, lock));
  std::byte* const memory = setup_.memory + taken.begin;
  allow_memory(memory, bytes);
  const auto offset = static_cast<uint64_t>(memory - setup_.arena->control());
  Status status = setup_.arenas->add_alias(pointer, bytes, {offset, setup_.arena_id});
  if (status.ok()) {
    status = move_into_arena(pointer, bytes, memory, setup_.arena->fd(), file_begin + offset);
    if (!status.ok()) setup_.arenas->remove_alias(pointer);
  }
  if (!status.ok()) {
    region_.free(taken.begin);
    return status;
  }
  // If the pages cannot be moved back, the pool's bytes stay taken, because the caller's addresses
  // still map them.
  Undo undo([&] {
    if (!move_out_of_arena(pointer, bytes).ok()) return;
    setup_.arenas->remove_alias(pointer);
    region_.free(taken.begin);
  });
  Block block;
  block.bytes = bytes;
  block.begin = block.data = taken.begin;
  block.end = taken.end;
  block.address = static_cast<std::byte*>(pointer);
  block.import = true;
  FSCCL_TRY(add(std::move(block), {UseKind::kImport}).take_status());
  undo.keep();
  return success();
}

Status Blocks::not_a_block(const void* pointer) const {
  const std::string past = watch_ ? watch_->past_of(pointer) : "";
  if (!past.empty())
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{} is not a block of pool '{}', or was freed before: it was of the {}", pointer,
                setup_.pool, past);
  return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is not a block of pool '{}', or was freed before",
              pointer, setup_.pool);
}

Status Blocks::free(void* pointer) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(static_cast<const std::byte*>(pointer));
  if (found == blocks_.end()) return not_a_block(pointer);
  const Block& block = found->second;
  if (block.import) {
    FSCCL_TRY(move_out_of_arena(pointer, block.bytes));
    setup_.arenas->remove_alias(pointer);
  }
  Status status = end(block);
  blocks_.erase(found);
  return status;
}

Status Blocks::end(const Block& block) {
  calls_++;
  live_bytes_.store(live_bytes() - (block.end - block.begin), std::memory_order_relaxed);
  figures_.frees++;
  (block.import ? figures_.imports : figures_.blocks)--;
  Status status;
  if (watch_) {
    status = watch_->intact(block);
    watch_->freed(block, calls_);
  } else if (!setup_.dry_run) {
    forbid_memory(setup_.memory + block.begin, block.end - block.begin);
  }
  setup_.journal->block_given_back(reinterpret_cast<uint64_t>(setup_.memory + block.begin));
  region_.free(block.begin);
  return status;
}

Blocks::Figures Blocks::figures() const {
  const std::lock_guard lock(mutex_);
  Figures result = figures_;
  result.live_bytes = live_bytes();
  return result;
}

std::string Blocks::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<const Block*> blocks;
  for (const auto& [address, block] : blocks_) blocks.push_back(&block);
  return text_of_largest(std::move(blocks), [](const Block& block) { return block_text(block); });
}

uint64_t Blocks::shrink(const std::function<uint64_t(uint64_t top)>& release) {
  const std::lock_guard lock(mutex_);
  const uint64_t top = region_.top();
  if (watch_)
    if (const Status status = watch_->look(top); !status.ok())
      FSCCL_LOG(kError, "pool '{}': {}", setup_.pool, status.text());
  return release(top);
}

Status Blocks::look() {
  const std::lock_guard lock(mutex_);
  return watch_ ? watch_->look(0) : success();
}

}  // namespace fsccl
