// A heartbeat as a datagram, beside the Beat frame (frame.h), which waits behind whatever was lost
// before it. It says that a rank lives, and nothing else; nobody answers it, and lost, late or
// double ones do no harm.
//
//     offset  bytes  field
//          0      4  magic 0x62435346 ("FSCb")
//          4      4  the rank that beats
//          8      8  count: larger with each beat, whoever of its host sends it: that host's time
//         16     32  proof: HMAC-SHA256 of what stands before it
//
// The proof's key follows from the job's secret and from what both ranks drew for this job: what
// was recorded in another job, from another rank or in the other direction proves nothing, and
// within a job each count is taken once.
#pragma once
#include <array>
#include <cstdint>

#include "wire/authentication.h"
#include "wire/messages.h"

namespace fsccl {

inline constexpr size_t kBeatBytes = 4 + 4 + 8 + sizeof(Digest);
using BeatDatagram = std::array<uint8_t, kBeatBytes>;

// For what `from` says to `to`.
SecretKey beat_key(const SecretKey& job_key, uint64_t job, const MemberRecord& from,
                   const MemberRecord& to);

BeatDatagram seal_beat(const SecretKey& key, int32_t rank, uint64_t count);
// Returns the rank that the datagram names, which proves nothing yet, or -1 if the datagram is not
// a heartbeat.
int32_t claimed_rank(ByteView datagram);
// Returns the datagram's count if it is above `last` and its proof is right, and else 0. The proof
// of an old count is not computed.
uint64_t open_beat(const SecretKey& key, ByteView datagram, uint64_t last);

}  // namespace fsccl
