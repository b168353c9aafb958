// An all-gather of compressed (coded) words. The compressed size of a piece is known only at run
// time, when the piece has been encoded. A rank encodes a piece straight into its slot, puts the
// compressed bytes, and signals; then it encodes the next piece while the network moves this one. A
// receiver decodes each piece from the sender's slot as soon as it has arrived, while later pieces
// arrive. The operation's hook encodes and decodes (`code` steps, plan.h).
//
// Each of the plans moves up to kMaxTicks pieces, and a rank sends all of its own pieces before it
// waits for those of others. The first and the last piece are short, because nothing overlaps with
// the encoding of the first and the decoding of the last.
//
// A plan counts a byte for each 16-bit word, so a slot has room for a piece that is compressed to
// half its size. It does not pay to send a piece that takes more, and the hook stops encoding it.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace fsccl {

struct CodedShape {
  int rank = 0, ranks = 1;
  bool mirrored = false;
  std::vector<uint64_t> words;  // the number of 16-bit words that each rank gives
  // Words are coded in blocks of this many words; a rank's last block may be shorter.
  uint64_t block_words = 1;
  // Each block takes this many bytes beyond a byte a word, and each piece takes as many once more.
  uint64_t block_bytes = 0;
  uint64_t slot_bytes = 0;  // at least the bytes of a piece of one block
  bool operator==(const CodedShape&) const = default;

  uint64_t blocks(int q) const;
  // Returns the number of words of all ranks before rank q.
  uint64_t before(int q) const;
};

// Returns the most bytes that a piece of `words` words takes, or 0 if it has no words.
uint64_t coded_piece_bytes(uint64_t words, uint64_t block_words, uint64_t block_bytes);

// The words of a rank that are one piece.
struct CodedPiece {
  uint64_t begin = 0, count = 0;
};

// Distributes the blocks of all ranks over plans and their ticks. All ranks compute the same.
class CodedPieces {
 public:
  explicit CodedPieces(const CodedShape& shape);
  size_t plans() const { return plans_; }
  int ticks(size_t plan) const;
  CodedPiece piece(size_t plan, int tick, int q) const;
  uint64_t bytes(const CodedPiece& piece) const;  // the most bytes that it takes

 private:
  uint64_t edge(uint64_t blocks, int tick, int ticks) const;
  uint64_t first_block(size_t plan, int q) const;
  uint64_t most_blocks(size_t plan) const;  // the largest number of blocks of a rank

  const CodedShape& shape_;
  uint64_t fit_ = 1;  // blocks that a slot holds
  size_t plans_ = 0;
};

// Returns the plans, or none if no rank gives words. Buffer 0 has this rank's words. Buffer 1 has
// the words of all ranks, but this rank's are not written there. The slots follow. The hook knows
// where the words lie.
std::vector<Plan> coded_pieces(const CodedShape& shape);

}  // namespace fsccl
