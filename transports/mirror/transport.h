// A transport whose ranks mirror each other's slots. One that derives from it says whether it can
// work here, and how its nodes join.
#pragma once
#include "transports/transport.h"

namespace fsccl::mirror {

class Transport : public fsccl::Transport {
 public:
  using fsccl::Transport::Transport;
  Result<OpenedChannel> open(const ChannelRequest& request) const final;
};

}  // namespace fsccl::mirror
