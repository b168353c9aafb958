// The transports between ranks in host memory. comm/device chooses those between GPUs.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/config.h"
#include "transports/transport.h"

namespace fsccl {

struct KnownTransport {
  std::string_view name;
  // Null if it is not in this build. The plug-in's is null, too, because it is loaded when it is
  // asked for.
  const Transport* transport = nullptr;
  const char* why = "";  // the reason why it is not in this build
};
std::span<const KnownTransport> known_transports();

// Returns the transport, or null and the reason in *why if it cannot be used on this machine.
// "plugin" is the name of the transport that FSCCL_TRANSPORT_PLUGIN gives.
const Transport* usable_transport(std::string_view name, std::string* why);

// Returns true if this machine has devices for RDMA, as the kernel lists them.
bool has_rdma(const char* folder = "/sys/class/infiniband");
// Returns the transport between hosts that a TransportChoice or a NetworkChoice names, or null.
template <class Choice>
constexpr const char* network_of(Choice choice) {
  return choice == Choice::kUcx      ? "ucx"
         : choice == Choice::kTcp    ? "tcp"
         : choice == Choice::kPlugin ? "plugin"
                                     : nullptr;
}
// Returns true for a transport between hosts, which then also connects the ranks of one host.
constexpr bool forces_network(TransportChoice choice) { return network_of(choice) != nullptr; }
// Returns the transport between hosts that the settings ask for, or null.
const char* asked_network(const Config& settings);
// Returns the transport between hosts that is best for this rank: "ucx" if it can use RDMA through
// UCX, otherwise "tcp", which is faster than UCX over TCP.
const char* preferred_network();
// Returns the own name of the transport `name`, which differs from `name` for a plug-in.
const char* own_name(const char* name);
// Returns true if the transport `name` can signal one peer only. A transport that cannot be loaded
// is assumed to have this ability.
bool signals_one(const char* name);
// Returns the reason why ranks of several hosts use the transport that the settings ask for, or the
// preferred one.
std::string why_network(const Config& settings);
// If FSCCL_NETWORK and FSCCL_TRANSPORT name different transports, the latter counts. Returns a text
// that says so, or an empty text if they do not differ.
std::string overruled_network(const Config& settings);
// Returns the bytes of each slot of a channel of so many ranks between hosts, if no other size is
// asked for.
size_t network_slot_bytes(std::string_view network, size_t ranks);

}  // namespace fsccl
