#include "transports/tcp/endpoint.h"

#include "base/config.h"

namespace fsccl::tcp {

Bytes encode(const Endpoint& endpoint) {
  ByteWriter writer;
  writer.put(endpoint.port).put(static_cast<uint16_t>(endpoint.addresses.size()));
  for (const IpAddress& address : endpoint.addresses) writer.put(address);
  return writer.take();
}

Result<Endpoint> decode_endpoint(ByteView bytes) {
  ByteReader reader(bytes);
  Endpoint endpoint;
  endpoint.port = reader.get<uint16_t>();
  const auto count = reader.get<uint16_t>();
  if (!reader.good() || endpoint.port == 0 || count == 0 || count > kMostAddresses)
    return fail(FSCCL_ERR_PROTOCOL, "an endpoint address with {} addresses and port {}", count,
                endpoint.port);
  endpoint.addresses.resize(count);
  for (IpAddress& address : endpoint.addresses) reader.get(address);
  if (!reader.good())
    return fail(FSCCL_ERR_PROTOCOL, "an endpoint address of {} bytes for {} addresses",
                bytes.size(), count);
  return endpoint;
}

Result<Endpoint> own_endpoint(uint16_t port) {
  const ConfigRef settings = config();
  const bool own = !settings->tcp_interface.empty();
  const std::string& interface_name = own ? settings->tcp_interface : settings->bootstrap_interface;
  Endpoint endpoint{port, local_ips(interface_name)};
  if (endpoint.addresses.size() > kMostAddresses) endpoint.addresses.resize(kMostAddresses);
  if (!endpoint.addresses.empty()) return endpoint;
  if (interface_name.empty())
    return fail(FSCCL_ERR_LINK, "this host has no network interface that is up and has an address");
  return fail(FSCCL_ERR_CONFIG,
              "{}={}: no interface of this name is up and has an address; see `ip addr`",
              own ? "FSCCL_TCP_INTERFACE" : "FSCCL_BOOTSTRAP_INTERFACE", interface_name);
}

}  // namespace fsccl::tcp
