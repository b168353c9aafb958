#include "transports/tcp/card.h"

#include "base/config.h"

namespace fsccl::tcp {

Bytes encode(const Card& card) {
  ByteWriter writer;
  writer.put(card.port).put(static_cast<uint16_t>(card.addresses.size()));
  for (const IpAddress& address : card.addresses) writer.put(address);
  return writer.take();
}

Result<Card> decode_card(ByteView bytes) {
  ByteReader reader(bytes);
  Card card;
  card.port = reader.get<uint16_t>();
  const auto count = reader.get<uint16_t>();
  if (!reader.good() || card.port == 0 || count == 0 || count > kMostAddresses)
    return fail(FSCCL_ERR_PROTOCOL, "a card with {} addresses and port {}", count, card.port);
  card.addresses.resize(count);
  for (IpAddress& address : card.addresses) reader.get(address);
  if (!reader.good())
    return fail(FSCCL_ERR_PROTOCOL, "a card of {} bytes for {} addresses", bytes.size(), count);
  return card;
}

Result<Card> own_card(uint16_t port) {
  const ConfigRef settings = config();
  const bool own = !settings->tcp_interface.empty();
  const std::string& interface_name = own ? settings->tcp_interface : settings->bootstrap_interface;
  Card card{port, local_ips(interface_name)};
  if (card.addresses.size() > kMostAddresses) card.addresses.resize(kMostAddresses);
  if (!card.addresses.empty()) return card;
  if (interface_name.empty())
    return fail(FSCCL_ERR_LINK, "this host has no network interface that is up and has an address");
  return fail(FSCCL_ERR_CONFIG,
              "{}={}: no interface of this name is up and has an address; see `ip addr`",
              own ? "FSCCL_TCP_INTERFACE" : "FSCCL_BOOTSTRAP_INTERFACE", interface_name);
}

}  // namespace fsccl::tcp
