// Closes a channel that no engine has come to own.
#pragma once
#include <memory>

#include "engine/engine.h"

namespace fsccl {

struct OpenedChannel {
  const fsccl_transport_ops_t* transport;
  const std::unique_ptr<Engine>& owner;
  void* channel;
  ~OpenedChannel() {
    if (!owner) transport->close(channel);
  }
};

}  // namespace fsccl
