// Call sites of the operations of an engine (fsccl_comm_set_site). The key of the site is part of
// the fingerprint's history, so two ranks that issue operations of different sites find out when
// they compare their fingerprints. The keys of the last operations are kept for the error's text.
// The thread that submits writes the keys. A thread that drives an operation reads its key after it
// has seen that the operation was submitted.
#pragma once
#include <array>
#include <cstdint>

#include "plan/fingerprint.h"

namespace fsccl {

class Sites {
 public:
  void set(uint64_t key) { key_ = key; }
  uint64_t key() const { return key_; }
  // Marks an operation that is being submitted and has its sequence number. A message between two
  // ranks has no site, because its sender and its receiver are at different places of the program.
  void mark(Fingerprint& what) {
    const uint64_t key = what.op == OpCode::send ? 0 : key_;
    kept_[what.sequence % kKept] = key;
    what.history ^= key;
  }
  // Returns the key of an operation that is in flight, or that was not compared with all peers yet.
  uint64_t of(uint64_t sequence) const { return kept_[sequence % kKept]; }

 private:
  static constexpr size_t kKept = 128;  // more than an engine's ring and its window together
  uint64_t key_ = 0;
  std::array<uint64_t, kKept> kept_{};
};

}  // namespace fsccl
