// The base class of nodes in tests and fuzzers.
#pragma once
#include "transports/mirror/node.h"

namespace fsccl::mirror {

// A node that moves nothing, and has no thread.
class StillNode : public Node {
 public:
  using Node::Node;
  Status connect(const uint8_t*, size_t) override { return success(); }
  bool takes_at_once() const override { return true; }
  size_t most_slot_bytes() const override { return 4096; }

 protected:
  void post(int, const Header&, Payload&&, bool) override {}
  void drop(int) noexcept override {}
  bool advance(int) override { return false; }
  bool flushed() override { return true; }
  bool arm() override { return true; }
  int events() const override { return -1; }
  void interrupt() override {}
};

}  // namespace fsccl::mirror
