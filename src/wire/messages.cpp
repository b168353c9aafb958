#include "wire/messages.h"

#include "wire/frame.h"
#include "wire/told.h"

namespace fsccl {

namespace {

constexpr size_t kSilentBytes = 4 + 4 + 1 + 1;

void put(ByteWriter& writer, const MemberRecord& member) {
  writer.put(member.rank).put(member.host).put(member.pid).put(member.uid).put(member.start_time);
  writer.put(member.listener)
      .put(member.via_unix)
      .put(member.ip)
      .put(member.port)
      .put(member.beat_port);
}

MemberRecord get_member(ByteReader& reader) {
  MemberRecord member;
  member.rank = reader.get<int32_t>();
  member.host = reader.get<uint64_t>();
  member.pid = reader.get<int32_t>();
  member.uid = reader.get<uint32_t>();
  member.start_time = reader.get<uint64_t>();
  reader.get(member.listener);
  member.via_unix = reader.get<uint8_t>();
  reader.get(member.ip);
  member.port = reader.get<uint16_t>();
  member.beat_port = reader.get<uint16_t>();
  return member;
}

bool in_range(int32_t rank, int32_t ranks) { return rank >= 0 && rank < ranks; }

}  // namespace

Bytes encode(const Register& message) {
  ByteWriter writer(kMemberRecordBytes + 8);
  put(writer, message.member);
  writer.put(message.left_ms);
  return writer.take();
}

Result<Register> decode_register(ByteView payload) {
  ByteReader reader(payload);
  Register message;
  message.member = get_member(reader);
  message.left_ms = reader.get<uint64_t>();
  if (!reader.finished()) return bad_payload("Register");
  return message;
}

Bytes encode(const Assign& message) {
  ByteWriter writer(12 + kMemberRecordBytes);
  writer.put(message.job).put(message.order);
  put(writer, message.parent);
  return writer.take();
}

Result<Assign> decode_assign(ByteView payload, int32_t ranks) {
  ByteReader reader(payload);
  Assign message;
  message.job = reader.get<uint64_t>();
  message.order = reader.get<int32_t>();
  message.parent = get_member(reader);
  const bool parent_good = message.order == 0 || in_range(message.parent.rank, ranks);
  if (!reader.finished() || !in_range(message.order, ranks) || !parent_good)
    return bad_payload("Assign");
  return message;
}

Bytes encode_members(const std::vector<MemberRecord>& members) {
  ByteWriter writer(members.size() * kMemberRecordBytes);
  for (const MemberRecord& member : members) put(writer, member);
  return writer.take();
}

Result<std::vector<MemberRecord>> decode_members(ByteView payload, int32_t ranks) {
  if (ranks < 0 || payload.size() != static_cast<size_t>(ranks) * kMemberRecordBytes)
    return bad_payload("Members");
  ByteReader reader(payload);
  std::vector<MemberRecord> members(static_cast<size_t>(ranks));
  std::vector<bool> seen(members.size());
  for (MemberRecord& member : members) {
    member = get_member(reader);
    if (!in_range(member.rank, ranks) || seen[static_cast<size_t>(member.rank)])
      return bad_payload("Members");
    seen[static_cast<size_t>(member.rank)] = true;
  }
  return members;
}

Bytes encode(const Gather& message) {
  ByteWriter writer(20 + message.contributions.size() * (4 + message.bytes));
  writer.put(message.sequence)
      .put(message.bytes)
      .put(static_cast<uint32_t>(message.contributions.size()));
  for (const Gather::Contribution& one : message.contributions)
    writer.put(one.rank).put_raw(one.data.data(), one.data.size());
  return writer.take();
}

Result<Gather> decode_gather(ByteView payload, int32_t ranks) {
  ByteReader reader(payload);
  Gather message;
  message.sequence = reader.get<uint64_t>();
  message.bytes = reader.get<uint64_t>();
  const auto count = reader.get<uint32_t>();
  if (!reader.good() || ranks < 0 || count > static_cast<uint32_t>(ranks) ||
      message.bytes > payload.size())
    return bad_payload("Gather");
  if (reader.left() != count * (4 + message.bytes)) return bad_payload("Gather");
  message.contributions.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    const auto rank = reader.get<int32_t>();
    if (!in_range(rank, ranks)) return bad_payload("Gather");
    message.contributions.push_back({rank, reader.view(message.bytes)});
  }
  if (!reader.finished()) return bad_payload("Gather");
  return message;
}

Bytes encode(const Gathered& message) {
  ByteWriter writer(8 + message.data.size());
  writer.put(message.sequence).put_raw(message.data.data(), message.data.size());
  return writer.take();
}

Result<Gathered> decode_gathered(ByteView payload) {
  ByteReader reader(payload);
  Gathered message;
  message.sequence = reader.get<uint64_t>();
  if (!reader.good()) return bad_payload("Gathered");
  message.data = reader.rest();
  return message;
}

