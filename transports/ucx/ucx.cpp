#include "transports/ucx/ucx.h"

#include "transports/mirror/table.h"
#include "transports/ucx/node.h"

namespace fsccl {
namespace {

int available(char* why, size_t capacity) {
  std::string problem;
  if (ucx::ucx_library(&problem)) return 1;
  report(fail(FSCCL_ERR_NOT_AVAILABLE, "{}", problem), why, capacity);
  return 0;
}

Result<std::unique_ptr<mirror::Node>> join(const fsccl_transport_job_t& job) {
  FSCCL_ASSIGN(std::unique_ptr<mirror::Node> node, ucx::Node::join(job));
  return node;
}

}  // namespace

const fsccl_transport_ops_t* ucx_transport() {
  static const fsccl_transport_ops_t ops = [] {
    fsccl_transport_ops_t made = mirror::table<join>("ucx", available);
    made.keeps_pages = 1;  // it registers what it moves, and keeps that in a cache
    return made;
  }();
  return &ops;
}

}  // namespace fsccl
