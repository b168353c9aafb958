// Compares the fingerprints of peers' calls with those of this rank's calls. An error says which
// calls differ, and how.
#include <cstring>

#include "base/clock.h"
#include "engine/runner.h"
#include "record/message_names.h"

namespace fsccl {
namespace {

// A line of a peer may arrive so much after a later line of the same peer.
constexpr int64_t kLateLineNs = 100'000'000;

}  // namespace

void Runner::mismatch(const Fingerprint& mine, int peer, const Fingerprint& theirs) {
  Error error;
  error.code = FSCCL_ERR_MISMATCH;
  error.rank = known_as(rank_);
  error.peer = known_as(peer);
  error.operation = name_for(rank_, mine);
  error.sequence = mine.sequence;
  error.text = fmt::format(
      "ranks disagree: rank {} calls {}, rank {} calls {}; they differ in {}. All ranks must issue "
      "the same operations in the same "
      "order",
      error.rank, describe_for(rank_, mine), error.peer, describe_for(peer, theirs),
      difference(mine, theirs, {sites_.of(mine.sequence), ticks_.before_unheard(mine)}));
  failure_.fail_all(error);
}

void Runner::damaged(const Fingerprint& mine, int peer, const std::string& what,
                     const std::string& sums) {
  Error error;
  error.code = FSCCL_ERR_PROTOCOL;
  error.rank = known_as(rank_);
  error.peer = known_as(peer);
  error.operation = name_for(rank_, mine);
  error.sequence = mine.sequence;
  error.text = fmt::format(
      "rank {} got {} of {} from rank {} over {} that changed on the way: {}. Look at the memory "
      "and the processors of these two",
      error.rank, what, describe_for(rank_, mine), error.peer, channel_.traits().transport, sums);
  failure_.fail_all(error);
}

Fingerprint Runner::claimed(const fsccl_transport_line_t& line) const {
  if (options_.checksum) return claim_of(line);
  Fingerprint claim;
  std::memcpy(&claim, line.fingerprint, sizeof claim);
  return claim;
}

bool Runner::check_claim(const Fingerprint& mine, int peer, const fsccl_transport_line_t& line) {
  const Fingerprint theirs = claimed(line);
  if (equal(mine, &theirs)) return true;
  if (options_.checksum && differ_in_checksum(mine, theirs)) {
    const auto sum = static_cast<uint32_t>(checksum_over_sequence(line) >> 32);
    damaged(mine, peer, "a signal's payload",
            fmt::format("its CRC32C is {:#010x}, {:#010x} was meant", sum,
                        sum ^ static_cast<uint32_t>((mine.sequence ^ theirs.sequence) >> 32)));
    return false;
  }
  // Rounds before this one may be pending, and they may be quiet or have other numbers of ticks.
  // The error names the first round that differs from what a peer has sent.
  for (uint32_t i = 0; i < ticks_.pending(); i++) {
    const TickWindow::Round& round = ticks_.pending(i);
    if (round.fingerprint.sequence == theirs.sequence &&
        // If a plan has several steps, the peer has sent no other tick of it to this rank.
        !equal(round.fingerprint, &theirs)) {
      mismatch(round.fingerprint, peer, theirs);
      return false;
    }
    for (int k = 0; k < ranks_; k++) {
      const int q = (peer + k) % ranks_;
      const fsccl_transport_line_t* before = q == rank_ ? nullptr : channel_.poll(q, round.tick);
      if (!before) continue;
      if (const Fingerprint then = claimed(*before); !equal(round.fingerprint, &then)) {
        mismatch(round.fingerprint, q, then);
        return false;
      }
    }
  }
  if (!await_earlier(peer)) mismatch(mine, peer, theirs);
  return false;
}

// A network may bring a line of a peer before an earlier line of that peer, and the earlier one may
// be the first that differs. Blocks on the earlier line for a while, because an error that names
// the first call that differs says more. Returns false if no earlier line is missing, or if it is
// late: a peer that calls something else may never have sent one of that tick.
bool Runner::await_earlier(int peer) {
  if (!mirrored()) return false;
  for (uint32_t i = 0; i < ticks_.pending(); i++) {
    const TickWindow::Round& round = ticks_.pending(i);
    if (round.quiet || channel_.poll(peer, round.tick)) continue;
    if (verdict_ns_ == 0) verdict_ns_ = now_ns() + kLateLineNs;
    if (now_ns() >= verdict_ns_) return false;
    blocked_ = {.peer = peer, .tick = round.tick, .until_ns = verdict_ns_};
    return true;
  }
  return false;
}

}  // namespace fsccl
