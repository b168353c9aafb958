// fsccl_config_*: the process-wide configuration through the public header.
#include "base/config.h"

#include <cstring>

#include "api/guard.h"
#include "base/fork.h"
#include "fsccl/insight.h"

using fsccl::fail;
using fsccl::Status;

extern "C" {

fsccl_status_t fsccl_config_set(const char* name, const char* value) {
  return fsccl::guarded("fsccl_config_set", [&]() -> Status {
    if (fsccl::forked()) return fsccl::forked_status();
    if (name == nullptr || value == nullptr)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is NULL", name == nullptr ? "name" : "value");
    return fsccl::config_set(name, value);
  });
}

fsccl_status_t fsccl_config_get(const char* name, char* buffer, size_t capacity) {
  return fsccl::guarded("fsccl_config_get", [&]() -> Status {
    if (fsccl::forked()) return fsccl::forked_status();
    if (name == nullptr || buffer == nullptr)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is NULL", name == nullptr ? "name" : "buffer");
    FSCCL_ASSIGN(const std::string value, fsccl::config_get(name));
    if (value.size() >= capacity) {
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "the value of {} needs {} bytes, the buffer has {}",
                  name, value.size() + 1, capacity);
    }
    std::memcpy(buffer, value.c_str(), value.size() + 1);
    return fsccl::success();
  });
}

fsccl_status_t fsccl_config_dump(void (*visit)(void* context, const fsccl_config_entry_t* entry),
                                 void* context) {
  return fsccl::guarded("fsccl_config_dump", [&]() -> Status {
    if (fsccl::forked()) return fsccl::forked_status();
    if (visit == nullptr) return fail(FSCCL_ERR_INVALID_ARGUMENT, "visit is NULL");
    return fsccl::config_dump([&](const fsccl_config_entry_t& entry) { visit(context, &entry); });
  });
}

}  // extern "C"
