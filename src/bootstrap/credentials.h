// The credentials of a rank: the job's secret, from the unique id or from a file; or, on one host
// without a secret, the kernel's word that the other end belongs to the same user; or, with
// FSCCL_INSECURE=1, none. This file also has the connecting side of the handshake; the listening
// side is in reception.h.
#pragma once
#include <string>

#include "base/socket.h"
#include "base/status.h"
#include "base/wait.h"
#include "bootstrap/framed_socket.h"
#include "wire/handshake.h"

namespace fsccl {

// Returns a key that is derived from the secret in a file, which FSCCL_JOB_SECRET_FILE names. The
// file must be a regular file of this user, closed to all others, with at least 16 bytes.
Result<SecretKey> read_secret_file(const std::string& path);

// With AuthMode::kUser, checks that the other end is a process of this user. The other modes do not
// rest on the user, so the check then always succeeds.
Status check_peer_user(int fd, AuthMode mode);

// Makes one attempt to connect, and does the handshake. Fails with FSCCL_ERR_LINK if nobody listens
// or the connection was closed before the handshake was done; another attempt may then succeed.
// After success, *versions says whether both ends run the same version. The listener learns this,
// too.
Result<FramedSocket> connect_as(const SocketAddress& address, const Credentials& credentials,
                                Purpose purpose, uint64_t job, int32_t rank, int32_t ranks,
                                Deadline deadline, Status* versions);
// Does the handshake alone, over a connection that is made already. Fails with FSCCL_ERR_LINK if
// the listener closed the connection: it has ended, had too many visitors at its door, or belongs
// to another job. *reached, if wanted, is the rank that the listener has proven to be, or -1.
Result<FramedSocket> introduce_as(Fd fd, const Credentials& credentials, Purpose purpose,
                                  uint64_t job, int32_t rank, int32_t ranks, Deadline deadline,
                                  Status* versions, const BreakCheck& broken = {},
                                  int32_t* reached = nullptr);

// The pause between two attempts to connect: 1 ms, then twice as long each time up to 20 ms.
inline Naps between_attempts() { return Naps(0, 1'000'000, 20'000'000); }

// Returns the name of a rank's Unix listener in the abstract namespace, "fsccl-...".
std::string listener_name(const std::array<uint8_t, 16>& random);

}  // namespace fsccl
