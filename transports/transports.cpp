#include "transports/transports.h"

#include <algorithm>

#include "transports/shm/shm.h"
#if FSCCL_WITH_UCX
#include "transports/ucx/ucx.h"
#endif

namespace fsccl {

std::span<const KnownTransport> known_transports() {
  static const KnownTransport known[] = {
    {"shm", shm_transport()},
#if FSCCL_WITH_UCX
    {"ucx", ucx_transport()},
#else
    {"ucx", nullptr, "this library was built without the headers of UCX 1.13 or later (Debian: libucx-dev)"},
#endif
  };
  return known;
}

const fsccl_transport_ops_t* usable_transport(std::string_view name, std::string* why) {
  const auto known = known_transports();
  const auto found = std::find_if(known.begin(), known.end(), [&](const KnownTransport& one) { return one.name == name; });
  if (found == known.end() || !found->ops) {
    *why = found == known.end() ? "there is no transport of this name" : found->why;
    return nullptr;
  }
  char text[512] = "";
  if (found->ops->available(text, sizeof text)) return found->ops;
  *why = text;
  return nullptr;
}

}  // namespace fsccl
