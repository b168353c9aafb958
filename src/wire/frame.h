// The wire format of the control side: the messages between two ranks, or between a rank and the
// rendezvous, over one stream socket. docs/protocol.md describes all of it.
//
// Every message except a heartbeat datagram (beat.h) is a frame: a header of 12 bytes, and a
// payload whose form depends on the type. All integers are little-endian, and there is no padding.
//
//     offset  bytes  field
//          0      4  magic 0x4c435346 ("FSCL")
//          4      2  type (FrameType)
//          6      2  CRC-16 of the type, the bytes of the payload, and the payload (polynomial
//                    0x1021, initial value 0xffff)
//          8      4  bytes of the payload
//         12      -  payload
//
// A connection begins with a handshake (handshake.h) of one frame each: Hello from the side that
// connected, Challenge from the side that listened, Proof from the first side. Before its end the
// listener trusts nothing, and only a Failure may be sent. The following frames depend on the
// purpose in the Hello ("->": to the listener):
//
//     register   Register ->, <- Assign. The first rank to register keeps the connection:
//                <- Members, <- Failure, Failure ->, Done ->
//     report     Failure ->, <- Failure (the reason for which the job failed, perhaps an
//                earlier one)
//     link       Linked <-, then both ways for as long as the job lives: Members, Ready, Go,
//                Failure, Gather, Gathered, Loss, Goodbye, Vote, Beat (messages.h)
//     fetch      Fetch ->, <- Descriptor, with a file descriptor at its first byte
//     mend       Linked <- or Failure <-, then both ways: Loss, Goodbye, Vote, Beat
//     subscribe  Subscribe ->, <- Catalog or Failure, then Want ->, Have ->, <- News, <- Gone,
//                <- Goodbye, and <- Version, behind which bytes of a publication follow that are
//                in no frame (publish/messages.h)
//
// The header, the handshake and Failure keep their form in every version, so that any two versions
// can authenticate each other and tell that they differ. A reader knows for each state how long a
// payload may be, and drops the connection on the header alone when it is longer. Missing or
// superfluous bytes of a payload are an error too.
#pragma once
#include <cstdint>
#include <string>

#include "base/status.h"
#include "wire/bytes.h"

namespace fsccl {

inline constexpr uint32_t kFrameMagic = 0x4c435346;
inline constexpr size_t kFrameHeaderBytes = 12;

enum class FrameType : uint16_t {
  kHello = 1,
  kChallenge = 2,
  kProof = 3,
  kFailure = 4,
  kRegister = 10,
  kAssign = 11,
  kMembers = 12,
  kDone = 13,
  kLinked = 20,
  kReady = 21,
  kGo = 22,
  kGather = 23,
  kGathered = 24,
  kLoss = 25,
  kGoodbye = 26,
  kVotes = 27,
  kBeat = 28,
  kFetch = 30,
  kDescriptor = 31,
  kSubscribe = 40,
  kCatalog = 41,
  kNews = 42,
  kWant = 43,
  kVersion = 44,
  kGone = 45,
  kHave = 46,
};

struct FrameHeader {
  FrameType type = FrameType::kFailure;
  uint16_t sum = 0;
  uint32_t payload_bytes = 0;
};

struct Frame {
  FrameType type = FrameType::kFailure;
  Bytes payload;
};

// Returns the header and the payload in one piece.
Bytes encode_frame(FrameType type, ByteView payload);
// Decodes the first kFrameHeaderBytes of `bytes`. Returns FSCCL_ERR_PROTOCOL if they are no header
// of this protocol, or if the payload is longer than allowed.
Result<FrameHeader> decode_header(ByteView bytes, size_t max_payload_bytes);
// Returns FSCCL_ERR_PROTOCOL if the payload is not what was sent. Networks check the bytes that
// they carry, but some errors pass, and after the handshake nothing else would notice them.
Status check_payload(const FrameHeader& header, ByteView payload);

// The reason for which a job or a request failed, as it is sent to others.
inline constexpr size_t kMaxFailureTextBytes = 1024;
struct Failure {
  fsccl_status_t code = FSCCL_ERR_INTERNAL;
  int32_t rank = -1;  // the rank that it concerns; -1: none
  std::string text;
};
Bytes encode(const Failure& failure);
// Replaces characters that cannot be printed. An unknown code, or one that is not negative, becomes
// FSCCL_ERR_PROTOCOL.
Result<Failure> decode_failure(ByteView payload);
Status to_status(const Failure& failure);
Failure to_failure(const Status& status);

Status bad_payload(const char* what);

}  // namespace fsccl
