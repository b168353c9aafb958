#include "transports/mirror/transport.h"

#include "transports/mirror/channel.h"

namespace fsccl::mirror {

Result<OpenedChannel> Transport::open(const ChannelRequest& request) const {
  Channel::Setup place;
  place.node = static_cast<Node*>(request.node);
  place.meeting = request.meeting;
  place.tag = request.tag;
  place.rank = request.rank;
  place.members.assign(request.members.begin(), request.members.end());
  place.slot_bytes = request.slot_bytes;
  place.known_as.assign(request.known_as.begin(), request.known_as.end());
  place.describe = request.describe;
  place.board = std::make_shared<Board>();
  FSCCL_ASSIGN(std::unique_ptr<Channel> channel, Channel::open(std::move(place)));
  return OpenedChannel{std::move(channel)};
}

}  // namespace fsccl::mirror
