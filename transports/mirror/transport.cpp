#include "transports/mirror/transport.h"

#include "transports/mirror/channel.h"

namespace fsccl::mirror {

Result<OpenedChannel> Transport::open(const ChannelRequest& request) const {
  Channel::Setup setup;
  setup.node = static_cast<Node*>(request.node);
  setup.meeting = request.meeting;
  setup.tag = request.tag;
  setup.rank = request.rank;
  setup.members.assign(request.members.begin(), request.members.end());
  setup.slot_bytes = request.slot_bytes;
  setup.known_as.assign(request.known_as.begin(), request.known_as.end());
  setup.describe = request.describe;
  setup.board = std::make_shared<Board>();
  FSCCL_ASSIGN(std::unique_ptr<Channel> channel, Channel::open(std::move(setup)));
  return OpenedChannel{std::move(channel)};
}

}  // namespace fsccl::mirror
