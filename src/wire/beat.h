// A heartbeat as a datagram. The Beat frame (frame.h) must wait behind what was lost before it, but
// a datagram need not. It says only that a rank is alive. Nobody answers it, and lost, late or
// double datagrams do no harm.
//
//     offset  bytes  field
//          0      4  magic 0x62435346 ("FSCb")
//          4      4  the rank that beats
//          8      8  count: the time of the rank's host, so it is larger in each beat, even if
//                    another rank of this host sends it
//         16     32  proof: HMAC-SHA256 of the bytes before it
//
// The key of the proof is derived from the job's secret and from numbers that both ranks drew for
// this job. A beat that was recorded in another job, from another rank or in the other direction is
// therefore no proof. Within a job each count is accepted once.
#pragma once
#include <array>
#include <cstdint>

#include "wire/authentication.h"
#include "wire/messages.h"

namespace fsccl {

inline constexpr size_t kBeatBytes = 4 + 4 + 8 + sizeof(Digest);
using BeatDatagram = std::array<uint8_t, kBeatBytes>;

// Returns the key for beats from `from` to `to`.
SecretKey beat_key(const SecretKey& job_key, uint64_t job, const MemberRecord& from,
                   const MemberRecord& to);

BeatDatagram seal_beat(const SecretKey& key, int32_t rank, uint64_t count);
// Returns the rank that the datagram names, which proves nothing yet, or -1 if the datagram is not
// a heartbeat.
int32_t claimed_rank(ByteView datagram);
// Returns the count of the datagram if it is above `last` and the proof is right, and 0 otherwise.
// The proof of an old count is not computed.
uint64_t open_beat(const SecretKey& key, ByteView datagram, uint64_t last);

}  // namespace fsccl
