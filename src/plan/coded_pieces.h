// An all-gather of words that travel coded: how many bytes a piece of them takes is known only when
// it has been encoded. A rank encodes a piece straight into its slot, puts as many bytes as that
// took, and signals; then it encodes the next piece while this one is on its way. A receiver
// decodes each piece out of the sender's slot as soon as it is there, while later ones arrive. The
// operation's hook encodes and decodes (`code` steps, plan.h).
//
// Each of the plans moves up to kMaxTicks pieces, and sends all of its own before it waits for
// those of others. The first and the last piece are short: nothing hides the encoding of the one
// and the decoding of the other.
//
// A slot has room for a piece that takes half of its words' bytes. A piece that takes more does not
// pay, and the hook ends it. So a plan counts a byte for a word.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace fsccl {

struct CodedShape {
  int rank = 0, ranks = 1;
  bool mirrored = false;
  std::vector<uint64_t> words;  // 16-bit words that each rank brings; 0: none
  // Words are coded in blocks of so many; a rank's last may be shorter.
  uint64_t block_words = 1;
  // Each block takes so many bytes beyond a byte a word, and a piece takes as many once more.
  uint64_t block_bytes = 0;
  uint64_t slot_bytes = 0;  // a piece of one block fits
  bool operator==(const CodedShape&) const = default;

  uint64_t blocks(int q) const;
  // Words of all ranks before rank q's.
  uint64_t before(int q) const;
};

// The bytes that a piece of so many words takes at most; 0: it has no words.
uint64_t coded_piece_bytes(uint64_t words, uint64_t block_words, uint64_t block_bytes);

// Words of a rank that one piece has.
struct CodedPiece {
  uint64_t begin = 0, count = 0;
};

// How the blocks of all ranks are dealt out to plans and their ticks; alike on all ranks.
class CodedPieces {
 public:
  explicit CodedPieces(const CodedShape& shape);
  size_t plans() const { return plans_; }
  int ticks(size_t plan) const;
  CodedPiece piece(size_t plan, int tick, int q) const;
  uint64_t bytes(const CodedPiece& piece) const;  // that it takes at most; 0: it has no words

 private:
  uint64_t edge(uint64_t blocks, int tick, int ticks) const;
  uint64_t first_block(size_t plan, int q) const;
  uint64_t most_blocks(size_t plan) const;  // the most that one rank has

  const CodedShape& shape_;
  uint64_t fit_ = 1;  // blocks that a slot holds
  size_t plans_ = 0;
};

// Buffer 0: the own words; buffer 1: the words of all ranks, of which the own are not written; then
// the slots. The hook knows where the words lie.
// Empty if no rank brings words.
std::vector<Plan> coded_pieces(const CodedShape& shape);

}  // namespace fsccl
