#include "transports/ucx/ucx_library.h"

#include <fmt/format.h>

#include "base/loaded_library.h"

namespace fsccl::ucx {
namespace {

struct Loaded {
  UcxLibrary library{};
  std::string problem;
};

Loaded load() {
  Loaded loaded;
  UcxLibrary& found = loaded.library;
  LoadedLibrary library("libucp.so.0");
  if (!library.loaded()) {
    loaded.problem = fmt::format(
        "UCX cannot be loaded ({}): install it (Debian: libucx0), or set LD_LIBRARY_PATH to where "
        "it is",
        library.why_not());
    return loaded;
  }
  library.find(found.get_version, "ucp_get_version");
  library.find(found.status_string, "ucs_status_string");
  library.find(found.config_read, "ucp_config_read");
  library.find(found.config_modify, "ucp_config_modify");
  library.find(found.config_release, "ucp_config_release");
  library.find(found.init_version, "ucp_init_version");
  library.find(found.context_query, "ucp_context_query");
  library.find(found.worker_create, "ucp_worker_create");
  library.find(found.worker_destroy, "ucp_worker_destroy");
  library.find(found.worker_get_address, "ucp_worker_get_address");
  library.find(found.worker_release_address, "ucp_worker_release_address");
  library.find(found.worker_get_efd, "ucp_worker_get_efd");
  library.find(found.worker_arm, "ucp_worker_arm");
  library.find(found.worker_signal, "ucp_worker_signal");
  library.find(found.worker_progress, "ucp_worker_progress");
  library.find(found.worker_flush_nbx, "ucp_worker_flush_nbx");
  library.find(found.worker_set_am_recv_handler, "ucp_worker_set_am_recv_handler");
  library.find(found.ep_create, "ucp_ep_create");
  library.find(found.ep_close_nbx, "ucp_ep_close_nbx");
  library.find(found.ep_flush_nbx, "ucp_ep_flush_nbx");
  library.find(found.ep_print_info, "ucp_ep_print_info");
  library.find(found.mem_map, "ucp_mem_map");
  library.find(found.mem_unmap, "ucp_mem_unmap");
  library.find(found.rkey_pack, "ucp_rkey_pack");
  library.find(found.rkey_buffer_release, "ucp_rkey_buffer_release");
  library.find(found.rkey_unpack, "ucp_ep_rkey_unpack");
  library.find(found.rkey_destroy, "ucp_rkey_destroy");
  library.find(found.put_nbx, "ucp_put_nbx");
  library.find(found.get_nbx, "ucp_get_nbx");
  library.find(found.am_send_nbx, "ucp_am_send_nbx");
  library.find(found.am_recv_data_nbx, "ucp_am_recv_data_nbx");
  library.find(found.am_data_release, "ucp_am_data_release");
  library.find(found.tag_send_nbx, "ucp_tag_send_nbx");
  library.find(found.tag_recv_nbx, "ucp_tag_recv_nbx");
  library.find(found.request_check_status, "ucp_request_check_status");
  library.find(found.request_cancel, "ucp_request_cancel");
  library.find(found.request_free, "ucp_request_free");
  if (library.missing())
    loaded.problem = fmt::format("this libucp.so.0 has no {}: UCX 1.13 or a later 1.x is needed",
                                 library.missing());
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
