// The memory that a rank holds for its subscribers: the words of the newest version, records that
// lead from one version to the next, and the old words of blocks that were overwritten while whole
// copies under way still need them. A History has no sockets and no threads. The publisher calls
// every function under its lock, except encode() and copy(): the publishing thread calls these
// without the lock, after keep() of the block.
//
// Invariant: the bytes of records and kept blocks stay within the limit, including the bytes that
// are being sent. If more room is needed, these are given up in this order: records in the list
// of the history, the oldest first; records that are being sent; whole copies except the oldest,
// the newest first; the record that is being made; the oldest whole copy. If the limit is at least
// the bytes of the words, the oldest whole copy is therefore never given up to make room.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "codec/delta.h"
#include "publish/messages.h"
#include "publish/words.h"
#include "wire/bytes.h"

namespace fsccl::publish {

// Bytes that count against the limit while this object lives.
class Held {
 public:
  explicit Held(std::shared_ptr<std::atomic<uint64_t>> total) : total_(std::move(total)) {}
  ~Held() { *total_ -= bytes_; }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  void add(uint64_t bytes) {
    bytes_ += bytes;
    *total_ += bytes;
  }
  void remove(uint64_t bytes) {
    bytes_ -= bytes;
    *total_ -= bytes;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<std::atomic<uint64_t>> total_;
  uint64_t bytes_ = 0;
};

// The differences that lead from version - 1 to version.
struct Record {
  explicit Record(std::shared_ptr<std::atomic<uint64_t>> total) : held(std::move(total)) {}
  uint64_t version = 0, label = 0;
  uint64_t bytes = 0;  // bytes of all blocks; `held` also has what the blocks cost beside them
  uint32_t sum = 0;
  std::vector<Bytes> blocks;
  Held held;
};

// A version that is being sent whole. `kept` holds the old words of each block that was overwritten
// before every subscriber of this copy had taken it.
struct Copy {
  explicit Copy(std::shared_ptr<std::atomic<uint64_t>> total) : held(std::move(total)) {}
  uint64_t version = 0, label = 0;
  uint32_t sum = 0;
  std::vector<std::unique_ptr<uint16_t[]>> kept;
  Held held;
};

// The bytes that one subscriber is being sent. A History holds a pointer to this object while it is
// active, so it must not move then.
class Sending {
 public:
  bool active() const { return copy_ != nullptr || !records_.empty(); }
  const VersionHead& head() const { return head_; }
  // True if the answer was given up, to keep the limit or because memory was short. The bytes that
  // were not sent are gone.
  bool cut() const { return cut_; }

 private:
  friend class History;
  VersionHead head_;
  std::deque<std::shared_ptr<const Record>> records_;
  std::shared_ptr<Copy> copy_;
  size_t block_ = 0;
  bool cut_ = false;
};

class History {
 public:
  History(uint64_t words, uint64_t limit_bytes);

  uint64_t version() const { return version_; }
  uint64_t held_bytes() const { return *total_; }
  uint64_t held_peak_bytes() const { return peak_; }
  uint64_t limit_bytes() const { return limit_; }
  uint64_t copy_bytes() const { return previous_.size() * sizeof(uint16_t); }
  uint64_t given_up() const { return given_up_; }
  uint64_t newest_record_bytes() const { return newest_record_bytes_; }

  // A version is published by begin(), then for each block keep() and encode() or copy(), and then
  // end(). `records` says whether a record is made. Without one, end() drops the older records.
  void begin(bool records);
  void keep(size_t block);
  void encode(size_t block, const uint16_t* words, DeltaForm form, DeltaScratch& scratch);
  void copy(size_t block, const uint16_t* words);
  void add_encoded(size_t block);  // called after encode(), under the lock
  uint64_t end(uint64_t label);    // returns the bytes of the record; 0: none was made
  // Ends a version that could not be published. Its number counts, so that this rank's numbers stay
  // those of the other ranks, and nobody can have it. No whole copy begins before the next end().
  void skip();

  // later: the version is not published yet, or a whole copy of it cannot begin now. gone: the rank
  // has a newer version, and no records that lead to the one that is wanted.
  enum class Answer : uint8_t { later, gone, ready };
  // Looks for the bytes that `want` asks for. Returns ready if `sending` now has them. `sending`
  // must not be active before.
  Answer answer(const Want& want, Sending& sending);
  // Returns the bytes of the next block. They lie in `room`, or in a record that lives until the
  // next call for this `sending` or until the sending is cut. An empty result means that all was
  // sent and `sending` is no longer active.
  ByteView next(Sending& sending, Bytes& room);
  void stop(Sending& sending);

 private:
  size_t block_words(size_t block) const { return range_.block_words(block); }
  uint16_t* block_at(size_t block) { return previous_.data() + range_.block_begin(block); }
  bool has_records(const Want& want) const;
  template <class Needed>
  bool make_room(uint64_t bytes, const Needed& needed);
  void add(Held& held, uint64_t bytes);
  Sending* one_to_cut(bool oldest_copy) const;
  void cut(Sending& sending);
  void release(Copy& copy, size_t block);

  WordRange range_;  // has no pieces; it divides the words into blocks
  const uint64_t limit_;
  std::shared_ptr<std::atomic<uint64_t>> total_ = std::make_shared<std::atomic<uint64_t>>(0);
  uint64_t peak_ = 0, given_up_ = 0, newest_record_bytes_ = 0;
  uint64_t version_ = 0, label_ = 0;
  uint32_t sum_ = 0;
  bool publishing_ = false;
  std::vector<uint16_t> previous_;
  std::vector<uint32_t> checksums_;  // one for each block
  std::deque<std::shared_ptr<const Record>> records_;
  std::shared_ptr<Record> making_;
  Bytes encoded_;  // one encoded block
  size_t encoded_bytes_ = 0;
  std::vector<Sending*> sendings_;
};

}  // namespace fsccl::publish