// How a rank was lost, as the wire has it.
constexpr uint8_t kDied = 0, kLeft = 1, kHostLost = 2;

Bytes encode_losses(const std::vector<LostRank>& losses) {
  ByteWriter writer(losses.size() * 5);
  for (const LostRank& lost : losses)
    writer.put(lost.rank).put(lost.left ? kLeft : lost.host_lost ? kHostLost : kDied);
  return writer.take();
}

Result<std::vector<LostRank>> decode_losses(ByteView payload, int32_t ranks) {
  ByteReader reader(payload);
  std::vector<LostRank> losses;
  if (ranks < 0 || payload.size() > static_cast<size_t>(ranks) * 5) return bad_payload("Loss");
  while (reader.left() > 0 && reader.good()) {
    LostRank lost;
    lost.rank = reader.get<int32_t>();
    const auto how = reader.get<uint8_t>();
    lost.left = how == kLeft;
    lost.host_lost = how == kHostLost;
    if (!in_range(lost.rank, ranks) || how > kHostLost) return bad_payload("Loss");
    losses.push_back(lost);
  }
  if (!reader.finished()) return bad_payload("Loss");
  return losses;
}

Bytes encode_votes(const std::vector<Vote>& votes) {
  ByteWriter writer;
  for (const Vote& vote : votes) {
    writer.put(vote.meeting).put(vote.rank).put(static_cast<uint8_t>(vote.decided));
    writer.put(static_cast<uint32_t>(vote.failed.size()));
    for (const int32_t rank : vote.failed) writer.put(rank);
    const Vote::Refusal& refusal = vote.refusal;
    writer.put(refusal.code).put(refusal.rank).put(static_cast<uint32_t>(refusal.text.size()));
    writer.put_raw(refusal.text.data(), refusal.text.size());
  }
  return writer.take();
}

namespace {

bool read_refusal(ByteReader& reader, int32_t ranks, Vote::Refusal* refusal) {
  refusal->code = reader.get<int32_t>();
  refusal->rank = reader.get<int32_t>();
  const ByteView text = reader.view(reader.get<uint32_t>());
  refusal->text.assign(text.begin(), text.end());
  if (!reader.good() || told_text(refusal->text) != refusal->text) return false;
  if (!refusal->code) return refusal->rank == -1 && text.empty();
  return told_code(refusal->code) == refusal->code && in_range(refusal->rank, ranks);
}

}  // namespace

Result<std::vector<Vote>> decode_votes(ByteView payload, int32_t ranks) {
  ByteReader reader(payload);
  std::vector<Vote> votes;
  while (reader.left() > 0) {
    Vote vote;
    vote.meeting = reader.get<uint64_t>();
    vote.rank = reader.get<int32_t>();
    const auto decided = reader.get<uint8_t>();
    const auto count = reader.get<uint32_t>();
    if (!reader.good() || !in_range(vote.rank, ranks) || decided > 1 ||
        count > reader.left() / sizeof(int32_t))
      return bad_payload("Votes");
    vote.decided = decided == 1;
    for (uint32_t i = 0; i < count; ++i) {
      const auto rank = reader.get<int32_t>();
      if (!in_range(rank, ranks) || (i > 0 && rank <= vote.failed.back()))
        return bad_payload("Votes");
      vote.failed.push_back(rank);
    }
    if (!read_refusal(reader, ranks, &vote.refusal)) return bad_payload("Votes");
    votes.push_back(std::move(vote));
  }
  return votes;
}

Bytes encode_silent(const std::vector<Silent>& silent) {
  ByteWriter writer(silent.size() * kSilentBytes);
  for (const Silent& one : silent)
    writer.put(one.rank).put(one.silent_ms).put(static_cast<uint8_t>(one.stopped)).put(one.hops);
  return writer.take();
}

Result<std::vector<Silent>> decode_silent(ByteView payload, int32_t ranks) {
  ByteReader reader(payload);
  std::vector<Silent> silent;
  if (ranks < 0 || payload.size() > static_cast<size_t>(ranks) * kSilentBytes)
    return bad_payload("Beat");
  while (reader.left() > 0 && reader.good()) {
    Silent one;
    one.rank = reader.get<int32_t>();
    one.silent_ms = reader.get<uint32_t>();
    const auto stopped = reader.get<uint8_t>();
    one.stopped = stopped == 1;
    one.hops = reader.get<uint8_t>();
    if (!in_range(one.rank, ranks) || stopped > 1) return bad_payload("Beat");
    silent.push_back(one);
  }
  if (!reader.finished()) return bad_payload("Beat");
  return silent;
}

Bytes encode_tag(uint64_t tag) { return ByteWriter(8).put(tag).take(); }

Result<uint64_t> decode_tag(ByteView payload) {
  ByteReader reader(payload);
  const auto tag = reader.get<uint64_t>();
  if (!reader.finished()) return bad_payload("Fetch");
  return tag;
}

}  // namespace fsccl
