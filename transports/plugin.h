// Transports of other makers: shared libraries that export fsccl_transport_plugin()
// (fsccl/transport.h).
#pragma once
#include <string>

#include "base/status.h"
#include "transports/transport.h"

namespace fsccl {

// A copy of a table that a plug-in gave, with null for what it is too short to have; an error
// unless all that is needed is there.
Result<fsccl_transport_ops_t> checked_table(const fsccl_transport_ops_t* given);

// The transport of the plug-in at `path`, loaded once and for ever. Any thread.
Result<const Transport*> plugin_transport(const std::string& path);

}  // namespace fsccl
