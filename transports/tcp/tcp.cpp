#include "transports/tcp/tcp.h"

#include "base/config.h"
#include "transports/mirror/table.h"
#include "transports/tcp/node.h"

namespace fsccl {
namespace {

int available(char* why, size_t capacity) {
  const Status status = tcp::own_endpoint(1).status().clone();
  if (status.ok()) return 1;
  report(status, why, capacity);
  return 0;
}

Result<std::unique_ptr<mirror::Node>> join(const fsccl_transport_job_t& job) {
  FSCCL_ASSIGN(std::unique_ptr<mirror::Node> node, tcp::Node::join(job));
  return node;
}

}  // namespace

const fsccl_transport_ops_t* tcp_transport() {
  static const fsccl_transport_ops_t ops = mirror::table<join>("tcp", available);
  return &ops;
}

}  // namespace fsccl
