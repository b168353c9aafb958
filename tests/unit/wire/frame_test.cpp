// Tests the encoding of frames and messages. They come back as they were, and no frame or message
// that is cut, lengthened or mutated makes a decoder read or accept more than its bounds allow.
#include "wire/frame.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "wire/messages.h"

namespace fsccl {
namespace {

constexpr int32_t kRanks = 5;

MemberRecord make_member(int32_t rank) {
  MemberRecord member;
  member.rank = rank;
  member.host = 0x1122334455667788;
  member.pid = 1000 + rank;
  member.uid = 7;
  member.start_time = 99;
  member.listener.fill(static_cast<uint8_t>(rank));
  member.via_unix = 1;
  member.ip[15] = 1;
  member.port = 29501;
  member.beat_port = 29502;
  return member;
}

std::vector<MemberRecord> make_members() {
  std::vector<MemberRecord> members;
  for (const int32_t rank : {3, 1, 4, 0, 2}) members.push_back(make_member(rank));
  return members;
}

TEST(Frame, HeaderIsAsDocumented) {
  const Bytes payload = {1, 2, 3};
  const Bytes frame = encode_frame(FrameType::kGo, payload);
  EXPECT_EQ(frame, (Bytes{'F', 'S', 'C', 'L', 22, 0, 0xb7, 0xa8, 3, 0, 0, 0, 1, 2, 3}));
  const Result<FrameHeader> header = decode_header(frame, 3);
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header.value().type, FrameType::kGo);
  EXPECT_EQ(header.value().payload_bytes, 3u);
}

TEST(Frame, RefusesForeignAndOversizedHeaders) {
  const Bytes frame = encode_frame(FrameType::kGo, Bytes(10));
  EXPECT_EQ(decode_header(frame, 9).status().code(), FSCCL_ERR_PROTOCOL);
  EXPECT_EQ(decode_header(ByteView(frame).first(11), 100).status().code(), FSCCL_ERR_PROTOCOL);
  for (const size_t at : {0u, 3u}) {
    Bytes broken = frame;
    broken[at] ^= 0x40;
    EXPECT_EQ(decode_header(broken, 100).status().code(), FSCCL_ERR_PROTOCOL) << at;
  }
}

TEST(Frame, NoticesEachWrongBit) {
  Bytes payload(100);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<uint8_t>(i * 37);
  const Bytes frame = encode_frame(FrameType::kMembers, payload);
  const auto good = [&](const Bytes& bytes) {
    const Result<FrameHeader> header = decode_header(bytes, 1000);
    // With another length other bytes would be taken for the payload.
    if (!header.ok() || header.value().payload_bytes != payload.size()) return false;
    return check_payload(header.value(), ByteView(bytes).subspan(kFrameHeaderBytes)).ok();
  };
  EXPECT_TRUE(good(frame));
  for (size_t bit = 0; bit < frame.size() * 8; ++bit) {
    Bytes wrong = frame;
    wrong[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_FALSE(good(wrong)) << bit;
  }
}

TEST(Frame, FailureKeepsItsStory) {
  const Failure failure{FSCCL_ERR_TIMEOUT, 3, "rank 3 is late"};
  const Result<Failure> decoded = decode_failure(encode(failure));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.value().code, FSCCL_ERR_TIMEOUT);
  EXPECT_EQ(decoded.value().rank, 3);
  EXPECT_EQ(decoded.value().text, "rank 3 is late");
}

TEST(Frame, FailureFromOutsideIsMadeHarmless) {
  const Result<Failure> decoded =
      decode_failure(ByteWriter().put(int32_t{5}).put(int32_t{-9}).put_raw("a\n\x1b", 3).take());
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.value().code, FSCCL_ERR_PROTOCOL);  // the message had a code of success
  EXPECT_EQ(decoded.value().rank, -1);
  EXPECT_EQ(decoded.value().text, "a??");
  EXPECT_FALSE(decode_failure(Bytes(8 + kMaxFailureTextBytes + 1)).ok());
  EXPECT_EQ(encode(Failure{FSCCL_ERR_LINK, 0, std::string(5000, 'x')}).size(),
            8 + kMaxFailureTextBytes);
}

TEST(Messages, RegisterAndAssign) {
  const Result<Register> registration = decode_register(encode(Register{make_member(2), 1234}));
  ASSERT_TRUE(registration.ok());
  EXPECT_EQ(registration.value().left_ms, 1234u);
  EXPECT_EQ(registration.value().member.rank, 2);
  EXPECT_EQ(registration.value().member.port, 29501);
  EXPECT_EQ(registration.value().member.start_time, 99u);
  const Result<Assign> assign = decode_assign(encode(Assign{77, 4, make_member(1)}), kRanks);
  ASSERT_TRUE(assign.ok());
  EXPECT_EQ(assign.value().job, 77u);
  EXPECT_EQ(assign.value().parent.listener, make_member(1).listener);
  EXPECT_FALSE(decode_assign(encode(Assign{77, 5, make_member(1)}), kRanks).ok());
  EXPECT_FALSE(decode_assign(encode(Assign{77, -1, make_member(1)}), kRanks).ok());
  EXPECT_FALSE(decode_assign(encode(Assign{77, 1, make_member(5)}), kRanks).ok());
}

TEST(Messages, MembersMustBeEachRankOnce) {
  std::vector<MemberRecord> members = make_members();
  const Result<std::vector<MemberRecord>> decoded = decode_members(encode_members(members), kRanks);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.value()[2].pid, 1004);
  EXPECT_FALSE(decode_members(encode_members(members), kRanks + 1).ok());
  members[1].rank = 3;
  EXPECT_FALSE(decode_members(encode_members(members), kRanks).ok());
  members[1].rank = 5;
  EXPECT_FALSE(decode_members(encode_members(members), kRanks).ok());
  members[1].rank = -1;
  EXPECT_FALSE(decode_members(encode_members(members), kRanks).ok());
}

