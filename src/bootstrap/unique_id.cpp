#include "bootstrap/unique_id.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/config.h"
#include "base/descriptors.h"
#include "bootstrap/credentials.h"
#include "bootstrap/job.h"
#include "bootstrap/member_info.h"
#include "bootstrap/rendezvous_server.h"

namespace fsccl {

namespace {

constexpr uint32_t kIdMagic = 0x44495346;  // "FSID"
constexpr uint16_t kIdVersion = 1;
constexpr size_t kChecksumBytes = 8;  // at the end; finds ids that were cut short or mixed up

uint64_t checksum(const fsccl_unique_id_t& id) {
  const std::string_view content(reinterpret_cast<const char*>(id.bytes),
                                 sizeof(id.bytes) - kChecksumBytes);
  const Digest digest = fingerprint_text(content);
  uint64_t sum = 0;
  std::memcpy(&sum, digest.data(), sizeof(sum));
  return sum;
}

}  // namespace

fsccl_unique_id_t encode(const UniqueId& id) {
  ByteWriter writer(sizeof(fsccl_unique_id_t));
  writer.put(kIdMagic).put(kIdVersion).put(id.job).put_raw(id.secret.data(), kKeyBytes);
  writer.put(id.listener).put(id.host).put(id.pid).put(id.port);
  const size_t count = std::min(id.ips.size(), kMaxIdAddresses);
  writer.put(static_cast<uint8_t>(count));
  for (size_t i = 0; i < count; ++i) writer.put(id.ips[i]);
  fsccl_unique_id_t result = {};
  Bytes bytes = writer.take();
  std::memcpy(result.bytes, bytes.data(), bytes.size());
  wipe(bytes.data(), bytes.size());
  const uint64_t sum = checksum(result);
  std::memcpy(result.bytes + sizeof(result.bytes) - kChecksumBytes, &sum, sizeof(sum));
  return result;
}

Result<UniqueId> decode_unique_id(const fsccl_unique_id_t& bytes) {
  ByteReader reader(ByteView(bytes.bytes, sizeof(bytes.bytes) - kChecksumBytes));
  const auto magic = reader.get<uint32_t>();
  const auto version = reader.get<uint16_t>();
  uint64_t sum = 0;
  std::memcpy(&sum, bytes.bytes + sizeof(bytes.bytes) - kChecksumBytes, sizeof(sum));
  if (magic != kIdMagic || sum != checksum(bytes))
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "the unique id is not one: pass all {} bytes that fsccl_unique_id_create() gave",
                sizeof(bytes.bytes));
  if (version != kIdVersion)
    return fail(
        FSCCL_ERR_VERSION,
        "the unique id is of form {}, this library knows form {}: all ranks need the same version",
        version, kIdVersion);
  UniqueId id;
  id.job = reader.get<uint64_t>();
  id.secret = SecretKey(reader.view(kKeyBytes));
  reader.get(id.listener);
  id.host = reader.get<uint64_t>();
  id.pid = reader.get<int32_t>();
  id.port = reader.get<uint16_t>();
  id.ips.resize(std::min<size_t>(reader.get<uint8_t>(), kMaxIdAddresses));
  for (IpAddress& ip : id.ips) reader.get(ip);
  return id;
}

Result<RendezvousPoint> meeting_place(const UniqueId& id, uint64_t host, bool tcp,
                                      const std::string& host_id) {
  RendezvousPoint place;
  place.credentials.mode = AuthMode::kSecret;
  place.credentials.key = id.secret;
  place.meeting = id.job;
  place.tcp = tcp && id.port != 0;
  place.host_id = host_id;
  place.who_listens =
      fmt::format("the process that made the unique id (process {} of its host)", id.pid);
  if (host == id.host) {
    place.addresses.push_back(unix_address(listener_name(id.listener)));
    return place;
  }
  for (const IpAddress& ip : id.ips) place.addresses.push_back(tcp_address(ip, id.port));
  if (place.tcp && place.addresses.empty())
    return fail(FSCCL_ERR_CONFIG,
                "the unique id was made on another host (or in another container), which has no "
                "address that other hosts can reach: give it a network (ip address), or set "
                "FSCCL_HOST_ID alike if the ranks share a host");
  if (!place.tcp)
    return fail(FSCCL_ERR_CONFIG,
                "the unique id was made on another host (or in another container), and TCP is off: "
                "remove FSCCL_BOOTSTRAP_TCP=0, or set "
                "FSCCL_HOST_ID alike if the ranks share a host");
  return place;
}

Status create_unique_id(fsccl_unique_id_t* result) {
  FSCCL_TRY(config_status());
  FSCCL_TRY(
      check_descriptors(descriptors_to_join(2, true), "make a unique id, and to join a job by it"));
  const ConfigRef settings = config();
  UniqueId id;
  id.job = random_number();
  id.secret = SecretKey::random();
  random_bytes(id.listener.data(), id.listener.size());
  id.host = host_number(settings->host_id);
  id.pid = getpid();
  std::vector<Fd> listeners;
  FSCCL_ASSIGN(Fd unix_listener, listen_unix(listener_name(id.listener)));
  listeners.push_back(std::move(unix_listener));
  if (settings->bootstrap_tcp) {
    Result<Fd> tcp_listener = listen_tcp(static_cast<uint16_t>(settings->bootstrap_port));
    if (!tcp_listener.ok() && tcp_listener.status().code() == FSCCL_ERR_INVALID_STATE)
      return fail(FSCCL_ERR_CONFIG,
                  "FSCCL_BOOTSTRAP_PORT={}: the port is in use; choose another, or 0 for any",
                  settings->bootstrap_port);
    if (!tcp_listener.ok()) return tcp_listener.take_status();
    id.port = port_of(local_address(tcp_listener.value().get()));
    id.ips = local_ips(settings->bootstrap_interface);
    if (id.ips.empty() && !settings->bootstrap_interface.empty())
      return fail(FSCCL_ERR_CONFIG,
                  "FSCCL_BOOTSTRAP_INTERFACE={}: no such interface is up, or it has no address",
                  settings->bootstrap_interface);
    listeners.push_back(tcp_listener.take());
  }
  Credentials credentials;
  credentials.mode = AuthMode::kSecret;
  credentials.key = id.secret;
  FSCCL_TRY(RendezvousServer::open(credentials, id.job, id.job, std::move(listeners)));
  *result = encode(id);
  return success();
}

}  // namespace fsccl
