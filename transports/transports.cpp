#include "transports/transports.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "transports/mirror/channel.h"
#include "transports/plugin.h"
#include "transports/shm/shm.h"
#include "transports/tcp/node.h"
#include "transports/tcp/tcp.h"
#include "transports/ucx/ucx.h"

namespace fsccl {

namespace {
constexpr const char* kPlugin = network_of(NetworkChoice::kPlugin);
}

std::span<const KnownTransport> known_transports() {
  static const KnownTransport known[] = {
      {"shm", shm_transport()},
      {"tcp", tcp_transport()},
#if FSCCL_WITH_UCX
      {"ucx", ucx_transport()},
#else
      {"ucx", nullptr, ucx::kNotBuilt},
#endif
      {kPlugin},
  };
  return known;
}

namespace {

Result<const Transport*> find_transport(std::string_view name) {
  if (name == kPlugin) return plugin_transport(config()->transport_plugin);
  const auto known = known_transports();
  const auto found = std::find_if(known.begin(), known.end(),
                                  [&](const KnownTransport& one) { return one.name == name; });
  if (found == known.end())
    return fail(FSCCL_ERR_NOT_AVAILABLE, "there is no transport of this name");
  if (!found->transport) return fail(FSCCL_ERR_NOT_AVAILABLE, "{}", found->why);
  return found->transport;
}

}  // namespace

const Transport* usable_transport(std::string_view name, std::string* why) {
  const auto found = find_transport(name);
  const Status usable = found.ok() ? found.value()->available() : found.status().clone();
  if (usable.ok()) return found.value();
  *why = usable.text();
  return nullptr;
}

bool has_rdma(const char* folder) {
  std::error_code none;
  return std::filesystem::exists(folder, none) && !std::filesystem::is_empty(folder, none);
}

const char* asked_network(const Config& settings) {
  if (const char* const name = network_of(settings.transport)) return name;
  if (const char* const name = network_of(settings.network)) return name;
  return settings.transport_plugin.empty() ? nullptr : kPlugin;
}

const char* preferred_network() {
  std::string why;
  return has_rdma() && usable_transport("ucx", &why) ? "ucx" : "tcp";
}

const char* own_name(const char* name) {
  const auto found = find_transport(name);
  return found.ok() ? found.value()->name() : name;
}

bool signals_one(const char* name) {
  const auto found = find_transport(name);
  return !found.ok() || found.value()->signals_one();
}

std::string why_network(const Config& settings) {
  if (forces_network(settings.transport))
    return fmt::format("FSCCL_TRANSPORT={} asks for it", asked_network(settings));
  if (settings.network == NetworkChoice::kAuto && asked_network(settings))
    return "FSCCL_TRANSPORT_PLUGIN names it";
  if (const char* const asked = asked_network(settings))
    return fmt::format("FSCCL_NETWORK={} asks for it", asked);
  if (settings.transport == TransportChoice::kShm)
    return "but for FSCCL_TRANSPORT=shm, which joins ranks of one host only";
  std::string why;
  if (!has_rdma())
    return "/sys/class/infiniband lists no devices for RDMA, and over sockets it is faster than "
           "ucx";
  if (!usable_transport("ucx", &why)) return "there are devices for RDMA, but ucx is not available";
  return "/sys/class/infiniband lists devices for RDMA; where a rank has none, all take tcp";
}

std::string overruled_network(const Config& settings) {
  const char *const network = network_of(settings.network), *const forced =
                                                                network_of(settings.transport);
  if (!network || settings.transport == TransportChoice::kAuto ||
      (forced && std::string_view(network) == forced))
    return "";
  return fmt::format("FSCCL_NETWORK={} is not followed: FSCCL_TRANSPORT={} says what moves bytes",
                     network, forced ? forced : "shm");
}

size_t network_slot_bytes(std::string_view network, size_t ranks) {
  return mirror::chosen_slot_bytes(ranks,
                                   network == "tcp" ? tcp::kMostSlotBytes : ucx::kMostSlotBytes);
}

}  // namespace fsccl
