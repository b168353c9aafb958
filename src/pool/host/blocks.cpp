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

namespace fsccl {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kLargeBlock = 64u << 10;
constexpr size_t kListed = 16;  // blocks that an error names

}  // namespace

Blocks::Blocks(Place place) : place_(std::move(place)), region_(place_.bytes) {
  if (place_.debug && !place_.dry_run)
    watch_ = std::make_unique<BlockWatch>(place_.memory, streams_);
}

// The memory checker forgets these addresses: later content is not free memory of this object.
Blocks::~Blocks() { allow_memory(place_.memory, place_.dry_run ? 0 : reached_); }

// Bytes that the stream may have, and that exist.
Result<Blocks::Bytes> Blocks::take(uint64_t room, uint64_t alignment, uint64_t bytes,
                                   uint32_t stream, std::unique_lock<std::mutex>& lock) {
  const bool cooling = !cooling_.empty();
  if (cooling) cooling_.open(region_, streams_.known(stream), 0, 0);
  const std::optional<uint64_t> begin = region_.alloc(room, alignment);
  Bytes taken{begin.value_or(0), begin ? *begin + room : 0};
  if (cooling)
    taken.done =
        cooling_.close(region_, streams_.known(BlockStreams::kProgram), taken.begin, taken.end);
  const auto wanted = [&](Status status) {
    if (cooling_.empty()) return status;
    Error error = status.error();
    error.text += fmt::format(
        ". {} bytes more were freed on streams that {} is not ordered behind (fsccl_pool_record, "
        "fsccl_pool_wait)",
        cooling_.bytes(), stream_text(streams_.name(stream)));
    return Status(std::move(error));
  };
  if (!begin)
    return wanted(fail(FSCCL_ERR_OUT_OF_MEMORY,
                       "pool '{}' has no room for a block of {} bytes in its {} bytes of address "
                       "space (FSCCL_POOL_REGION_BYTES)",
                       place_.pool, bytes, place_.bytes));
  const uint64_t extent = region_.top();
  reached_ = std::max(reached_, extent);
  Undo undo([&] {
    if (!lock.owns_lock()) lock.lock();
    release(taken);
  });
  lock.unlock();
  Status status = place_.grow(extent);
  lock.lock();
  if (!status.ok()) return wanted(std::move(status));
  if (watch_) FSCCL_TRY(watch_->reuse(taken.begin, taken.end));
  undo.keep();
  return taken;
}

void Blocks::release(const Bytes& bytes) {
  if (streams_.over(bytes.done))
    region_.free(bytes.begin);
  else
    cooling_.add(bytes.begin, bytes.end, bytes.done);
}

// `over`: no work on the bytes may still run.
Result<void*> Blocks::enter(Block&& block, Journal::Owner owner, uint32_t stream, bool over) {
  block.call = calls_ + 1;
  block.stream = streams_.name(stream);
  streams_.work(stream, &block.done);
  owner.stream = reinterpret_cast<uint64_t>(block.stream);
  Undo undo([&] {
    blocks_.erase(block.address);
    region_.free(block.begin);
  });
  blocks_.emplace(block.address, block);
  place_.journal->block_taken(owner, reinterpret_cast<uint64_t>(place_.memory + block.begin),
                              block.end - block.begin, block.bytes);
  undo.keep();
  calls_++;
  if (watch_) {
    watch_->given(blocks_.at(block.address), stream, over);  // which it marks
  } else if (!place_.dry_run) {
    allow_memory(place_.memory + block.begin, block.end - block.begin);
    forbid_memory(place_.memory + block.data + block.bytes, block.end - block.data - block.bytes);
  }
  const uint64_t live = live_bytes() + block.end - block.begin;
  live_bytes_.store(live, std::memory_order_relaxed);
  figures_.peak_bytes = std::max(figures_.peak_bytes, live);
  figures_.allocations++;
  (block.import ? figures_.imports : figures_.blocks)++;
  return static_cast<void*>(block.address);
}

Result<void*> Blocks::alloc(uint64_t bytes, const void* stream, uint64_t alignment,
                            const Journal::Owner& owner) {
  std::unique_lock lock(mutex_);
  FSCCL_ASSIGN(const uint32_t number, streams_.number(stream));
  alignment = std::max<uint64_t>(alignment, bytes >= kLargeBlock ? kPage : 64);
  const uint64_t room = watch_ ? BlockWatch::room(bytes, alignment)
                               : round_up(std::max<uint64_t>(bytes, 1), alignment);
  Result<Bytes> found = take(room, alignment, bytes, number, lock);
  if (!found.ok()) {
    place_.journal->block_refused(owner, bytes, place_.left());
    return found.take_status();
  }
  const Bytes taken = found.take();
  Block block;
  block.bytes = bytes;
  block.begin = taken.begin;
  block.end = taken.end;
  block.data = watch_ ? watch_->place(taken.begin, alignment) : taken.begin;
  block.address = place_.memory + block.data;
  return enter(std::move(block), owner, number, streams_.over(taken.done));
}

