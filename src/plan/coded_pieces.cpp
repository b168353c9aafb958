#include "plan/coded_pieces.h"

#include <algorithm>

#include "base/round_up.h"
#include "plan/build.h"

namespace fsccl {
namespace {

// The first and the last piece of a plan have 1/kEnd of its blocks each. Fewer blocks than kEnd are
// cut into even pieces.
constexpr uint64_t kEnd = 8;

}  // namespace

uint64_t coded_piece_bytes(uint64_t words, uint64_t block_words, uint64_t block_bytes) {
  return words ? words + (ceil_div(words, block_words) + 1) * block_bytes : 0;
}

uint64_t CodedShape::blocks(int q) const {
  return ceil_div(words[static_cast<size_t>(q)], block_words);
}

uint64_t CodedShape::before(int q) const {
  uint64_t all = 0;
  for (int p = 0; p < q; p++) all += words[static_cast<size_t>(p)];
  return all;
}

CodedPieces::CodedPieces(const CodedShape& shape) : shape_(shape) {
  uint64_t most = 0;
  for (int q = 0; q < shape.ranks; q++) most = std::max(most, shape.blocks(q));
  const uint64_t block = shape.block_words + shape.block_bytes;
  if (shape.slot_bytes > shape.block_bytes + block)
    fit_ = (shape.slot_bytes - shape.block_bytes) / block;
  const uint64_t each = fit_ * kMaxTicks;
  plans_ = ceil_div(most, each);
}

// Returns the block at which the piece of this tick begins. A rank has `blocks` blocks in the plan.
uint64_t CodedPieces::edge(uint64_t blocks, int tick, int ticks) const {
  const auto t = static_cast<uint64_t>(tick), all = static_cast<uint64_t>(ticks);
  if (ticks < kMaxTicks || blocks < kEnd) return blocks * t / all;
  const uint64_t middle = fit_ * (all - 2);
  const uint64_t end = std::max(blocks / kEnd, blocks > middle ? (blocks - middle + 1) / 2 : 0);
  if (tick == 0 || tick == ticks) return blocks * t / all;
  return end + (blocks - 2 * end) * (t - 1) / (all - 2);
}

uint64_t CodedPieces::first_block(size_t plan, int q) const {
  return shape_.blocks(q) * plan / plans_;
}

uint64_t CodedPieces::most_blocks(size_t plan) const {
  uint64_t most = 0;
  for (int q = 0; q < shape_.ranks; q++)
    most = std::max(most, first_block(plan + 1, q) - first_block(plan, q));
  return most;
}

int CodedPieces::ticks(size_t plan) const {
  return static_cast<int>(std::min<uint64_t>(kMaxTicks, most_blocks(plan)));
}

CodedPiece CodedPieces::piece(size_t plan, int tick, int q) const {
  const uint64_t first = first_block(plan, q), blocks = first_block(plan + 1, q) - first;
  const uint64_t words = shape_.words[static_cast<size_t>(q)];
  const auto at = [&](int t) {
    return std::min(words, (first + edge(blocks, t, ticks(plan))) * shape_.block_words);
  };
  return {at(tick), at(tick + 1) - at(tick)};
}

uint64_t CodedPieces::bytes(const CodedPiece& piece) const {
  return coded_piece_bytes(piece.count, shape_.block_words, shape_.block_bytes);
}

namespace {

Plan plan_of(const CodedShape& shape, const CodedPieces& pieces, size_t k) {
  const int ticks = pieces.ticks(k);
  Builder build("all_gather_coded", shape.rank, shape.ranks, ticks);
  build.mirrored(shape.mirrored);
  build.two_way();
  build.buffer("words", Role::input, shape.words[static_cast<size_t>(shape.rank)]);
  build.buffer("all words", Role::output, shape.before(shape.ranks));
  const auto slot = [](int tick) { return 2 + static_cast<uint32_t>(tick); };
  for (int tick = 0; tick < ticks; tick++) {
    uint64_t longest = 0;
    for (int q = 0; q < shape.ranks; q++)
      longest = std::max(longest, pieces.bytes(pieces.piece(k, tick, q)));
    build.slot("slot", longest, tick);
  }
  for (int tick = 0; tick < ticks; tick++) {
    const CodedPiece own = pieces.piece(k, tick, shape.rank);
    const Operand made = build.mine(slot(tick), 0);
    build.code(made, build.mine(0, own.begin), own.count);
    for (int i = 1; i < shape.ranks && shape.mirrored; i++)
      build.put_coded(build.peer(i), made, pieces.bytes(own));
    build.signal(tick);
  }
  for (int tick = 0; tick < ticks; tick++)
    for (int i = 1; i < shape.ranks; i++) {
      const int q = build.peer(i);
      const CodedPiece its = pieces.piece(k, tick, q);
      if (tick > 0 && its.count == 0) continue;
      build.wait(q, tick);
      build.code(build.mine(1, shape.before(q) + its.begin), build.at(q, slot(tick), 0), its.count);
    }
  return build.take();
}

}  // namespace

std::vector<Plan> coded_pieces(const CodedShape& shape) {
  const CodedPieces pieces(shape);
  std::vector<Plan> plans;
  for (size_t k = 0; k < pieces.plans(); k++) plans.push_back(plan_of(shape, pieces, k));
  return plans;
}

}  // namespace fsccl
