#include "transports/ucx/ucx.h"

#include "transports/mirror/transport.h"
#include "transports/ucx/node.h"

namespace fsccl {
namespace {

class UcxTransport final : public mirror::Transport {
 public:
  // The `true` says that UCX registers the memory that it moves, and caches the registrations.
  UcxTransport() : mirror::Transport("ucx", true) {}
  Status available() const override {
    std::string problem;
    if (ucx::ucx_library(&problem)) return success();
    return fail(FSCCL_ERR_NOT_AVAILABLE, "{}", problem);
  }
  Result<std::unique_ptr<TransportNode>> join(const fsccl_transport_job_t& job) const override {
    FSCCL_ASSIGN(std::unique_ptr<TransportNode> node, ucx::Node::join(job));
    return node;
  }
};

}  // namespace

const Transport* ucx_transport() {
  static const UcxTransport transport;
  return &transport;
}

}  // namespace fsccl
