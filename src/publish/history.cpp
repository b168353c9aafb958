#include "publish/history.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/undo.h"
#include "kernels/crc32c.h"

namespace fsccl::publish {
namespace {

// Memory of a record for each of its blocks, beside the block's bytes: its place in the list, and
// what an allocation takes more than it was asked for.
constexpr uint64_t kBlockCost = sizeof(Bytes) + 32;

}  // namespace

History::History(uint64_t words, uint64_t limit_bytes)
    : limit_(limit_bytes), previous_(words), encoded_(delta_block_bound(kDeltaBlockWords)) {
  range_.words = words;
  checksums_.resize(range_.blocks());
}

void History::begin(bool records) {
  making_ = nullptr;
  // After a version that was skipped, some words may already be newer than those of the version
  // that subscribers have, so records of this one would not lead from there.
  if (records && !publishing_) {
    making_ = std::make_shared<Record>(total_);
    making_->version = version_ + 1;
    making_->blocks.resize(range_.blocks());
  }
  publishing_ = true;
}

void History::cut(Sending& sending) {
  stop(sending);
  sending.cut_ = true;
  given_up_++;
}

// Returns a sending of records if there is one, else a sending of the newest whole copy. A sending
// of the oldest whole copy is returned only if `oldest_copy` is true.
Sending* History::one_to_cut(bool oldest_copy) const {
  Sending* newest = nullptr;
  uint64_t oldest = UINT64_MAX;
  for (Sending* const sending : sendings_) {
    if (!sending->copy_) return sending;
    oldest = std::min(oldest, sending->copy_->version);
    if (!newest || sending->copy_->version > newest->copy_->version) newest = sending;
  }
  return newest && (oldest_copy || newest->copy_->version > oldest) ? newest : nullptr;
}

// Gives up records and sendings, in the order of the invariant in history.h, until there is room.
// Returns false if `needed` is no longer true because the object that needed the room has itself
// been given up, or if nothing is left to give up.
template <class Needed>
bool History::make_room(uint64_t bytes, const Needed& needed) {
  while (needed() && *total_ + bytes > limit_) {
    if (!records_.empty()) {
      records_.pop_front();
    } else if (Sending* const sending = one_to_cut(false)) {
      cut(*sending);
    } else if (making_) {
      making_ = nullptr;
      given_up_++;
    } else if (Sending* const last = one_to_cut(true)) {
      cut(*last);
    } else {
      return false;
    }
  }
  return needed();
}

// Every whole copy of which the block was not sent yet keeps the block's old words, or is given up.
// After this, next() reads the block from the copy alone, and answer() begins no whole copy before
// end(), so encode() and copy() may write the block without the lock.
void History::keep(size_t block) {
  for (Sending* const sending : std::vector<Sending*>(sendings_)) {
    Copy* const copy = sending->copy_.get();
    if (!copy || sending->block_ > block || copy->kept[block]) continue;
    const size_t words = block_words(block), bytes = words * sizeof(uint16_t);
    if (!make_room(bytes, [&] { return sending->copy_ != nullptr; })) continue;
    copy->kept[block].reset(new (std::nothrow) uint16_t[words]);
    if (!copy->kept[block]) {
      cut(*sending);
      continue;
    }
    std::memcpy(copy->kept[block].get(), block_at(block), bytes);
    add(copy->held, bytes);
  }
}

void History::encode(size_t block, const uint16_t* words, DeltaForm form, DeltaScratch& scratch) {
  const DeltaWritten written =
      encode_delta(words, block_at(block), block_words(block), form, encoded_.data(), scratch);
  checksums_[block] = written.sum;
  encoded_bytes_ = written.bytes;
}

void History::add_encoded(size_t block) {
  if (!making_) return;  // the record was given up
  const uint64_t cost = encoded_bytes_ + kBlockCost;
  if (!make_room(cost, [&] { return making_ != nullptr; })) return;
  try {
    making_->blocks[block].assign(encoded_.data(), encoded_.data() + encoded_bytes_);
  } catch (const std::bad_alloc&) {  // subscribers get whole copies; training goes on
    making_ = nullptr;
    given_up_++;
    return;
  }
  making_->bytes += encoded_bytes_;
  add(making_->held, cost);
}

void History::copy(size_t block, const uint16_t* words) {
  const size_t bytes = block_words(block) * sizeof(uint16_t);
  std::memcpy(block_at(block), words, bytes);
  checksums_[block] = crc32c(words, bytes);
}

uint64_t History::end(uint64_t label) {
  publishing_ = false;
  version_++;
  label_ = label;
  sum_ = crc32c(checksums_.data(), checksums_.size() * sizeof(uint32_t));
  if (!making_) {
    records_.clear();  // no record leads on from these
    return 0;
  }
  making_->label = label;
  making_->sum = sum_;
  newest_record_bytes_ = making_->bytes;
  const std::shared_ptr<const Record> made = std::move(making_);
  making_ = nullptr;
  try {
    records_.push_back(made);
  } catch (const std::bad_alloc&) {
    records_.clear();
  }
  return newest_record_bytes_;
}

void History::skip() {
  publishing_ = true;
  making_ = nullptr;
  records_.clear();
  version_++;
}

bool History::has_records(const Want& want) const {
  if (want.base == 0 || records_.empty() || records_.front()->version > want.base + 1 ||
      records_.back()->version < want.version)
    return false;
  uint64_t bytes = 0;
  for (const auto& record : records_)
    if (record->version > want.base && record->version <= want.version) bytes += record->bytes;
  return bytes <= most_record_bytes(range_.words);
}

History::Answer History::answer(const Want& want, Sending& sending) {
  if (want.version > version_) return Answer::later;
  sending = Sending();
  Undo undo([&] { stop(sending); });  // also if memory is short in the middle
  if (has_records(want)) {
    for (const auto& record : records_) {
      if (record->version <= want.base || record->version > want.version) continue;
      sending.records_.push_back(record);
      sending.head_.bytes += record->bytes;
    }
    const Record& last = *sending.records_.back();
    sending.head_.base = want.base;
    sending.head_.version = want.version;
    sending.head_.label = last.label;
    sending.head_.sum = last.sum;
    sendings_.push_back(&sending);
    undo.keep();
    return Answer::ready;
  }
  if (want.version < version_) return Answer::gone;
  // Blocks are being overwritten, so no whole copy of this version can begin. The subscriber gets
  // `gone` after end(), and asks for the next version.
  if (publishing_) return Answer::later;
  // All sendings of this version share one copy as long as the copy keeps no block.
  for (const Sending* const other : sendings_)
    if (other->copy_ && other->copy_->version == version_ && other->copy_->held.bytes() == 0)
      sending.copy_ = other->copy_;
  if (!sending.copy_) {
    sending.copy_ = std::make_shared<Copy>(total_);
    sending.copy_->version = version_;
    sending.copy_->label = label_;
    sending.copy_->sum = sum_;
    sending.copy_->kept.resize(range_.blocks());
  }
  sending.head_ = {0, version_, label_, whole_bytes(range_.words), sum_};
  sendings_.push_back(&sending);
  undo.keep();
  return Answer::ready;
}

ByteView History::next(Sending& sending, Bytes& room) {
  while (sending.block_ == range_.blocks()) {  // a rank without words has records without blocks
    sending.block_ = 0;
    if (!sending.records_.empty()) sending.records_.pop_front();
    if (sending.records_.empty()) {
      stop(sending);
      return {};
    }
  }
  const size_t block = sending.block_;
  if (!sending.records_.empty()) {
    sending.block_++;
    return sending.records_.front()->blocks[block];
  }
  Copy& copy = *sending.copy_;
  const size_t bytes = block_words(block) * sizeof(uint16_t);
  const void* const words = copy.kept[block] ? copy.kept[block].get() : block_at(block);
  room.resize(kChecksumBytes + bytes);  // where memory is short, the block comes with the next call
  sending.block_++;
  std::memcpy(room.data() + kChecksumBytes, words, bytes);
  const uint32_t sum = crc32c(room.data() + kChecksumBytes, bytes);
  std::memcpy(room.data(), &sum, sizeof sum);
  release(copy, block);
  return room;
}

// Frees the block that `copy` keeps, if every sending of the copy is past this block.
void History::release(Copy& copy, size_t block) {
  if (!copy.kept[block]) return;
  const auto needs = [&](const Sending* sending) {
    return sending->copy_.get() == &copy && sending->block_ <= block;
  };
  if (std::any_of(sendings_.begin(), sendings_.end(), needs)) return;
  copy.kept[block].reset();
  copy.held.remove(block_words(block) * sizeof(uint16_t));
}

void History::stop(Sending& sending) {
  std::erase(sendings_, &sending);
  const std::shared_ptr<Copy> copy = std::move(sending.copy_);
  sending.copy_ = nullptr;
  sending.records_.clear();
  if (!copy) return;
  for (size_t block = 0; block < copy->kept.size(); block++) release(*copy, block);
}

void History::add(Held& held, uint64_t bytes) {
  held.add(bytes);
  peak_ = std::max<uint64_t>(peak_, *total_);
}

}  // namespace fsccl::publish
