// fsccl_topology_*: topologies through the public header.
#include <cstring>

#include "api/guard.h"
#include "base/fork.h"
#include "fsccl/insight.h"
#include "topo/describe.h"
#include "topo/discover.h"
#include "topo/file.h"

using namespace fsccl;

namespace {

Result<topo::Topology> load(const char* file) {
  if (file) return topo::load_file(file);
  return topo::discover();
}

Result<int> place(const topo::Topology& topology, const char* name) {
  const int vertex = topology.find(name);
  if (vertex >= 0) return vertex;
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "there is no place \"{}\", or there are several: give host/device, host/core or a "
              "switch, with names as in the "
              "topology's JSON",
              name);
}

}  // namespace

extern "C" {

fsccl_status_t fsccl_topology_describe(const char* file, fsccl_topology_form_t form,
                                       void (*take)(void* context, const char* text, size_t bytes),
                                       void* context) {
  return guarded("fsccl_topology_describe", [&]() -> Status {
    if (forked()) return forked_status();
    if (!take) return fail(FSCCL_ERR_INVALID_ARGUMENT, "take is NULL");
    if (form != FSCCL_TOPOLOGY_TREE && form != FSCCL_TOPOLOGY_JSON)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "form is {}: give one of fsccl_topology_form_t",
                  static_cast<int>(form));
    FSCCL_ASSIGN(const topo::Topology topology, load(file));
    const std::string text =
        form == FSCCL_TOPOLOGY_TREE ? topo::to_tree(topology) : topo::to_json(topology);
    take(context, text.c_str(), text.size());
    return success();
  });
}

fsccl_status_t fsccl_topology_between(const char* file, const char* from, const char* to,
                                      void (*take)(void* context, const char* text, size_t bytes),
                                      void* context) {
  return guarded("fsccl_topology_between", [&]() -> Status {
    if (forked()) return forked_status();
    if (!from || !to || !take)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is NULL", !from ? "from" : !to ? "to" : "take");
    FSCCL_ASSIGN(const topo::Topology topology, load(file));
    FSCCL_ASSIGN(const int begin, place(topology, from));
    FSCCL_ASSIGN(const int end, place(topology, to));
    const std::string text = topo::to_way(topology, begin, end);
    take(context, text.c_str(), text.size());
    return success();
  });
}

fsccl_status_t fsccl_topology_dump(char* json, size_t capacity) {
  return guarded("fsccl_topology_dump", [&]() -> Status {
    if (forked()) return forked_status();
    if (!json) return fail(FSCCL_ERR_INVALID_ARGUMENT, "json is NULL");
    const std::string text = topo::to_json(topo::discover());
    if (text.size() >= capacity)
      return fail(FSCCL_ERR_LIMIT, "json has room for {} bytes, the text needs {}", capacity,
                  text.size() + 1);
    std::memcpy(json, text.c_str(), text.size() + 1);
    return success();
  });
}

}  // extern "C"
