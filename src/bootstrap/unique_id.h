// The content of a unique id: the job's number and secret, and the addresses of its rendezvous.
#pragma once
#include <vector>

#include "base/socket.h"
#include "base/status.h"
#include "bootstrap/join.h"
#include "wire/authentication.h"
#include "wire/messages.h"

namespace fsccl {

inline constexpr size_t kMaxIdAddresses = 8;

struct UniqueId {
  uint64_t job = 0;
  SecretKey secret;
  ListenerName listener = {};
  uint64_t host = 0;
  int32_t pid = 0;
  uint16_t port = 0;  // 0: no TCP
  std::vector<IpAddress> ips;
};

fsccl_unique_id_t encode(const UniqueId& id);
// Fails with FSCCL_ERR_INVALID_ARGUMENT if these are not the bytes of an id, and with
// FSCCL_ERR_VERSION if they are an id in the form of another version.
Result<UniqueId> decode_unique_id(const fsccl_unique_id_t& bytes);

// Returns how a process of host `host` reaches the rendezvous of this id. `tcp` says whether the
// process may use TCP.
Result<RendezvousPoint> meeting_place(const UniqueId& id, uint64_t host, bool tcp,
                                      const std::string& host_id);

}  // namespace fsccl
