// Proves the plans of words that travel coded for random shapes. The tests also check the order of
// steps: a piece is sent before the next one is encoded, and all pieces are sent before the rank
// waits for the first piece of another rank.
#include "plan/coded_pieces.h"

#include <gtest/gtest.h>

#include <random>

#include "plan/verify.h"

namespace fsccl::testing {
namespace {

CodedShape shape_of(std::vector<uint64_t> words, uint64_t slot_bytes) {
  CodedShape shape;
  shape.ranks = static_cast<int>(words.size());
  shape.words = std::move(words);
  shape.block_words = 100;
  shape.block_bytes = 28;
  shape.slot_bytes = slot_bytes;
  return shape;
}

bool makes(const Plan& plan, const Step& step) {
  return step.kind == StepKind::code && plan.buffers[step.dst.buffer].slot;
}

Status verify_pieces(CodedShape shape) {
  std::vector<std::vector<Plan>> of_ranks;
  for (shape.rank = 0; shape.rank < shape.ranks; shape.rank++)
    of_ranks.push_back(coded_pieces(shape));
  const CodedPieces pieces(shape);
  for (size_t k = 0; k < pieces.plans(); k++) {
    std::vector<Plan> plans;
    for (const std::vector<Plan>& plans_of_rank : of_ranks) plans.push_back(plans_of_rank.at(k));
    std::vector<Expected> expected;
    for (int rank = 0; rank < shape.ranks; rank++)
      for (int q = 0; q < shape.ranks; q++)
        for (int tick = 0; tick < pieces.ticks(k); tick++) {
          const CodedPiece piece = pieces.piece(k, tick, q);
          if (q == rank || piece.count == 0) continue;
          expected.push_back(
              {{1, rank, shape.before(q) + piece.begin}, {0, q, piece.begin}, piece.count});
        }
    if (Status status = verify(plans, expected); !status.ok()) return status;
  }
  return success();
}

TEST(CodedPieces, AreProved) {
  std::mt19937_64 random(11);
  for (int ranks = 2; ranks <= 7; ranks++)
    for (int round = 0; round < 60; round++) {
      std::vector<uint64_t> words;
      for (int q = 0; q < ranks; q++) words.push_back(random() % 3 == 0 ? 0 : random() % 6000);
      CodedShape shape = shape_of(words, 64 * (4 + random() % 20));
      for (const bool mirrored : {false, true}) {
        shape.mirrored = mirrored;
        const Status status = verify_pieces(shape);
        ASSERT_TRUE(status.ok()) << ranks << " ranks, round " << round << ": " << status.text();
      }
    }
}

TEST(CodedPieces, HaveEachWordOnceAndFitTheirSlots) {
  for (const uint64_t words : {1, 99, 100, 101, 350, 400, 799, 801, 1200, 1601, 5000, 123456})
    for (const uint64_t slot_bytes : {192, 320, 576, 1024, 4096}) {
      const CodedShape shape = shape_of({words, words / 3, 0}, slot_bytes);
      const CodedPieces pieces(shape);
      for (int q = 0; q < 3; q++) {
        uint64_t next = 0;
        for (size_t k = 0; k < pieces.plans(); k++)
          for (int tick = 0; tick < pieces.ticks(k); tick++) {
            const CodedPiece piece = pieces.piece(k, tick, q);
            EXPECT_EQ(piece.begin, next);
            EXPECT_TRUE(piece.begin % 100 == 0 || piece.count == 0);
            EXPECT_LE(pieces.bytes(piece), slot_bytes) << words << " words, plan " << k;
            next += piece.count;
          }
        EXPECT_EQ(next, shape.words[static_cast<size_t>(q)]);
      }
    }
}

TEST(CodedPieces, NeverWaitBeforeTheOwnAreOnTheirWay) {
  for (const bool mirrored : {false, true})
    for (const uint64_t words : {400, 1200, 5000}) {
      CodedShape shape = shape_of({words, words}, 1024);
      shape.mirrored = mirrored;
      size_t most = 0;
      for (const Plan& plan : coded_pieces(shape)) {
        size_t made = 0, on_their_way = 0;
        bool waited = false;
        for (const Step& step : plan.steps) {
          if (makes(plan, step)) {
            // All pieces before this one have been sent before it is encoded, and the rank has not
            // waited for any.
            EXPECT_EQ(on_their_way, made);
            EXPECT_FALSE(waited);
            made++;
          }
          on_their_way += step.kind == StepKind::signal;
          waited |= step.kind == StepKind::wait;
        }
        EXPECT_EQ(made, static_cast<size_t>(plan.ticks));
        most = std::max(most, made);
      }
      EXPECT_EQ(most, 4u) << words;
    }
}

// A receiver decodes a piece before it waits for the next one.
TEST(CodedPieces, AreDecodedAsTheyCome) {
  for (const Plan& plan : coded_pieces(shape_of({1200, 1200, 1200}, 1024))) {
    const Step* before = nullptr;
    for (const Step& step : plan.steps) {
      if (before && before->kind == StepKind::wait) {
        EXPECT_TRUE(step.kind == StepKind::code && step.src.rank == before->peer);
      }
      before = &step;
    }
  }
}

TEST(CodedPieces, AreShortAtBothEnds) {
  const CodedShape shape = shape_of({1200, 1200}, 1024);
  const CodedPieces pieces(shape);
  ASSERT_EQ(pieces.plans(), 1u);
  EXPECT_EQ(pieces.piece(0, 0, 0).count, 100u);
  EXPECT_EQ(pieces.piece(0, 1, 0).count, 500u);
  EXPECT_EQ(pieces.piece(0, 2, 0).count, 500u);
  EXPECT_EQ(pieces.piece(0, 3, 0).count, 100u);
}

}  // namespace
}  // namespace fsccl::testing
