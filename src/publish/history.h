// The memory that a rank holds for its subscribers: the words of the newest version, records that
// lead from one version to the next, and blocks of older versions that whole copies under way still
// need. No sockets, no threads: the publisher calls everything under its lock, but encode() and
// copy(), which only the publishing thread calls, between keep() and the next.
//
// Invariant: the bytes of records and kept blocks stay within the limit, those included that are
// being sent. Where more is needed, these go in this order: records that nobody is being sent, the
// oldest first; records that are being sent; whole copies, the newest first, but the oldest; the
// record that is being made; the oldest whole copy. With a limit of at least the words' bytes the
// oldest whole copy therefore is never given up.
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

// Bytes that count against the limit, for as long as this lives.
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
  uint32_t sum = 0;
  std::vector<Bytes> blocks;
  Held held;
};

// A version that is being sent whole. A block that was overwritten since is kept here.
struct Copy {
  explicit Copy(std::shared_ptr<std::atomic<uint64_t>> total) : held(std::move(total)) {}
  uint64_t version = 0, label = 0;
  uint32_t sum = 0;
  std::vector<std::unique_ptr<uint16_t[]>> kept;
  Held held;
};

// The bytes that one subscriber is being sent. Belongs to a History while it is active.
class Sending {
 public:
  bool active() const { return copy_ != nullptr || !records_.empty(); }
  const VersionHead& head() const { return head_; }
  // It was given up to keep the limit: what was not sent is gone.
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

  // A version: begin(), for each block keep() and then encode() or copy(), and end().
  // `records`: whether a record is made; without it, older ones go at the end.
  void begin(bool records);
  void keep(size_t block);
  void encode(size_t block, const uint16_t* words, DeltaForm form, DeltaScratch& scratch);
  void copy(size_t block, const uint16_t* words);
  void add_encoded(size_t block);  // under the lock, behind encode()
  uint64_t end(uint64_t label);    // the bytes of the record; 0: none was made

  enum class Answer : uint8_t { later, gone, ready };
  // Looks for the bytes that `want` asks for. Returns ready when `sending` has them.
  Answer answer(const Want& want, Sending& sending);
  // The next block's bytes, in `room` or in memory that lives until the next call; empty: that was
  // all, and it is no longer active.
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

  WordRange range_;  // no pieces
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
