// Tests that messages over UCX which change on the way are noticed.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <optional>

#include "transports/transports.h"
#include "ucx_ranks.h"

namespace fsccl::ucx {
namespace {

// The part of outgoing messages that a test changes.
enum class Spoils { bytes, header };
std::optional<Spoils> spoils;

class UcxChannelTest : public UcxRanks {
 protected:
  void wrap(UcxLibrary& library) override {
    library.am_send_nbx = [](ucp_ep_h endpoint, unsigned id, const void* header,
                             size_t header_bytes, const void* data, size_t bytes,
                             const ucp_request_param_t* param) {
      if (spoils && bytes)
        static_cast<uint8_t*>(const_cast<void*>(*spoils == Spoils::bytes ? data : header))[100] ^=
            1;
      return real().am_send_nbx(endpoint, id, header, header_bytes, data, bytes, param);
    };
  }
  void TearDown() override {
    spoils.reset();
    UcxRanks::TearDown();
  }

  // A spoiled message fails the channel, and both ranks learn why.
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
};

class UcxChecksumTest : public UcxChannelTest {
 protected:
  UcxChecksumTest() { checksum_ = 1; }
};

TEST_F(UcxChecksumTest, BytesThatChangeOnTheWayEndTheChannel) {
  const std::string text = receive_spoiled(3, Spoils::bytes);
  EXPECT_THAT(text,
              ::testing::HasSubstr("rank 1 got 65536 bytes of operation 3 from rank 0 over ucx"));
  EXPECT_THAT(text, ::testing::ContainsRegex("CRC32C is 0x[0-9a-f]{8}, 0x[0-9a-f]{8} was meant"));
}

TEST_F(UcxChecksumTest, LikewiseWhereTheyAreWantedElsewhere) {
  channels_[1]->expect(0, 1, 4096, wanted_.data(), wanted_.size());
  EXPECT_THAT(receive_spoiled(1, Spoils::bytes),
              ::testing::HasSubstr("65536 bytes of operation 1 from rank 0"));
}

TEST_F(UcxChecksumTest, LikewiseALine) {
  EXPECT_THAT(receive_spoiled(1, Spoils::header),
              ::testing::HasSubstr("rank 1 got 104 bytes from rank 0 over ucx that changed"));
}

// Over sockets UCX ends a process that answers a put or a get of a peer that has been killed.
TEST_F(UcxChannelTest, PutsAndGetsNeedRdma) {
  EXPECT_STREQ(channels_[0]->path(0), "am");
  EXPECT_EQ(channels_[0]->path(1) != nullptr, has_rdma());
}

// Without checksums no rank notices the change. This shows that the tests do change messages.
TEST_F(UcxChannelTest, WithoutSumsNobodyNotices) {
  spoils = Spoils::bytes;
  send(1, 0);
  receive(1);
  EXPECT_EQ(mirror(0)[100], std::byte{0});
}

// A message of a rank that joined earlier waits until the receiver's channel is connected and can
// check it.
class UcxConnectTest : public UcxRanks {
 protected:
  static inline std::atomic<int> looks{0};
  void wrap(UcxLibrary& library) override {
    looks = 0;
    library.worker_progress = [](ucp_worker_h worker) {
      looks++;
      return real().worker_progress(worker);
    };
  }
  void joined() override {
    std::this_thread::sleep_for(std::chrono::milliseconds(250));  // a node's thread looks every 100
    EXPECT_EQ(looks, 0);
  }
};

TEST_F(UcxConnectTest, NobodyTakesMessagesBefore) {
  send(1, 0);
  receive(1);
  EXPECT_GT(looks, 0);
}

}  // namespace
}  // namespace fsccl::ucx
