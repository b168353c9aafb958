// The payloads that follow the handshake (frame.h says when): messages of the rendezvous, of the
// tree, and for passing descriptors. Decoders check every number against what the receiver knows,
// above all its number of ranks. So no decoded value can index out of range or request unbounded
// memory.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "wire/bytes.h"

namespace fsccl {

inline constexpr int32_t kMaxRanks = 1 << 20;

// A random number. Its hexadecimal form names the Unix listener of a rank.
using ListenerName = std::array<uint8_t, 16>;

// A rank and its addresses.
struct MemberRecord {
  int32_t rank = -1;
  uint64_t host = 0;
  int32_t pid = 0;
  uint32_t uid = 0;
  uint64_t start_time = 0;
  ListenerName listener = {};
  // 1: the rank reached the rendezvous over a Unix socket, so other ranks that did can reach it
  // like that.
  uint8_t via_unix = 0;
  std::array<uint8_t, 16> ip = {};  // all zero: found by the rendezvous from the connection
  uint16_t port = 0;                // 0: no TCP
  uint16_t beat_port = 0;           // the port for heartbeats as datagrams (beat.h); 0: none
};
inline constexpr size_t kMemberRecordBytes = 4 + 8 + 4 + 4 + 8 + 16 + 1 + 16 + 2 + 2;

struct Register {
  MemberRecord member;
  uint64_t left_ms = 0;  // the time until this rank gives up
};
Bytes encode(const Register& message);
Result<Register> decode_register(ByteView payload);

struct Assign {
  uint64_t job = 0;
  int32_t order = 0;    // order of arrival; 0 is the tree's root
  MemberRecord parent;  // meaningless for the root
};
Bytes encode(const Assign& message);
Result<Assign> decode_assign(ByteView payload, int32_t ranks);

// All members, in the order of arrival.
Bytes encode_members(const std::vector<MemberRecord>& members);
Result<std::vector<MemberRecord>> decode_members(ByteView payload, int32_t ranks);

// The contributions that the ranks of a subtree give to an all-gather: `count` of them, each a rank
// and `bytes` bytes.
struct Gather {
  uint64_t sequence = 0;
  uint64_t bytes = 0;
  struct Contribution {
    int32_t rank;
    ByteView data;  // a view of the payload
  };
  std::vector<Contribution> contributions;
};
Bytes encode(const Gather& message);
Result<Gather> decode_gather(ByteView payload, int32_t ranks);

// The result of an all-gather: `bytes` bytes of each rank, in rank order.
struct Gathered {
  uint64_t sequence = 0;
  ByteView data;  // a view of the payload
};
Bytes encode(const Gathered& message);
Result<Gathered> decode_gathered(ByteView payload);

// Ranks that are gone; `left` says that they said goodbye. This is the payload of Loss, and of
// Goodbye (with the ranks of which its sender had not yet told the receiver).
struct LostRank {
  int32_t rank = -1;
  bool left = false;
  bool host_lost = false;  // its host does not answer; the rank has not left then
};
Bytes encode_losses(const std::vector<LostRank>& losses);
Result<std::vector<LostRank>> decode_losses(ByteView payload, int32_t ranks);

// A rank's vote about the survivors of a group (bootstrap/membership.h).
struct Vote {
  uint64_t meeting = 0;
  int32_t rank = -1;
  // The error of a rank that could not carry out the previous decision.
  struct Refusal {
    int32_t code = 0;   // a fsccl_status_t; FSCCL_OK: there is no refusal
    int32_t rank = -1;  // the rank whose error it is
    std::string text;   // only characters that can be printed
    bool operator==(const Refusal&) const = default;
  };
  Refusal refusal;
  bool decided = false;         // `failed` and `refusal` are the decision for all
  std::vector<int32_t> failed;  // the members that the rank holds for dead or gone; ascending
  bool operator==(const Vote&) const = default;
};
Bytes encode_votes(const std::vector<Vote>& votes);
Result<std::vector<Vote>> decode_votes(ByteView payload, int32_t ranks);

// A rank that is silent, as far as the sender of a Beat knows. The payload of a Beat has all of
// them.
struct Silent {
  int32_t rank = -1;
  uint32_t silent_ms = 0;
  bool stopped = false;  // the system of the rank's host says that it is stopped
  uint8_t hops = 0;      // the number of ranks that have passed this on
};
Bytes encode_silent(const std::vector<Silent>& silent);
Result<std::vector<Silent>> decode_silent(ByteView payload, int32_t ranks);

// The payload of Fetch and of Descriptor.
Bytes encode_tag(uint64_t tag);
Result<uint64_t> decode_tag(ByteView payload);

}  // namespace fsccl
