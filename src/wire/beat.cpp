#include "wire/beat.h"

#include <algorithm>

namespace fsccl {

namespace {

constexpr uint32_t kBeatMagic = 0x62435346;
constexpr size_t kSaidBytes = kBeatBytes - sizeof(Digest);
constexpr std::string_view kKeyLabel = "fsccl beat key", kLabel = "fsccl beat";

Bytes name_of(uint64_t job, const MemberRecord& member) {
  ByteWriter writer;
  writer.put(job).put(member.rank).put(member.listener);
  return writer.take();
}

}  // namespace

SecretKey beat_key(const SecretKey& job_key, uint64_t job, const MemberRecord& from,
                   const MemberRecord& to) {
  return SecretKey(authenticate(job_key, kKeyLabel, name_of(job, from), name_of(job, to)));
}

BeatDatagram seal_beat(const SecretKey& key, int32_t rank, uint64_t count) {
  ByteWriter writer(kBeatBytes);
  writer.put(kBeatMagic).put(rank).put(count);
  writer.put(authenticate(key, kLabel, writer.bytes()));
  BeatDatagram datagram;
  std::copy_n(writer.bytes().begin(), kBeatBytes, datagram.begin());
  return datagram;
}

int32_t claimed_rank(ByteView datagram) {
  if (datagram.size() != kBeatBytes) return -1;
  ByteReader reader(datagram);
  return reader.get<uint32_t>() == kBeatMagic ? std::max(reader.get<int32_t>(), -1) : -1;
}

uint64_t open_beat(const SecretKey& key, ByteView datagram, uint64_t last) {
  if (claimed_rank(datagram) < 0) return 0;
  const auto count = ByteReader(datagram.subspan(8)).get<uint64_t>();
  if (count <= last) return 0;
  Digest proof;
  ByteReader(datagram.subspan(kSaidBytes)).get(proof);
  return equal_constant_time(proof, authenticate(key, kLabel, datagram.first(kSaidBytes))) ? count
                                                                                           : 0;
}

}  // namespace fsccl
