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
// FSCCL_ERR_INVALID_ARGUMENT: not the bytes that fsccl_unique_id_create() gave.
Result<UniqueId> decode_unique_id(const fsccl_unique_id_t& bytes);

// How a process of host `host` reaches the ranks of this id.
Result<RendezvousPoint> meeting_place(const UniqueId& id, uint64_t host, bool tcp,
                                      const std::string& host_id);

}  // namespace fsccl
