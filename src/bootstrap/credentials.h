// The credentials of a rank: the job's secret, from the unique id or from a file; or, on one host
// without a secret, the kernel's word that the other end belongs to the same user. This file also
// connects and proves the secret; the listening side is in reception.h.
#pragma once
#include <string>

#include "base/socket.h"
#include "base/status.h"
#include "base/wait.h"
#include "bootstrap/framed_socket.h"
#include "wire/handshake.h"

namespace fsccl {

// The secret in FSCCL_JOB_SECRET_FILE: a regular file of the user, closed to all others, of at
// least 16 bytes.
Result<SecretKey> read_secret_file(const std::string& path);

// For AuthMode::kUser: the other end is a process of this user. Always right for the other modes,
// which do not rest on it.
Status check_peer_user(int fd, AuthMode mode);

// Connects, once, and does the handshake. FSCCL_ERR_LINK: nobody there, or the connection was
// closed before it was done; trying again may help. *versions: whether both run the same version;
// the listener knows it too.
Result<FramedSocket> connect_as(const SocketAddress& address, const Credentials& credentials,
                                Purpose purpose, uint64_t job, int32_t rank, int32_t ranks,
                                Deadline deadline, Status* versions);
// The handshake alone. FSCCL_ERR_LINK: somebody listened, and closed the connection: it has gone,
// or too many stood at its door.
Result<FramedSocket> introduce_as(Fd fd, const Credentials& credentials, Purpose purpose,
                                  uint64_t job, int32_t rank, int32_t ranks, Deadline deadline,
                                  Status* versions, const BreakCheck& broken = {});

// The pause between two attempts to connect: 1 ms, then twice as long each time up to 20 ms.
inline Naps between_attempts() { return Naps(0, 1'000'000, 20'000'000); }

// "@fsccl-..." of a rank's Unix listener.
std::string listener_name(const std::array<uint8_t, 16>& random);

}  // namespace fsccl
