#include "bootstrap/credentials.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace fsccl {

namespace {

constexpr size_t kMinSecretBytes = 16;
constexpr size_t kMaxSecretBytes = 4096;

}  // namespace

Result<SecretKey> read_secret_file(const std::string& path) {
  const Fd fd =
      make_fd([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); });
  if (!fd.valid())
    return fail(FSCCL_ERR_CONFIG, "FSCCL_JOB_SECRET_FILE={}: {}", path, std::strerror(errno));
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return fail_errno(errno, "fstat of FSCCL_JOB_SECRET_FILE");
  if (!S_ISREG(info.st_mode))
    return fail(FSCCL_ERR_CONFIG, "FSCCL_JOB_SECRET_FILE={}: not a regular file", path);
  if (info.st_uid != geteuid())
    return fail(FSCCL_ERR_CONFIG,
                "FSCCL_JOB_SECRET_FILE={}: belongs to user {}, not to this one ({})", path,
                info.st_uid, geteuid());
  if ((info.st_mode & 077) != 0)
    return fail(FSCCL_ERR_CONFIG,
                "FSCCL_JOB_SECRET_FILE={}: others may access it (mode {:04o}); run: chmod 600 {}",
                path, info.st_mode & 07777, path);
  uint8_t content[kMaxSecretBytes + 1];
  const ssize_t count = read(fd.get(), content, sizeof(content));
  if (count < 0) return fail_errno(errno, "reading FSCCL_JOB_SECRET_FILE");
  size_t bytes = static_cast<size_t>(count);
  if (bytes > kMaxSecretBytes)
    return fail(FSCCL_ERR_CONFIG, "FSCCL_JOB_SECRET_FILE={}: longer than {} bytes", path,
                kMaxSecretBytes);
  // An editor or echo may have added line ends.
  while (bytes > 0 && (content[bytes - 1] == '\n' || content[bytes - 1] == '\r')) --bytes;
  if (bytes < kMinSecretBytes) {
    wipe(content, sizeof(content));
    return fail(FSCCL_ERR_CONFIG,
                "FSCCL_JOB_SECRET_FILE={}: {} bytes, at least {} are needed; make one with: head "
                "-c 32 /dev/urandom | base64",
                path, bytes, kMinSecretBytes);
  }
  SecretKey key = SecretKey::derive("fsccl job secret file", ByteView(content, bytes));
  wipe(content, sizeof(content));
  return key;
}

Status check_peer_user(int fd, AuthMode mode) {
  if (mode != AuthMode::kUser) return success();
  if (!local_address(fd).is_unix())
    return fail(FSCCL_ERR_AUTH,
                "a TCP connection proves no user: set FSCCL_JOB_SECRET_FILE on all ranks");
  FSCCL_ASSIGN(const PeerUser peer, peer_user(fd));
  if (peer.uid == geteuid()) return success();
  return fail(FSCCL_ERR_AUTH,
              "process {} at the other end belongs to user {}, this one to user {}: set "
              "FSCCL_JOB_SECRET_FILE on all ranks",
              peer.pid, peer.uid, geteuid());
}

Result<FramedSocket> connect_as(const SocketAddress& address, const Credentials& credentials,
                                Purpose purpose, uint64_t job, int32_t rank, int32_t ranks,
                                Deadline deadline, Status* versions) {
  FSCCL_ASSIGN(Fd fd, connect_to(address, deadline));
  return introduce_as(std::move(fd), credentials, purpose, job, rank, ranks, deadline, versions);
}

Result<FramedSocket> introduce_as(Fd fd, const Credentials& credentials, Purpose purpose,
                                  uint64_t job, int32_t rank, int32_t ranks, Deadline deadline,
                                  Status* versions, const BreakCheck& broken, int32_t* reached) {
  FSCCL_TRY(check_peer_user(fd.get(), credentials.mode));
  Nonce nonce;
  random_bytes(nonce.data(), nonce.size());
  HandshakeClient handshake(credentials, purpose, job, rank, ranks, nonce);
  FramedSocket channel(std::move(fd), kMaxRequestBytes);
  // If the listener has sent a reason and closed already, sending fails and expect() below returns
  // the reason.
  if (Status sent = channel.send(FrameType::kHello, handshake.hello(), deadline, broken);
      !sent.ok() && sent.code() != FSCCL_ERR_LINK)
    return sent;
  FSCCL_ASSIGN(const Bytes challenge,
               channel.expect(FrameType::kChallenge, deadline, nullptr, broken));
  FSCCL_ASSIGN(const Bytes proof, handshake.answer(challenge));
  FSCCL_TRY(channel.send(FrameType::kProof, proof, deadline, broken));
  *versions = handshake.compare_versions();
  if (reached) *reached = handshake.peer().rank;
  return channel;
}

std::string listener_name(const std::array<uint8_t, 16>& random) {
  std::string name = "fsccl-";
  for (const uint8_t byte : random) name += fmt::format("{:02x}", byte);
  return name;
}

}  // namespace fsccl
