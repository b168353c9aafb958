// The functions of insight.h: reports about the library and the machine.
#include <cstring>

#include "api/guard.h"
#include "api/objects.h"
#include "base/config.h"
#include "base/fork.h"
#include "comm/device/collectives.h"
#include "comm/explain.h"
#include "cuda/device.h"
#include "fsccl/insight.h"
#include "record/metrics.h"
#include "record/recorder.h"
#include "transports/transports.h"

using namespace fsccl;

extern "C" {

fsccl_status_t fsccl_transport_list(void (*visit)(void* context,
                                                  const fsccl_transport_info_t* info),
                                    void* context) {
  return guarded("fsccl_transport_list", [&]() -> Status {
    if (forked()) return forked_status();
    if (!visit) return fail(FSCCL_ERR_INVALID_ARGUMENT, "visit is NULL");
    for (const KnownTransport& known : known_transports()) {
      std::string why;
      const bool usable = usable_transport(known.name, &why) != nullptr;
      const fsccl_transport_info_t info{own_name(known.name.data()), usable ? 1 : 0, why.c_str()};
      visit(context, &info);
    }
    std::string why;
    const bool usable = nccl_usable(&why);
    const fsccl_transport_info_t info{"nccl", usable ? 1 : 0, why.c_str()};
    visit(context, &info);
    return success();
  });
}

fsccl_status_t fsccl_device_list(void (*visit)(void* context, const fsccl_device_info_t* info),
                                 void* context) {
  return guarded("fsccl_device_list", [&]() -> Status {
    if (forked()) return forked_status();
    if (!visit) return fail(FSCCL_ERR_INVALID_ARGUMENT, "visit is NULL");
    std::string why;
    const int count = cuda::device_count(&why);
    if (!count) return fail(FSCCL_ERR_NOT_AVAILABLE, "there is no GPU to use: {}", why);
    for (int i = 0; i < count; i++) {
      const Result<cuda::Device> looked = cuda::Device::look(i);
      fsccl_device_info_t info = {};
      info.device = i;
      info.available = looked.ok();
      info.why = info.name = "";
      if (looked.ok()) {
        const cuda::Device& device = looked.value();
        info.name = device.name().c_str();
        info.memory_bytes = device.memory_bytes();
        info.capability = device.capability();
        info.multiprocessors = device.multiprocessors();
        info.copy_engines = device.copy_engines();
        info.descriptors = device.posix_handles();
        info.fabric = device.fabric_handles();
        info.values_64 = device.wide_values();
        info.batches = device.batches();
        info.driver = device.driver().version;
      } else {
        info.why = looked.status().text().c_str();
      }
      visit(context, &info);
    }
    return success();
  });
}

fsccl_status_t fsccl_explain(fsccl_comm_t handle, const char* operation, size_t bytes, char* json,
                             size_t capacity) {
  return guarded("fsccl_explain", [&]() -> Status {
    FSCCL_ASSIGN(const Ref<Communicator> comm, comm_of(handle));
    if (!operation || !json)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is NULL", operation ? "json" : "operation");
    FSCCL_ASSIGN(const OpCode op, explained_operation(operation));
    FSCCL_ASSIGN(std::string text, comm->collectives().explain(operation, bytes));
    if (comm->device_collectives)
      if (const std::string device = DeviceCollectives::of(*comm).explain(op, bytes);
          !device.empty())
        text.insert(text.size() - 1, ",\"device\":" + device);
    if (text.size() >= capacity)
      return fail(FSCCL_ERR_LIMIT, "json has room for {} bytes, the text needs {}", capacity,
                  text.size() + 1);
    std::memcpy(json, text.c_str(), text.size() + 1);
    return success();
  });
}

fsccl_status_t fsccl_explain_for(const fsccl_explain_config_t* config, const char* operation,
                                 size_t bytes,
                                 void (*take)(void* context, const char* json, size_t bytes),
                                 void* context) {
  return guarded("fsccl_explain_for", [&]() -> Status {
    if (forked()) return forked_status();
    if (!operation || !take)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is NULL", operation ? "take" : "operation");
    FSCCL_TRY(config_status());
    fsccl_explain_config_t given;
    FSCCL_TRY(read_config(config, fsccl_explain_config_t FSCCL_EXPLAIN_CONFIG_INIT, &given));
    const auto path = [](const char* name) { return std::string(name ? name : ""); };
    FSCCL_ASSIGN(const std::string text,
                 explanation_for(operation, bytes,
                                 {given.hosts, given.ranks_per_host, path(given.topology),
                                  path(given.tuning)}));
    take(context, text.c_str(), text.size());
    return success();
  });
}

fsccl_status_t fsccl_trace_dump(const char* directory) {
  return guarded("fsccl_trace_dump", [&]() -> Status {
    if (forked()) return forked_status();
    if (!directory) return fail(FSCCL_ERR_INVALID_ARGUMENT, "directory is NULL");
    return Recorder::write_all(directory);
  });
}

fsccl_status_t fsccl_trace_read(const char* path,
                                void (*take)(void* context, const char* json, size_t bytes),
                                void* context) {
  return guarded("fsccl_trace_read", [&]() -> Status {
    if (!path || !take)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is NULL", path ? "take" : "path");
    FSCCL_ASSIGN(const std::string json, recording::read(path));
    take(context, json.c_str(), json.size());
    return success();
  });
}

fsccl_status_t fsccl_metrics(void (*take)(void* context, const char* text, size_t bytes),
                             void* context) {
  return guarded("fsccl_metrics", [&]() -> Status {
    if (forked()) return forked_status();
    if (!take) return fail(FSCCL_ERR_INVALID_ARGUMENT, "take is NULL");
    const std::string text = metrics_text();
    take(context, text.c_str(), text.size());
    return success();
  });
}

}  // extern "C"
