// A subscriber's connection to one rank, and that rank's words as of one version. Bytes that arrive
// are kept apart until apply(): receiving changes no word of the version that is there. Once the
// subscriber's thread runs, it alone calls these functions, except that another thread may read
// words(); the subscriber sees to it that nobody does during apply().
//
// Nothing that arrives is trusted: the size of an answer is checked before there is room for it,
// the room takes memory as the bytes come, and checksums cover all words.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "bootstrap/framed_socket.h"
#include "codec/delta.h"
#include "publish/messages.h"
#include "publish/words.h"

namespace fsccl::publish {

// Memory for elements that come one after the other. The system gives it as they are written, so a
// number of elements that a rank only claims takes no memory.
template <class T>
class Arriving {
 public:
  // Has room for so many elements. If that is more than before, what was written is forgotten.
  void reserve(size_t count) {
    if (count <= room_) return;
    at_.reset();
    room_ = written_ = 0;
    at_.reset(new T[count]);  // not initialised, so not touched
    room_ = count;
  }
  T* data() const { return at_.get(); }
  void wrote_up_to(size_t end) { written_ = std::max(written_, end); }
  uint64_t bytes() const { return written_ * sizeof(T); }

 private:
  std::unique_ptr<T[]> at_;
  size_t room_ = 0, written_ = 0;
};

class Link {
 public:
  explicit Link(const WordRange& range) : range_(range) {}

  // Begins a new connection, on which nothing was asked yet. Bytes that were received but not
  // applied are forgotten.
  void connect(FramedSocket channel, int64_t now_ns);
  void disconnect();
  bool connected() const { return channel_.valid(); }
  int fd() const { return channel_.fd(); }

  // Takes what has arrived, up to a bound. Fails with FSCCL_ERR_LINK if the connection has ended.
  Status read(int64_t now_ns);
  Status ask(uint64_t version);
  Status confirm(uint64_t version);

  uint64_t newest() const { return newest_; }    // the newest version that the rank has announced
  uint64_t version() const { return version_; }  // the version of words(); 0: none
  uint64_t label() const { return label_; }
  // True if the words are of this version, or all bytes that lead to it have come.
  bool ready(uint64_t version) const {
    return version_ == version || (complete_ && head_.version == version);
  }
  bool receiving() const { return head_.version && !complete_; }
  bool gone() const { return gone_; }    // the rank no longer has the version asked for
  bool ended() const { return ended_; }  // the rank has said goodbye
  int64_t heard_ns() const { return heard_ns_; }

  // Turns words() into the version that is ready. Returns false if the bytes are damaged: a whole
  // copy is then dropped and words() stay as they were, but after damaged records words() are of no
  // version.
  bool apply(DeltaScratch& scratch);
  const uint16_t* words() const { return words_.data(); }

  uint64_t held_bytes() const { return words_.bytes() + whole_.bytes() + records_.bytes(); }
  struct Counts {
    uint64_t received_bytes = 0, whole_bytes = 0, whole_copies = 0, damaged = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  Status take_frame(const Frame& frame);
  Result<bool> take_raw();
  void put_block();
  bool apply_records(DeltaScratch& scratch);

  const WordRange& range_;
  FramedSocket channel_;
  uint64_t newest_ = 0, version_ = 0, label_ = 0, asked_ = 0;
  bool gone_ = false, ended_ = false;
  int64_t heard_ns_ = 0;

  VersionHead head_;  // the head of the answer; version 0: there is none
  bool complete_ = false, sound_ = true;
  uint64_t received_ = 0;            // bytes that came, out of head_.bytes
  Arriving<uint16_t> words_;         // empty until the first whole copy
  Arriving<uint16_t> whole_;         // the whole copy that is being received
  std::vector<uint32_t> checksums_;  // the checksums of the blocks of whole_
  Bytes block_;                      // a block of the whole copy until the block is complete
  size_t block_filled_ = 0, block_number_ = 0;
  Arriving<uint8_t> records_;
  Counts counts_;
};

}  // namespace fsccl::publish
