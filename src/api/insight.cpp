// What the library tells about itself and the machine, and what it will tell in later releases.
#include <cstring>

#include "api/guard.h"
#include "api/objects.h"
#include "base/fork.h"
#include "transports/shm/shm.h"

using namespace fsccl;

extern "C" {

fsccl_status_t fsccl_transport_list(void (*visit)(void* context, const fsccl_transport_info_t* info), void* context) {
  return guarded("fsccl_transport_list", [&]() -> Status {
    if (forked()) return forked_status();
    if (!visit) return fail(FSCCL_ERR_INVALID_ARGUMENT, "visit is NULL");
    char why[256] = "";
    const fsccl_transport_ops_t* shm = shm_transport();
    const int available = shm->available(why, sizeof why) != 0;
    const fsccl_transport_info_t known[] = {
        {shm->name, available, available ? "" : why},
        {"ucx", 0, "comes with a later release: ranks must share a host"},
        {"nccl", 0, "comes with a later release: operands must be in host memory"},
    };
    for (const fsccl_transport_info_t& info : known) visit(context, &info);
    return success();
  });
}

fsccl_status_t fsccl_explain(fsccl_comm_t handle, const char* operation, size_t bytes, char* json, size_t capacity) {
  return guarded("fsccl_explain", [&]() -> Status {
    FSCCL_ASSIGN(Communicator * comm, comm_of(handle));
    if (!operation || !json) return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is NULL", operation ? "json" : "operation");
    FSCCL_ASSIGN(const std::string text, comm->collectives().explain(operation, bytes));
    if (text.size() >= capacity)
      return fail(FSCCL_ERR_LIMIT, "json has room for {} bytes, the text needs {}", capacity, text.size() + 1);
    std::memcpy(json, text.c_str(), text.size() + 1);
    return success();
  });
}
fsccl_status_t fsccl_trace_dump(const char*) {
  return not_available("fsccl_trace_dump", "the flight recorder comes with a later release", "raise FSCCL_LOG_LEVEL");
}

}  // extern "C"
