#include "transports/tcp/tcp.h"

#include "transports/mirror/transport.h"
#include "transports/tcp/node.h"

namespace fsccl {
namespace {

class TcpTransport final : public mirror::Transport {
 public:
  TcpTransport() : mirror::Transport("tcp") {}
  Status available() const override { return tcp::own_endpoint(1).take_status(); }
  Result<std::unique_ptr<TransportNode>> join(const fsccl_transport_job_t& job) const override {
    FSCCL_ASSIGN(std::unique_ptr<TransportNode> node, tcp::Node::join(job));
    return node;
  }
};

}  // namespace

const Transport* tcp_transport() {
  static const TcpTransport transport;
  return &transport;
}

}  // namespace fsccl
