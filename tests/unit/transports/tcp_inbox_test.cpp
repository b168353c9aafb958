// Tests how the bytes that come from a socket, in pieces of any size, are divided into messages.
#include "transports/tcp/inbox.h"

#include <gmock/gmock.h>

#include <cstring>
#include <vector>

namespace fsccl::tcp {
namespace {

using mirror::MessageKind;

// A reader that keeps all messages.
class Kept : public Inbox::Reader {
 public:
  std::byte* begin(const Head& head) override {
    begun++;
    if (unwanted) return nullptr;
    place.assign(head.bytes + 1, std::byte{0xee});
    return place.data();
  }
  std::byte* go_on(const Head&, std::byte* at) override { return moved ? moved : at; }
  bool end(const Head& head, std::byte* at) override {
    ats.push_back(head.header.at);
    bytes.emplace_back(at ? std::vector<std::byte>(at, at + head.bytes) : std::vector<std::byte>());
    EXPECT_TRUE(place.empty() || place.back() == std::byte{0xee}) << "written beyond the message";
    return !last;
  }
  void spoilt(const Head&) override { bad++; }

  int begun = 0, bad = 0;
  bool unwanted = false, last = false;
  std::byte* moved = nullptr;
  std::vector<std::byte> place;
  std::vector<uint64_t> ats;
  std::vector<std::vector<std::byte>> bytes;
};

std::vector<std::byte> payload(size_t bytes) {
  std::vector<std::byte> made(bytes);
  for (size_t i = 0; i < bytes; i++) made[i] = static_cast<std::byte>(i * 7 + bytes);
  return made;
}

void append(std::vector<std::byte>& stream, uint64_t at, size_t bytes, bool checksum = false) {
  mirror::Header header{};
  header.kind = MessageKind::bytes;
  header.at = at;
  const Head head = make_head(header, bytes, checksum);
  const auto* const front = reinterpret_cast<const std::byte*>(&head);
  stream.insert(stream.end(), front, front + sizeof head);
  const std::vector<std::byte> body = payload(bytes);
  stream.insert(stream.end(), body.begin(), body.end());
}

// Feeds the inbox like a socket from which `most` bytes can be read each time.
bool feed(Inbox& inbox, const std::vector<std::byte>& stream, size_t most) {
  for (size_t at = 0; at < stream.size();) {
    std::array<iovec, 2> places;
    const int count = inbox.room(places);
    size_t now = 0;
    for (int i = 0; i < count; i++) {
      const size_t piece =
          std::min({places[static_cast<size_t>(i)].iov_len, most - now, stream.size() - at});
      std::memcpy(places[static_cast<size_t>(i)].iov_base, stream.data() + at, piece);
      now += piece;
      at += piece;
    }
    EXPECT_GT(now, 0u) << "no room";
    if (!inbox.took(now)) return false;
  }
  return true;
}

TEST(TcpInboxTest, MessagesAreTheSameInWhateverPiecesTheyCome) {
  std::vector<std::byte> stream;
  const std::vector<size_t> sizes{0, 1, 64, 0, 5000, 8192, 100000, 3, 70000, 0};
  for (size_t i = 0; i < sizes.size(); i++) append(stream, i, sizes[i]);
  for (const size_t most : {size_t{1}, size_t{7}, sizeof(Head) - 1, sizeof(Head), sizeof(Head) + 1,
                            size_t{1000}, size_t{65536}, stream.size()}) {
    Kept kept;
    Inbox inbox(kept, false);
    ASSERT_TRUE(feed(inbox, stream, most)) << most;
    ASSERT_EQ(kept.bytes.size(), sizes.size()) << most;
    for (size_t i = 0; i < sizes.size(); i++) {
      EXPECT_EQ(kept.ats[i], i);
      EXPECT_EQ(kept.bytes[i], payload(sizes[i])) << most;
    }
  }
}

TEST(TcpInboxTest, HalfAMessageIsNone) {
  std::vector<std::byte> stream;
  append(stream, 1, 1000);
  stream.resize(stream.size() - 1);
  Kept kept;
  Inbox inbox(kept, false);
  EXPECT_TRUE(feed(inbox, stream, 500));
  EXPECT_EQ(kept.begun, 1);
  EXPECT_TRUE(kept.bytes.empty());
}

TEST(TcpInboxTest, WhatNobodyWantsIsPassedOver) {
  std::vector<std::byte> stream;
  append(stream, 1, 300000);
  Kept kept;
  kept.unwanted = true;
  Inbox inbox(kept, false);
  EXPECT_TRUE(feed(inbox, stream, 4000));
  kept.unwanted = false;
  std::vector<std::byte> next;
  append(next, 2, 50);
  EXPECT_TRUE(feed(inbox, next, 4000));
  EXPECT_EQ(kept.bytes.back(), payload(50));
}

// The reader can say in the middle of a message that its memory may not be written to any more. It
// does so if its channel has failed, for example.
TEST(TcpInboxTest, TheRestGoesElsewhereOnceItsReaderSaysSo) {
  std::vector<std::byte> stream, other(100000);
  append(stream, 1, 100000);
  const std::vector<std::byte> first(stream.begin(), stream.begin() + 50000),
      second(stream.begin() + 50000, stream.end());
  for (const size_t most : {size_t{1000}, size_t{65536}}) {
    Kept kept;
    Inbox inbox(kept, false);
    ASSERT_TRUE(feed(inbox, first, most));
    const std::vector<std::byte> before = kept.place;
    kept.moved = other.data();
    ASSERT_TRUE(feed(inbox, second, most));
    EXPECT_EQ(kept.place, before);
    const std::vector<std::byte> meant = payload(100000);
    EXPECT_EQ(std::memcmp(&other[60000], &meant[60000], 40000), 0);
  }
}

TEST(TcpInboxTest, AHeadThatCannotBeEndsIt) {
  const auto refused = [](auto change) {
    std::vector<std::byte> stream;
    append(stream, 1, 10);
    Head head;
    std::memcpy(&head, stream.data(), sizeof head);
    change(head);
    std::memcpy(stream.data(), &head, sizeof head);
    Kept kept;
    Inbox inbox(kept, false);
    return !feed(inbox, stream, stream.size()) && kept.bad == 1 && kept.begun == 0;
  };
  EXPECT_TRUE(refused([](Head& head) { head.seal ^= 1; }));
  EXPECT_TRUE(refused([](Head& head) { head.bytes = (1u << 30) + 1; }));
  EXPECT_TRUE(refused([](Head& head) { head.header.kind = static_cast<MessageKind>(99); }));
  // A message of this kind has no bytes.
  EXPECT_TRUE(refused([](Head& head) { head.header.kind = MessageKind::left; }));
  EXPECT_TRUE(refused([](Head& head) { head.header.kind = MessageKind::failure; }));  // too short
  EXPECT_FALSE(refused([](Head&) {}));
}

TEST(TcpInboxTest, WithChecksumsAnyBitOfAHeadCounts) {
  std::vector<std::byte> stream;
  append(stream, 1, 10, true);
  for (size_t bit = 0; bit < sizeof(Head) * 8; bit++) {
    std::vector<std::byte> spoilt = stream;
    spoilt[bit / 8] ^= std::byte{1} << bit % 8;
    Kept kept;
    Inbox inbox(kept, true);
    EXPECT_FALSE(feed(inbox, spoilt, spoilt.size())) << bit;
    EXPECT_EQ(kept.bad, 1);
  }
  Kept kept;
  Inbox inbox(kept, true);
  EXPECT_TRUE(feed(inbox, stream, stream.size()));
}

TEST(TcpInboxTest, NothingIsReadBehindTheLastMessage) {
  std::vector<std::byte> stream;
  append(stream, 1, 10);
  append(stream, 2, 10);
  Kept kept;
  kept.last = true;
  Inbox inbox(kept, false);
  EXPECT_FALSE(feed(inbox, stream, stream.size()));
  EXPECT_EQ(kept.bytes.size(), 1u);
}

}  // namespace
}  // namespace fsccl::tcp
