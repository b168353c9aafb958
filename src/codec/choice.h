// Decides whether a gather's codec pays, and in which form: it compares the time and bytes that the
// codec took so far with the time that the bytes would have taken without it. Decisions that ranks
// must make alike follow from numbers that all of them have (judge()). A codec that loses stays out
// for a while, then tries again.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

#include "codec/delta.h"

namespace fsccl {

// The known costs of a lane, for all units on it.
struct LinkCosts {
  double byte_ns = 0;      // a byte on the busier way of the busiest host
  double exchange_ns = 0;  // a small message to each host and back
  void measured(double ns, uint64_t bytes);
  // Notes a transfer during which ranks also encoded and decoded. `ns` is at least the time of the
  // link, and `busy` says that it is probably not more. A rank that lost its core for a while looks
  // like a slow link, so the cost rises only slowly.
  void overlapped(double ns, uint64_t bytes, bool busy);

 private:
  // The time of fewer bytes says little about the rate.
  static constexpr uint64_t kLeastBytes = 256u << 10;
};

// The time to encode, move and decode when most of the coding overlaps the transfer. The encoding
// of the first piece and the decoding of the last one overlap nothing.
inline double overlapped_ns(double coding_ns, double wire_ns) {
  constexpr double kEnds = 8;  // an eighth of the shorter one is at the ends
  return std::max(coding_ns, wire_ns) + std::min(coding_ns, wire_ns) / kEnds;
}

// Times of a gather, which all ranks know.
struct GatherTimes {
  double plain_ns = 0, coded_ns = 0;
};

class CodecChoice {
 public:
  // Called once for each gather. Returns whether the gather goes plain because the codec has lost.
  // All ranks get the same answer.
  bool stays_out();
  // Called after a coded gather, with the same arguments on all ranks.
  void judge(const GatherTimes& times, bool may_decline);
  bool out() const { return out_ > 0; }
  // times of a gather in the present trial, or in the last one while the codec is out; the newest
  // ones weigh most
  const GatherTimes& recent() const { return recent_; }

  // This rank's own choice for what it sends to `receivers` ranks, where the link takes `byte_ns`
  // per byte. Coding overlaps the transfer, so the slower of the two decides.
  DeltaForm form(double byte_ns, size_t receivers);
  void took(DeltaForm form, double encode_ns, uint64_t words, uint64_t bytes);

 private:
  // Numbers of gathers in a row: how many the codec loses before it first stays out, how many
  // before it stays out again, and how many it wins before losses are forgotten. If backward wins
  // by more than forward loses, four of them are needed to notice that.
  static constexpr int kLosses = 8, kLossesAgain = 4, kWins = 16;
  // The codec stays out sooner once it has lost the time of this many plain gathers.
  static constexpr double kLost = 2, kLostAgain = 1;
  static constexpr uint64_t kShortest = 32, kLongest = 2048, kRetry = 64;  // gathers
  struct Form {
    double word_ns = 0, word_bytes = 0;  // 0: not tried yet
  };
  uint64_t out_ = 0, next_out_ = kShortest;
  int losses_ = 0, wins_ = 0;
  double lost_ns_ = 0;
  GatherTimes recent_;
  std::array<Form, 2> forms_{};
  uint64_t gathers_ = 0;
};

}  // namespace fsccl
