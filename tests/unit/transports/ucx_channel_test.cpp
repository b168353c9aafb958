// That messages over UCX which change on the way are noticed.
#include "transports/mirror/channel.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <cstring>
#include <optional>
#include <thread>

#include "transports/ucx/node.h"

namespace fsccl::ucx {
namespace {

using mirror::Board;
using mirror::Channel;

// What becomes of messages with bytes on their way out.
enum class Spoils { bytes, header };
std::optional<Spoils> spoils;

// Two ranks of a job and a channel of both, in this process.
class UcxChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!ucx_library(&why)) GTEST_SKIP() << why;
    static UcxLibrary library;
    library = *ucx_library(&why);
    library.am_send_nbx = [](ucp_ep_h endpoint, unsigned id, const void* header, size_t header_bytes, const void* data,
                             size_t bytes, const ucp_request_param_t* param) {
      if (spoils && bytes) static_cast<uint8_t*>(const_cast<void*>(*spoils == Spoils::bytes ? data : header))[100] ^= 1;
      return ucx_library(nullptr)->am_send_nbx(endpoint, id, header, header_bytes, data, bytes, param);
    };
    constexpr size_t kCard = 4096;
    std::vector<uint8_t> cards(2 * kCard);
    for (int rank = 0; rank < 2; rank++) {
      Result<std::unique_ptr<Node>> made = Node::join({sizeof(fsccl_transport_job_t), rank, 2, key_.data(), checksum_}, &library);
      ASSERT_TRUE(made.ok()) << made.status().text();
      nodes_[rank] = std::move(made.value());
      std::copy(nodes_[rank]->card().begin(), nodes_[rank]->card().end(), cards.begin() + rank * kCard);
    }
    for (int rank = 0; rank < 2; rank++) {
      ASSERT_TRUE(nodes_[rank]->connect(cards.data(), kCard).ok());
      Channel::Place place;
      place.node = nodes_[rank].get();
      place.meeting = place.tag = 7;
      place.rank = rank;
      place.members = {0, 1};
      place.describe = [](const fsccl_transport_line_t* line, char* text, size_t capacity) {
        text[fmt::format("operation {}", line->tick).copy(text, capacity - 1)] = '\0';
      };
      place.board = std::make_shared<Board>();
      Result<std::unique_ptr<Channel>> made = Channel::open(std::move(place));
      ASSERT_TRUE(made.ok()) << made.status().text();
      channels_[rank] = std::move(made.value());
    }
    std::fill(sent_.begin(), sent_.end(), std::byte{1});
  }
  void TearDown() override {
    spoils.reset();
    for (auto& channel : channels_) channel.reset();
    std::thread other([this] { nodes_[1].reset(); });  // each leaves when the other does
    nodes_[0].reset();
    other.join();
  }

  void send(uint32_t tick, size_t at) {
    channels_[0]->put(1, at, sent_.data(), sent_.size());
    fsccl_transport_line_t line{};
    line.tick = tick;
    channels_[0]->signal(line);
  }
  void receive(uint32_t tick) {
    while (!channels_[1]->poll(0, tick)) channels_[0]->poll(1, tick);
  }
  const std::byte* mirror(size_t at) const {
    size_t ring = 0, slot = 0;
    return channels_[1]->slots(0, &ring, &slot) + at;
  }

  // What comes fails the channel, and both ranks learn why.
  std::string receive_spoiled(uint32_t tick, Spoils what) {
    spoils = what;
    send(tick, 4096);
    spoils.reset();
    const fsccl_transport_failure_t *here = nullptr, *there = nullptr;
    while (!here || !there) {
      here = channels_[1]->failure();
      there = channels_[0]->failure();
      EXPECT_FALSE(channels_[1]->poll(0, tick));
      if (channels_[1]->poll(0, tick)) return "";
    }
    EXPECT_EQ(here->code, FSCCL_ERR_PROTOCOL);
    EXPECT_EQ(here->rank, 1);
    EXPECT_EQ(here->peer, 0);
    EXPECT_STREQ(here->text, there->text);
    return here->text;
  }

  int checksum_ = 0;
  std::array<uint8_t, 32> key_{};
  std::array<std::unique_ptr<Node>, 2> nodes_;
  std::array<std::unique_ptr<Channel>, 2> channels_;
  std::array<std::byte, 65536> sent_{}, wanted_{};
};

class UcxChecksumTest : public UcxChannelTest {
 protected:
  UcxChecksumTest() { checksum_ = 1; }
};

TEST_F(UcxChecksumTest, BytesThatChangeOnTheWayEndTheChannel) {
  const std::string text = receive_spoiled(3, Spoils::bytes);
  EXPECT_THAT(text, testing::HasSubstr("rank 1 got 65536 bytes of operation 3 from rank 0 over ucx"));
  EXPECT_THAT(text, testing::ContainsRegex("CRC32C is 0x[0-9a-f]{8}, 0x[0-9a-f]{8} was meant"));
}

TEST_F(UcxChecksumTest, LikewiseWhereTheyAreWantedElsewhere) {
  channels_[1]->expect(0, 1, 4096, wanted_.data(), wanted_.size());
  EXPECT_THAT(receive_spoiled(1, Spoils::bytes), testing::HasSubstr("65536 bytes of operation 1 from rank 0"));
}

TEST_F(UcxChecksumTest, LikewiseALine) {
  EXPECT_THAT(receive_spoiled(1, Spoils::header), testing::HasSubstr("rank 1 got 104 bytes from rank 0 over ucx that changed"));
}

// So the messages of these tests do change.
TEST_F(UcxChannelTest, WithoutSumsNobodyNotices) {
  spoils = Spoils::bytes;
  send(1, 0);
  receive(1);
  EXPECT_EQ(mirror(0)[100], std::byte{0});
}

}  // namespace
}  // namespace fsccl::ucx
