// Two ranks of a job and a channel of both over UCX, in this process; a test may wrap UCX's functions.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>

#include "transports/mirror/channel.h"
#include "transports/ucx/node.h"

namespace fsccl::ucx {

class UcxRanks : public testing::Test {
 protected:
  // Of this process's UCX, as the test has it.
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
    constexpr size_t kCard = 4096;
    std::vector<uint8_t> cards(2 * kCard);
    for (int rank = 0; rank < 2; rank++) {
      Result<std::unique_ptr<Node>> made = Node::join({sizeof(fsccl_transport_job_t), rank, 2, key_.data(), checksum_}, &library());
      ASSERT_TRUE(made.ok()) << made.status().text();
      nodes_[rank] = std::move(made.value());
      std::copy(nodes_[rank]->card().begin(), nodes_[rank]->card().end(), cards.begin() + rank * kCard);
    }
    for (int rank = 0; rank < 2; rank++) {
      ASSERT_TRUE(nodes_[rank]->connect(cards.data(), kCard).ok());
      open(rank);
    }
    std::fill(sent_.begin(), sent_.end(), std::byte{1});
  }
  void open(int rank, uint64_t meeting = 7) {
    mirror::Channel::Place place;
    place.node = nodes_[rank].get();
    place.meeting = place.tag = meeting;
    place.rank = rank;
    place.members = {0, 1};
    place.describe = [](const fsccl_transport_line_t* line, char* text, size_t capacity) {
      text[fmt::format("operation {}", line->tick).copy(text, capacity - 1)] = '\0';
    };
    place.board = std::make_shared<mirror::Board>();
    Result<std::unique_ptr<mirror::Channel>> made = mirror::Channel::open(std::move(place));
    ASSERT_TRUE(made.ok()) << made.status().text();
    channels_[rank] = std::move(made.value());
  }
  void TearDown() override {
    for (auto& channel : channels_) channel.reset();
    std::thread other([this] { nodes_[1].reset(); });  // each leaves when the other does
    nodes_[0].reset();
    other.join();
  }
  virtual void wrap(UcxLibrary&) {}

  void send(uint32_t tick, size_t at, int from = 0) {
    channels_[from]->put(1 - from, at, sent_.data(), sent_.size());
    fsccl_transport_line_t line{};
    line.tick = tick;
    channels_[from]->signal(line);
  }
  void receive(uint32_t tick, int to = 1) {
    while (!channels_[to]->poll(1 - to, tick)) channels_[1 - to]->poll(to, 0x7fffffff);
  }
  const std::byte* mirror(size_t at, int at_rank = 1) const {
    size_t ring = 0, slot = 0;
    return channels_[at_rank]->slots(1 - at_rank, &ring, &slot) + at;
  }

  int checksum_ = 0;
  std::array<uint8_t, 32> key_{};
  std::array<std::unique_ptr<Node>, 2> nodes_;
  std::array<std::unique_ptr<mirror::Channel>, 2> channels_;
  std::array<std::byte, 65536> sent_{}, wanted_{};
};

}  // namespace fsccl::ucx
