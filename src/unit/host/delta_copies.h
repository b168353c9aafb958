// The copies that the delta codec needs: for each host of a lane, the 16-bit words that the host
// sent in the last gather, one behind the other. A copy has a state, a number that is computed from
// its words. If two states are equal, owner and receiver have the same copy, as far as they know.
// The memory of a copy may have changed nevertheless; decode_next() then finds that out
// (codec/delta.h).
#pragma once
#include <vector>

#include "base/hash.h"
#include "codec/delta.h"
#include "unit/host/lane_exchange.h"

namespace fsccl {

class DeltaCopies {
 public:
  DeltaCopies() = default;
  // Makes copies of the 16-bit ranges, which are coded in blocks of so many words.
  DeltaCopies(size_t hosts, const std::vector<LaneExchange::Range>& ranges, size_t block_words);

  static bool covers(fsccl_dtype_t dtype) {
    return dtype == FSCCL_BFLOAT16 || dtype == FSCCL_FLOAT16;
  }
  size_t hosts() const { return hosts_.size(); }
  size_t block_words() const { return block_words_; }
  uint64_t words(size_t host) const { return hosts_[host].words; }
  // The caller gives the memory for the copies, bytes() of it, aligned to 64, and keeps it. The
  // copies have no words yet.
  uint64_t bytes() const { return bytes_; }
  void place(std::byte* memory);

  // Returns the state of a copy. 0: it has no words, or a pass over them has not ended.
  uint64_t state(size_t host) const { return hosts_[host].state; }
  void forget();

  // The memory that one call works with.
  struct Workspace {
    DeltaScratch scratch;
    std::vector<uint16_t> block = std::vector<uint16_t>(kDeltaBlockWords);
    std::vector<uint8_t> coded = std::vector<uint8_t>(delta_block_bound(kDeltaBlockWords));
  };

  // A pass goes over the words of a host block by block. It begins here. The copy has no state
  // until the pass has gone over all of them.
  void begin(size_t host);
  // Makes the next block of words in the slots part of the copy. `slots` has the addresses of the
  // slots. Writes the differences to `out`, and returns their bytes, or 0 if they take more than
  // `room`.
  size_t encode_next(size_t host, const std::vector<std::byte*>& slots, DeltaForm form,
                     uint8_t* out, size_t room, Workspace& work);
  // Adds differences, which begin the `size` bytes at `in`, to the next block of the copy, and puts
  // the words into the slots. Returns the bytes that the differences take. Returns 0 if they are
  // damaged, or belong to another copy. The pass is over then, and the contents of the slots are
  // undefined.
  size_t decode_next(size_t host, const std::vector<std::byte*>& slots, const uint8_t* in,
                     size_t size, Workspace& work);
  // Makes the words of a host in the slots its copy, in a whole pass.
  void take(size_t host, const std::vector<std::byte*>& slots, Workspace& work);

 private:
  struct Piece {
    size_t slot = 0;
    uint64_t offset = 0, words = 0;
  };
  // Makes a state from the sums of its blocks. It is never 0.
  class State {
   public:
    explicit State(uint64_t words) : hash_(words) {}
    void add(uint32_t sum) { hash_ = mix_in_order(hash_, sum); }
    uint64_t value() const { return hash_ | 1; }

   private:
    uint64_t hash_;
  };
  struct Host {
    std::vector<Piece> pieces;
    uint64_t words = 0;
    uint16_t* copy = nullptr;
    uint64_t state = 0;
    // The state of the pass: the words that it has gone over, the place of the next ones, and the
    // state that the copy will have.
    uint64_t done = 0;
    size_t piece = 0;
    uint64_t within = 0;
    State passed{0};
  };
  size_t next_words(const Host& host) const;
  // Returns the next words in one piece, in their place or in `block`.
  static const uint16_t* read(Host& host, const std::vector<std::byte*>& slots, size_t count,
                              std::vector<uint16_t>& block);
  template <class Visit>
  static void walk(Host& host, const std::vector<std::byte*>& slots, uint64_t count,
                   const Visit& visit);
  static void passed(Host& host, size_t words, uint32_t sum);

  std::vector<Host> hosts_;
  size_t block_words_ = kDeltaBlockWords;
  uint64_t bytes_ = 0;
};

}  // namespace fsccl
