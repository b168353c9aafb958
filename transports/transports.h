// The transports between hosts' memory that there are; of GPUs', src/device chooses.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "fsccl/transport.h"

namespace fsccl {

struct KnownTransport {
  std::string_view name;
  const fsccl_transport_ops_t* ops = nullptr;  // null: not in this build, and `why`
  const char* why = "";
};
std::span<const KnownTransport> known_transports();

// Null, and *why, when it cannot be used on this machine.
const fsccl_transport_ops_t* usable_transport(std::string_view name, std::string* why);

}  // namespace fsccl
