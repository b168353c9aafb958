// The copies that the delta codec needs: for each host of a lane, the 16-bit words that the host
// brought at the last gather, one behind the other. A copy has a state, a number that follows from
// its words: owner and receiver have the same copy, as far as they know, if their states are equal.
// The memory of a copy may still have changed: then decode() finds it out (codec/delta.h).
#pragma once
#include <vector>

#include "codec/delta.h"
#include "unit/host/lane_exchange.h"

namespace fsccl {

class DeltaCopies {
 public:
  DeltaCopies() = default;
  // Makes copies of the 16-bit ranges.
  DeltaCopies(size_t hosts, const std::vector<LaneExchange::Range>& ranges);

  static bool covers(fsccl_dtype_t dtype) {
    return dtype == FSCCL_BFLOAT16 || dtype == FSCCL_FLOAT16;
  }
  size_t hosts() const { return hosts_.size(); }
  uint64_t words(size_t host) const { return hosts_[host].words; }
  uint64_t all_words() const;
  // Memory for the copies: bytes() of it, aligned to 64, which the caller keeps. They have no words
  // yet.
  uint64_t bytes() const { return bytes_; }
  void place(std::byte* memory);

  // 0: no words.
  uint64_t state(size_t host) const { return hosts_[host].state; }
  void forget();

  // Memory of one call.
  struct Workspace {
    DeltaScratch scratch;
    std::vector<uint16_t> block = std::vector<uint16_t>(kDeltaBlockWords);
  };
  // The words of a host that lie in the slots, whose addresses `slots` has, become its copy.
  void take(size_t host, const std::vector<std::byte*>& slots, Workspace& work);
  // The same, and writes the differences, at most `most` bytes. Returns 0 if there would be more of
  // them; the copy is taken all the same. `out` has room for encode_room(host, most).
  uint64_t encode(size_t host, const std::vector<std::byte*>& slots, DeltaForm form, uint8_t* out,
                  uint64_t most, Workspace& work);
  uint64_t encode_room(size_t host, uint64_t most) const;
  // Adds differences to the copy, and puts the words into the slots. False: the copy is not the one
  // that they are of, or they are damaged; then it has no state any more, and the slots hold
  // anything.
  bool decode(size_t host, const std::vector<std::byte*>& slots, const uint8_t* in, uint64_t size,
              Workspace& work);

 private:
  struct Piece {
    size_t slot = 0;
    uint64_t offset = 0, words = 0;
  };
  struct Host {
    std::vector<Piece> pieces;
    uint64_t words = 0;
    uint16_t* copy = nullptr;
    uint64_t state = 0;
  };
  // Walks over a host's words as they lie in the slots.
  class Cursor {
   public:
    Cursor(const Host& host, const std::vector<std::byte*>& slots) : host_(host), slots_(slots) {}
    const uint16_t* read(uint64_t count,
                         std::vector<uint16_t>& block);  // the next ones, in one piece
    void write(const uint16_t* words, uint64_t count);

   private:
    template <class Visit>
    void walk(uint64_t count, const Visit& visit);
    const Host& host_;
    const std::vector<std::byte*>& slots_;
    size_t piece_ = 0;
    uint64_t within_ = 0;
  };

  std::vector<Host> hosts_;
  uint64_t bytes_ = 0;
};

}  // namespace fsccl
