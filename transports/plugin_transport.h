// A plug-in's table of functions (fsccl/transport.h), as a transport.
#pragma once
#include "transports/transport.h"

namespace fsccl {

class PluginTransport final : public Transport {
 public:
  // Takes a table that plugin.h has checked. The plug-in is never unloaded.
  explicit PluginTransport(const fsccl_transport_ops_t& table)
      : Transport(table.name, table.keeps_pages != 0, table.signal_to != nullptr), table_(table) {}
  Status available() const override;
  Result<std::unique_ptr<TransportNode>> join(const fsccl_transport_job_t& job) const override;
  Result<OpenedChannel> open(const ChannelRequest& request) const override;

 private:
  const fsccl_transport_ops_t table_;
};

}  // namespace fsccl
