#include "transports/ucx/context.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "base/fd.h"
#include "base/log.h"
#include "base/write_file.h"

namespace fsccl::ucx {
namespace {

constexpr const char *kTxSegments = "UCX_TCP_TX_SEG_SIZE", *kRxSegments = "UCX_TCP_RX_SEG_SIZE";

// Sets the options of UCX that serve better than its defaults. Options that the user has set stay.
// - RNDV_THRESH: without RDMA the rendezvous protocol of UCX only adds messages to what goes
//   through a socket anyway, and halves the bandwidth, as measured over TCP. The option stays as it
//   is if memory may be a GPU's, because CUDA IPC uses that protocol.
// - TX_SEG_SIZE, RX_SEG_SIZE (TCP): the bytes that go through a socket at once. They become a slot
//   with its header instead of 8 KiB, because UCX puts larger messages together in memory that it
//   allocates and frees for each of them.
// - MAX_POLL (TCP): the number of sockets that UCX looks at together. In 1.13 a batch in which one
//   connection breaks can hold another event of that connection, and then an assertion ends the
//   process ("conn_state != UCT_TCP_EP_CONN_STATE_CLOSED"). This was seen in 8 of 125 deaths of a
//   peer, and in 0 of 175 with the value 1.
void configure(const UcxLibrary& ucx, ucp_config_t* config, Use use) {
  const auto prefer = [&](const char* variable, const char* name, const char* value) {
    if (std::getenv(variable)) return;
    ucs_status_t status = ucx.config_modify(config, name, value);
    // Later releases of UCX expect the name without "UCX_".
    if (status != UCS_OK) status = ucx.config_modify(config, variable + sizeof "UCX_" - 1, value);
    if (status != UCS_OK)
      FSCCL_LOG(kInfo, "UCX does not take {}={}: {}", name, value, ucx.status_string(status));
  };
  std::error_code none;
  if (use != Use::tagged && !std::filesystem::exists("/sys/class/infiniband", none))
    prefer("UCX_RNDV_THRESH", "RNDV_THRESH", "inf");
  if (segments_set().empty()) {
    prefer(kTxSegments, "TX_SEG_SIZE", "160k");
    prefer(kRxSegments, "RX_SEG_SIZE", "160k");
  }
  prefer("UCX_TCP_MAX_POLL", "MAX_POLL", "1");
}

}  // namespace

std::string segments_set() {
  std::string set;
  for (const char* variable : {kTxSegments, kRxSegments})
    if (const char* value = std::getenv(variable)) set += fmt::format("{}={} ", variable, value);
  return set;
}

Status problem_of(const UcxLibrary& ucx, const char* what, ucs_status_t status) {
  return fail(FSCCL_ERR_LINK, "UCX: {}: {}", what, ucx.status_string(status));
}

Status make_worker(const UcxLibrary& ucx, ucp_context_h context, const ucp_worker_params_t& params,
                   ucp_worker_h* worker) {
  const FileSignalsHeld held;
  const ucs_status_t status = ucx.worker_create(context, &params, worker);
  if (status == UCS_OK) return success();
  return problem_of(ucx, ("a worker cannot be made" + advice_for(EFBIG)).c_str(), status);
}

Result<ucp_context_h> context_of(const UcxLibrary& ucx, Use use) {
  constexpr uint64_t kFeatures[] = {UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                                    UCP_FEATURE_AM | UCP_FEATURE_WAKEUP | UCP_FEATURE_RMA,
                                    UCP_FEATURE_TAG};
  static std::mutex mutex;
  static ucp_context_h contexts[3];
  ucp_context_h& context = contexts[static_cast<size_t>(use)];
  const std::lock_guard lock(mutex);
  if (context) return context;
  take_standard_numbers_for_good();  // UCX opens descriptors whenever it connects
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx.config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return problem_of(ucx, "its configuration (UCX_*) cannot be read", status);
  configure(ucx, config, use);
  ucp_params_t params{};
  params.field_mask =
      UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_NAME;
  params.features = kFeatures[static_cast<size_t>(use)];
  params.mt_workers_shared = 1;
  params.name = "fsccl";
  const FileSignalsHeld held;
  status = ucx.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
  ucx.config_release(config);
  if (status != UCS_OK)
    return problem_of(ucx, "it does not start (see UCX_NET_DEVICES, and `ucx_info -d`)", status);
  return context;
}

}  // namespace fsccl::ucx