TEST(Messages, Gather) {
  const Bytes a = {1, 2}, b = {3, 4};
  const Bytes bytes = encode(Gather{9, 2, {{4, a}, {0, b}}});
  const Result<Gather> gather = decode_gather(bytes, kRanks);
  ASSERT_TRUE(gather.ok());
  EXPECT_EQ(gather.value().sequence, 9u);
  ASSERT_EQ(gather.value().contributions.size(), 2u);
  EXPECT_EQ(gather.value().contributions[1].data[1], 4);
  EXPECT_FALSE(decode_gather(bytes, 4).ok());  // rank 4 is outside
  // The product of the count and the size overflows 64 bits.
  EXPECT_FALSE(
      decode_gather(ByteWriter().put(uint64_t{1}).put(uint64_t{1} << 62).put(uint32_t{4}).take(),
                    kRanks)
          .ok());
  EXPECT_FALSE(
      decode_gather(ByteWriter().put(uint64_t{1}).put(uint64_t{0}).put(uint32_t{0xffffffff}).take(),
                    kRanks)
          .ok());
}

TEST(Messages, LossesSilenceAndTags) {
  const Result<std::vector<LostRank>> losses =
      decode_losses(encode_losses({{3, true}, {1, false}, {2, false, true}}), kRanks);
  ASSERT_TRUE(losses.ok());
  ASSERT_EQ(losses.value().size(), 3u);
  EXPECT_TRUE(losses.value()[0].left && !losses.value()[0].host_lost);
  EXPECT_TRUE(!losses.value()[1].left && !losses.value()[1].host_lost);
  EXPECT_TRUE(!losses.value()[2].left && losses.value()[2].host_lost);
  EXPECT_FALSE(decode_losses(ByteWriter().put(int32_t{1}).put(uint8_t{3}).take(), kRanks).ok());
  EXPECT_FALSE(decode_losses(encode_losses({{5, true}}), kRanks).ok());
  EXPECT_FALSE(decode_losses(Bytes(5 * (kRanks + 1)), kRanks).ok());
  const Result<std::vector<Silent>> silent =
      decode_silent(encode_silent({{3, 500, true}, {0, 70'000, false}}), kRanks);
  ASSERT_TRUE(silent.ok());
  ASSERT_EQ(silent.value().size(), 2u);
  EXPECT_TRUE(silent.value()[0].stopped);
  EXPECT_EQ(silent.value()[1].silent_ms, 70'000u);
  EXPECT_FALSE(decode_silent(encode_silent({{5, 1, true}}), kRanks).ok());
  EXPECT_FALSE(decode_silent(Bytes(10 * (kRanks + 1)), kRanks).ok());
  EXPECT_EQ(decode_tag(encode_tag(0xabcdef)).value(), 0xabcdefu);
}

struct Decoder {
  const char* name;
  Bytes good;
  std::function<bool(ByteView)> decode;
};

std::vector<Decoder> decoders() {
  const Bytes data = {1, 2, 3, 4};
  return {
      {"register", encode(Register{make_member(2), 5}),
       [](ByteView bytes) { return decode_register(bytes).ok(); }},
      {"assign", encode(Assign{1, 2, make_member(1)}),
       [](ByteView bytes) { return decode_assign(bytes, kRanks).ok(); }},
      {"members", encode_members(make_members()),
       [](ByteView bytes) { return decode_members(bytes, kRanks).ok(); }},
      {"gather", encode(Gather{1, 4, {{0, data}, {1, data}}}),
       [](ByteView bytes) { return decode_gather(bytes, kRanks).ok(); }},
      {"losses", encode_losses({{3, true}, {1, false}}),
       [](ByteView bytes) { return decode_losses(bytes, kRanks).ok(); }},
      {"silent", encode_silent({{3, 1, true}, {1, 2, false}}),
       [](ByteView bytes) { return decode_silent(bytes, kRanks).ok(); }},
      {"tag", encode_tag(1), [](ByteView bytes) { return decode_tag(bytes).ok(); }},
  };
}

TEST(Messages, NoLengthButTheRightOneIsTaken) {
  for (const Decoder& decoder : decoders()) {
    ASSERT_TRUE(decoder.decode(decoder.good)) << decoder.name;
    for (size_t bytes = 0; bytes < decoder.good.size(); ++bytes) {
      const std::string name = decoder.name;
      const bool whole_entries =
          // A list that is cut between two entries is a shorter list, and valid.
          (name == "losses" && bytes % 5 == 0) || (name == "silent" && bytes % 10 == 0);
      EXPECT_EQ(decoder.decode(ByteView(decoder.good).first(bytes)), whole_entries)
          << decoder.name << " " << bytes;
    }
    Bytes longer = decoder.good;
    longer.push_back(0);
    EXPECT_FALSE(decoder.decode(longer)) << decoder.name;
  }
}

// No decoder may crash or read outside of its input. A sanitizer makes this test stricter.
TEST(Messages, MutatedInputIsDecodedOrRefused) {
  std::mt19937 random(20240917);
  for (const Decoder& decoder : decoders()) {
    for (int round = 0; round < 3000; ++round) {
      Bytes bytes = decoder.good;
      for (unsigned changes = 1 + random() % 4; changes > 0; --changes)
        bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
      if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
      decoder.decode(bytes);
      (void)decode_header(bytes, 100).ok();
      (void)decode_failure(bytes).ok();
      (void)decode_gathered(bytes).ok();
    }
  }
}

}  // namespace
}  // namespace fsccl
