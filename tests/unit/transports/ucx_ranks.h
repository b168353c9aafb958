// Two ranks of a job and a channel of both over UCX, in this process; a test may wrap UCX's
// functions.
#pragma once
#include <array>
#include <cstring>
#include <thread>

#include "channel_pair.h"
#include "transports/ucx/node.h"

namespace fsccl::ucx {

class UcxRanks : public mirror::ChannelPair {
 protected:
  // Returns this process's UCX as the test wraps it.
  static UcxLibrary& library() {
    static UcxLibrary wrapped;
    return wrapped;
  }
  static const UcxLibrary& real() { return *ucx_library(nullptr); }

  void SetUp() override {
    std::string why;
    if (!ucx_library(&why)) GTEST_SKIP() << why;
    library() = real();
    wrap(library());
    constexpr size_t kAddressBytes = 4096;
    std::vector<uint8_t> endpoints(static_cast<size_t>(ranks_) * kAddressBytes);
    for (int rank = 0; rank < 2; rank++) {
      Result<std::unique_ptr<Node>> made = Node::join(
          {sizeof(fsccl_transport_job_t), rank, ranks_, key_.data(), checksum_}, &library());
      ASSERT_TRUE(made.ok()) << made.status().text();
      nodes_[rank] = std::move(made.value());
      for (int at = rank; at < ranks_; at += 2)
        std::copy(nodes_[rank]->endpoint().begin(), nodes_[rank]->endpoint().end(),
                  endpoints.begin() + at * static_cast<int>(kAddressBytes));
    }
    joined();
    for (int rank = 0; rank < 2; rank++) {
      ASSERT_TRUE(nodes_[rank]->connect(endpoints.data(), kAddressBytes).ok());
      open(rank);
    }
  }
  void open(int rank, uint64_t meeting = 7) { ChannelPair::open(rank, *nodes_[rank], meeting); }
  void TearDown() override {
    for (auto& channel : channels_) channel.reset();
    std::thread other([this] { nodes_[1].reset(); });  // each leaves when the other does
    nodes_[0].reset();
    other.join();
  }
  virtual void wrap(UcxLibrary&) {}
  virtual void joined() {}  // called when the ranks have joined, and are not yet connected

  int checksum_ = 0, ranks_ = 2;  // further ranks have the endpoint addresses of these two
  std::array<uint8_t, 32> key_{};
  std::array<std::unique_ptr<Node>, 2> nodes_;
};

}  // namespace fsccl::ucx
