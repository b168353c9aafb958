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
  // The bytes came while ranks coded, which may have taken longer than the link: the time is no
  // less than the link's. `busy`: it seems to be the link's. A rank that lost its core for a while
  // looks like a slow link, so the cost rises little by little.
  void overlapped(double ns, uint64_t bytes, bool busy);

 private:
  // the time of fewer bytes says little of the rate
  static constexpr uint64_t kLeastBytes = 256u << 10;
};

// How long it takes to code, and to move what is coded, where most of both goes on at the same
// time: nothing hides the first piece's encoding and the last one's decoding.
inline double overlapped_ns(double coding_ns, double wire_ns) {
  constexpr double kEnds = 8;  // an eighth of the shorter one is at the ends
  return std::max(coding_ns, wire_ns) + std::min(coding_ns, wire_ns) / kEnds;
}

// Times of a gather that all ranks know.
struct GatherTimes {
  double plain_ns = 0, coded_ns = 0;
};

class CodecChoice {
 public:
  // Once for each gather: it goes plain, for the codec has lost. The same on all ranks.
  bool stays_out();
  // After a coded gather. The same on all ranks.
  void judge(const GatherTimes& times, bool may_decline);
  bool out() const { return out_ > 0; }
  // times of a gather; the newest ones weigh most
  const GatherTimes& recent() const { return recent_; }

  // This rank's own choice, for what it sends to `receivers`, where a byte takes so long on the
  // link. Coding goes on while bytes are on their way, so the slower of the two decides.
  DeltaForm form(double byte_ns, size_t receivers);
  void took(DeltaForm form, double encode_ns, uint64_t words, uint64_t bytes);

 private:
  // Gathers in a row: lost before it first stays out, and before it does again; won before that is
  // forgotten. A forward that loses and a backward that wins by more take four to be told apart.
  static constexpr int kLosses = 8, kLossesAgain = 4, kWins = 16;
  // It stays out sooner when it has lost the time of so many plain gathers.
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
