// Transports of other makers: shared libraries that export fsccl_transport_plugin()
// (fsccl/transport.h).
#pragma once
#include <string>

#include "base/status.h"
#include "transports/transport.h"

namespace fsccl {

// Returns a copy of a table that a plug-in gave, in which members that it is too short to have are
// null. Returns an error if a member that is needed is missing.
Result<fsccl_transport_ops_t> checked_table(const fsccl_transport_ops_t* given);

// Returns the transport of the plug-in at `path`. It is loaded once and never unloaded. Any thread.
Result<const Transport*> plugin_transport(const std::string& path);

}  // namespace fsccl
