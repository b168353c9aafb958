// The transports between ranks in host memory; comm/device chooses those between GPUs.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/config.h"
#include "transports/transport.h"

namespace fsccl {

struct KnownTransport {
  std::string_view name;
  // null: not in this build; or the plug-in's, which is loaded when it is asked for
  const Transport* transport = nullptr;
  const char* why = "";  // not in this build
};
std::span<const KnownTransport> known_transports();

// Null, and *why, when it cannot be used on this machine. The name of the one that
// FSCCL_TRANSPORT_PLUGIN gives is "plugin" here.
const Transport* usable_transport(std::string_view name, std::string* why);

// Returns true if this machine has devices for RDMA, as the kernel lists them.
bool has_rdma(const char* folder = "/sys/class/infiniband");
// The transport between hosts that a TransportChoice or a NetworkChoice names; null: it names none.
template <class Choice>
constexpr const char* network_of(Choice choice) {
  return choice == Choice::kUcx      ? "ucx"
         : choice == Choice::kTcp    ? "tcp"
         : choice == Choice::kPlugin ? "plugin"
                                     : nullptr;
}
// A transport between hosts that also joins the ranks of one.
constexpr bool forces_network(TransportChoice choice) { return network_of(choice) != nullptr; }
// Returns the transport between hosts that the settings ask for; null: none.
const char* asked_network(const Config& settings);
// Between hosts, as far as this rank is concerned: "ucx" where it can use RDMA through UCX, else
// "tcp", which is faster than UCX over TCP.
const char* preferred_network();
// Returns the own name of the transport that goes by `name` here: a plug-in has a name of its own.
const char* own_name(const char* name);
// Returns true if the transport that goes by `name` here can signal one peer and no other. One that
// cannot be loaded is taken to.
bool signals_one(const char* name);
// Why that, or what the settings ask for, is what ranks of several hosts take.
std::string why_network(const Config& settings);
// Where FSCCL_NETWORK says another than FSCCL_TRANSPORT, which counts: a text that says so; else
// empty.
std::string overruled_network(const Config& settings);
// Returns the bytes of each slot of a channel of so many ranks between hosts, where nothing else is
// asked for.
size_t network_slot_bytes(std::string_view network, size_t ranks);

}  // namespace fsccl
