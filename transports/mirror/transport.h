// A transport whose ranks mirror each other's slots. A class that derives from it says whether the
// transport can work on this machine, and makes its nodes.
#pragma once
#include "transports/transport.h"

namespace fsccl::mirror {

class Transport : public fsccl::Transport {
 public:
  using fsccl::Transport::Transport;
  Result<OpenedChannel> open(const ChannelRequest& request) const final;
};

}  // namespace fsccl::mirror
