#include "transports/ucx/ucx_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace fsccl::ucx {
namespace {

struct Loaded {
  UcxLibrary library{};
  std::string problem;
};

Loaded load() {
  Loaded loaded;
  UcxLibrary& found = loaded.library;
  void* library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    const char* text = dlerror();
    loaded.problem = fmt::format("UCX cannot be loaded ({}): install it (Debian: libucx0), or set LD_LIBRARY_PATH to where it is",
                                 text ? text : "libucp.so.0");
    return loaded;
  }
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function && loaded.problem.empty())
      loaded.problem = fmt::format("this libucp.so.0 has no {}: UCX 1.13 or a later 1.x is needed", name);
  };
  find(found.get_version, "ucp_get_version");
  find(found.status_string, "ucs_status_string");
  find(found.config_read, "ucp_config_read");
  find(found.config_modify, "ucp_config_modify");
  find(found.config_release, "ucp_config_release");
  find(found.init_version, "ucp_init_version");
  find(found.worker_create, "ucp_worker_create");
  find(found.worker_destroy, "ucp_worker_destroy");
  find(found.worker_get_address, "ucp_worker_get_address");
  find(found.worker_release_address, "ucp_worker_release_address");
  find(found.worker_get_efd, "ucp_worker_get_efd");
  find(found.worker_arm, "ucp_worker_arm");
  find(found.worker_signal, "ucp_worker_signal");
  find(found.worker_progress, "ucp_worker_progress");
  find(found.worker_flush_nbx, "ucp_worker_flush_nbx");
  find(found.worker_set_am_recv_handler, "ucp_worker_set_am_recv_handler");
  find(found.ep_create, "ucp_ep_create");
  find(found.ep_close_nbx, "ucp_ep_close_nbx");
  find(found.am_send_nbx, "ucp_am_send_nbx");
  find(found.am_recv_data_nbx, "ucp_am_recv_data_nbx");
  find(found.am_data_release, "ucp_am_data_release");
  find(found.request_check_status, "ucp_request_check_status");
  find(found.request_free, "ucp_request_free");
  return loaded;
}

}  // namespace

const UcxLibrary* ucx_library(std::string* why) {
  static const Loaded loaded = load();
  if (loaded.problem.empty()) return &loaded.library;
  if (why) *why = loaded.problem;
  return nullptr;
}

}  // namespace fsccl::ucx
