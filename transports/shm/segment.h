// The memory of a shm channel: one anonymous file (memfd) that all ranks of the communicator on
// this host map. Rank 0 makes it, seals it against shrinking, and passes its descriptor to the
// others. It has no name, so nothing is left behind however the processes end.
//
//   | Header | RankBlock 0 | RankBlock 1 | ... | slots of rank 0 | slots of rank 1 | ...
//   | pair 0 to 0 | pair 0 to 1 | ...
//
// A pair is two blocks and the slots of its sender. The pages of pairs, and those of slots, are
// reserved when they are first needed, because many communicators use nothing but signals. The
// rank that needs slots first may reserve those of its peers, too (Channel::reserve()). Only the
// two ranks of a pair map it, and only when they need it. So the memory that a process maps grows
// with the number of ranks, and not with the number of pairs.
//
// A rank writes only to its own block. There are two exceptions: a sleeper counts itself in
// `sleepers` of another rank, and the first rank that fails writes the board in the header. A peer
// belongs to the same user, but may have defects. Therefore nothing that is read from here is used
// as an index or a length without a check.
#pragma once
#include <atomic>
#include <cstdint>

#include "fsccl/transport.h"

namespace fsccl::shm {

// "FSCCLsho". Each change of Geometry gets another number.
inline constexpr uint64_t kMagic = 0x4653'4343'4c73'686full;
inline constexpr size_t kPage = 4096;

// The geometry that rank 0 has chosen. The others check it before they map anything. Only rank 0
// chooses the length of rings, because processes of one host may see different caches (cores of
// several kinds, an emulator).
struct Geometry {
  uint64_t magic;
  uint32_t ranks;
  uint32_t reserved;
  uint64_t tag;
  uint64_t ring_bytes;  // bytes of the slots of one rank
  uint64_t slot_bytes;
};

struct alignas(kPage) Header {
  Geometry geometry;
  alignas(64) uint32_t failure_state;  // 0 none, 1 being written, 2 written
  fsccl_transport_failure_t failure;
};

struct Hello {
  uint64_t can_read;       // this rank could read its neighbour's memory
  uint64_t can_write;      // this rank could write to it
  uint64_t probe_address;  // address of probe_value in this process
  uint64_t probe_value;
  uint64_t landing_address;  // address of memory of this process to which a peer may write
};

struct alignas(kPage) RankBlock {
  alignas(64) fsccl_transport_line_t lines[FSCCL_TRANSPORT_TICKS];
  alignas(64) uint32_t sleepers;
  alignas(64) Hello hello;
  uint32_t left;  // 1: this rank has closed its channel
  // This rank writes to the private memory of the peer of this rank less 1. 0: it writes to none.
  alignas(64) uint32_t writes_to;
  // So many threads of this rank touch memory of ranks in the same process.
  uint32_t touching;
};
static_assert(sizeof(fsccl_transport_line_t) == 64);
static_assert(sizeof(RankBlock) == kPage && sizeof(Header) == kPage);

}  // namespace fsccl::shm
