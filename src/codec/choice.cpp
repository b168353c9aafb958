#include "codec/choice.h"

#include <algorithm>

namespace fsccl {
namespace {

constexpr double kWeight = 0.3;       // weight of the newest value
constexpr uint64_t kLeastShare = 32;  // words to a byte
constexpr double kMostRise = 1.2;

void follow(double& value, double next) {
  value = value > 0 ? value + kWeight * (next - value) : next;
}

}  // namespace

void LinkCosts::measured(double ns, uint64_t bytes) {
  if (bytes >= kLeastBytes) follow(byte_ns, ns / static_cast<double>(bytes));
}

bool CodecChoice::stays_out() {
  if (!out_) return false;
  if (--out_ == 0) recent_ = {};  // the next trial is judged by itself
  return true;
}

void LinkCosts::overlapped(double ns, uint64_t bytes, bool busy) {
  const auto least = byte_ns * static_cast<double>(bytes);
  if (ns < least || busy) measured(std::min(ns, kMostRise * least), bytes);
}

// The codec wins in gathers of unchanged parameters, such as those of backward, and may lose in
// those of forward; both count. The loss of the codec, less what it has won since, is weighed
// against a plain gather, so a codec that loses much stays out sooner than one that loses little.
void CodecChoice::judge(const GatherTimes& times, bool may_decline) {
  follow(recent_.plain_ns, times.plain_ns);
  follow(recent_.coded_ns, times.coded_ns);
  lost_ns_ = std::max(0.0, lost_ns_ + times.coded_ns - times.plain_ns);
  const bool again = next_out_ > kShortest;
  const bool much = lost_ns_ > (again ? kLostAgain : kLost) * times.plain_ns;
  if (!may_decline || (recent_.coded_ns <= recent_.plain_ns && !much)) {
    losses_ = 0;
    if (++wins_ >= kWins) next_out_ = kShortest;
    return;
  }
  wins_ = 0;
  if (++losses_ < (again ? kLossesAgain : kLosses) && !much) return;
  losses_ = 0;
  lost_ns_ = 0;
  out_ = next_out_;
  next_out_ = std::min(2 * next_out_, kLongest);
}

DeltaForm CodecChoice::form(double byte_ns, size_t receivers) {
  const auto peers = static_cast<double>(receivers);
  // For each word that a rank encodes, it decodes one of each peer.
  const auto cost = [&](const Form& one) {
    return overlapped_ns((1 + peers) * one.word_ns, peers * one.word_bytes * byte_ns);
  };
  const size_t better = cost(forms_[0]) < cost(forms_[1]) ? 0 : 1;
  const bool untried = forms_[0].word_ns <= 0 || forms_[1].word_ns <= 0;
  const size_t chosen = untried                           ? (forms_[1].word_ns <= 0 ? 1 : 0)
                        : gathers_ % kRetry == kRetry - 1 ? 1 - better
                                                          : better;
  gathers_++;
  return static_cast<DeltaForm>(chosen);
}

void CodecChoice::took(DeltaForm form, double encode_ns, uint64_t words, uint64_t bytes) {
  if (bytes * kLeastShare < words)
    return;  // nearly nothing has changed: that says nothing of either form
  Form& one = forms_[static_cast<size_t>(form)];
  follow(one.word_ns, encode_ns / static_cast<double>(words));
  follow(one.word_bytes, static_cast<double>(bytes) / static_cast<double>(words));
}

}  // namespace fsccl