Status Blocks::import(void* pointer, uint64_t bytes) {
  if (place_.dry_run)
    return fail(FSCCL_ERR_INVALID_STATE, "pool '{}' is a rehearsal (dry_run) and has no memory",
                place_.pool);
  FSCCL_TRY(check_importable(pointer, bytes));
  FSCCL_ASSIGN(const uint64_t file_begin, place_.arena->file_offset(place_.arena->control()));
  std::unique_lock lock(mutex_);
  FSCCL_ASSIGN(const Bytes taken, take(bytes, page_bytes(), bytes, BlockStreams::kProgram, lock));
  std::byte* const memory = place_.memory + taken.begin;
  allow_memory(memory, bytes);
  const auto offset = static_cast<uint64_t>(memory - place_.arena->control());
  Status status = place_.arenas->add_alias(pointer, bytes, {offset, place_.arena_id});
  if (status.ok()) {
    status = move_into_arena(pointer, bytes, memory, place_.arena->fd(), file_begin + offset);
    if (!status.ok()) place_.arenas->remove_alias(pointer);
  }
  if (!status.ok()) {
    release(taken);
    return status;
  }
  Block block;
  block.bytes = bytes;
  block.begin = block.data = taken.begin;
  block.end = taken.end;
  block.address = static_cast<std::byte*>(pointer);
  block.import = true;
  return enter(std::move(block), {UseKind::kImport}, BlockStreams::kProgram, true).take_status();
}

Status Blocks::not_a_block(const void* pointer) const {
  const std::string past = watch_ ? watch_->past_of(pointer) : "";
  if (!past.empty())
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{} is not a block of pool '{}', or was freed before: it was of the {}", pointer,
                place_.pool, past);
  return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is not a block of pool '{}', or was freed before",
              pointer, place_.pool);
}

Status Blocks::free(void* pointer, const void* stream) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(static_cast<const std::byte*>(pointer));
  if (found == blocks_.end()) return not_a_block(pointer);
  FSCCL_ASSIGN(const uint32_t number, streams_.number(stream));
  Block& block = found->second;
  if (block.import) {
    if (watch_) FSCCL_TRY(watch_->may_end(block));
    FSCCL_TRY(move_out_of_arena(pointer, block.bytes));
    place_.arenas->remove_alias(pointer);
  }
  streams_.work(number, &block.done);
  Status status = end(block, number);
  blocks_.erase(found);
  return status;
}

Status Blocks::end(const Block& block, uint32_t stream) {
  calls_++;
  live_bytes_.store(live_bytes() - (block.end - block.begin), std::memory_order_relaxed);
  figures_.frees++;
  (block.import ? figures_.imports : figures_.blocks)--;
  Status status;
  if (watch_) {
    status = watch_->intact(block);
    watch_->freed(block, calls_, streams_.name(stream));
  } else if (!place_.dry_run && streams_.over(block.done)) {
    forbid_memory(place_.memory + block.begin, block.end - block.begin);
  }
  place_.journal->block_given_back(reinterpret_cast<uint64_t>(place_.memory + block.begin),
                                   reinterpret_cast<uint64_t>(streams_.name(stream)));
  release({block.begin, block.end, block.done});
  return status;
}

Status Blocks::use(const void* pointer, uint64_t bytes, const void* stream, bool writes) {
  const std::lock_guard lock(mutex_);
  FSCCL_ASSIGN(const uint32_t number, streams_.number(stream));
  const auto* address = static_cast<const std::byte*>(pointer);
  auto found = blocks_.upper_bound(address);
  const bool inside =
      found != blocks_.begin() &&
      address - std::prev(found)->first <= static_cast<int64_t>(std::prev(found)->second.bytes);
  const std::string past = !inside && watch_ ? watch_->past_of(pointer) : "";
  calls_++;
  if (!past.empty())
    return fail(FSCCL_ERR_INVALID_STATE, "use after free: the {} on {} (call {}) of the {}",
                writes ? "write" : "read", stream_text(stream), calls_, past);
  if (!inside)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is not in a block of pool '{}'", pointer,
                place_.pool);
  Block& block = std::prev(found)->second;
  const auto begin = static_cast<uint64_t>(address - block.address);
  if (bytes > block.bytes - begin)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} bytes from {} on reach beyond the {}", bytes,
                pointer, block_text(block));
  if (bytes == 0) return success();
  streams_.work(number, &block.done);
  return watch_ ? watch_->use(block, begin, begin + bytes, number, writes, calls_) : success();
}

Status Blocks::record(const void* event, const void* stream) {
  const std::lock_guard lock(mutex_);
  FSCCL_ASSIGN(const uint32_t number, streams_.number(stream));
  streams_.record(event, number);
  return success();
}

Status Blocks::wait(const void* event, const void* stream) {
  const std::lock_guard lock(mutex_);
  FSCCL_ASSIGN(const uint32_t number, streams_.number(stream));
  streams_.wait(event, number);
  if (number != BlockStreams::kProgram) return success();
  if (!cooling_.empty()) {  // bytes whose uses the program has waited for are free for all
    const StreamClock& known = streams_.known(BlockStreams::kProgram);
    cooling_.open(region_, known, 0, 0);
    cooling_.close(region_, known, 0, 0);
  }
  return watch_ ? watch_->cool() : success();
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
  std::sort(blocks.begin(), blocks.end(), [](const Block* a, const Block* b) {
    return std::pair(b->bytes, a->call) < std::pair(a->bytes, b->call);
  });
  std::string text;
  for (size_t i = 0; i < std::min(blocks.size(), kListed); i++)
    text += (i ? ", " : "") + block_text(*blocks[i]);
  if (blocks.size() > kListed) text += fmt::format(" and {} more", blocks.size() - kListed);
  return text;
}

uint64_t Blocks::shrink(const std::function<uint64_t(uint64_t top)>& release) {
  const std::lock_guard lock(mutex_);
  const uint64_t top = region_.top();
  if (watch_)
    if (const Status status = watch_->look(top); !status.ok())
      FSCCL_LOG(kError, "pool '{}': {}", place_.pool, status.text());
  return release(top);
}

Status Blocks::look() {
  const std::lock_guard lock(mutex_);
  return watch_ ? watch_->look(0) : success();
}

}  // namespace fsccl
