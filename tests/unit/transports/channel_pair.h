// A channel between hosts with both of its ranks in this process. Each test gives the nodes of the
// ranks.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "transports/mirror/channel.h"

namespace fsccl::mirror {

class ChannelPair : public ::testing::Test {
 protected:
  ChannelPair() { sent_.fill(std::byte{1}); }

  void open(int rank, Node& node, uint64_t meeting = 7) {
    Channel::Setup setup;
    setup.node = &node;
    setup.meeting = setup.tag = meeting;
    setup.rank = rank;
    setup.members = {0, 1};
    setup.describe = [](const fsccl_transport_line_t* line, char* text, size_t capacity) {
      text[fmt::format("operation {}", line->tick).copy(text, capacity - 1)] = '\0';
    };
    setup.board = std::make_shared<Board>();
    Result<std::unique_ptr<Channel>> made = Channel::open(std::move(setup));
    ASSERT_TRUE(made.ok()) << made.status().text();
    channels_[rank] = std::move(made.value());
  }
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

  std::array<std::unique_ptr<Channel>, 2> channels_;
  std::array<std::byte, 65536> sent_{}, wanted_{};
};

}  // namespace fsccl::mirror
