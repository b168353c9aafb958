// fsccl_launcher(): what the launcher of this process says about its job.
#include <cstdlib>

#include "api/guard.h"
#include "api/structs.h"
#include "base/config.h"
#include "base/fork.h"
#include "bootstrap/launcher.h"
#include "fsccl/insight.h"

using namespace fsccl;

namespace {

const char* variable(const char* name) { return std::getenv(name); }

}  // namespace

extern "C" {

fsccl_status_t fsccl_launcher(fsccl_launch_info_t* info) {
  return guarded("fsccl_launcher", [&]() -> Status {
    if (forked()) return forked_status();
    FSCCL_TRY(check_output(info, "info", "FSCCL_LAUNCH_INFO_INIT"));
    static thread_local LaunchEnvironment launch;
    launch = {};
    FSCCL_TRY(config_status());
    const LauncherChoice choice = config()->launcher;
    if (find_launcher(variable, choice) != Launcher::kNone) {
      FSCCL_ASSIGN(launch, read_environment(variable, choice));
    }
    const bool found = launch.launcher != Launcher::kNone;
    fill_output(
        info, {sizeof *info, found ? name_of(launch.launcher) : nullptr, launch.rank, launch.ranks,
               launch.local_rank, launch.local_ranks, launch.one_host,
               launch.master_address.empty() || !found ? nullptr : launch.master_address.c_str(),
               launch.master_port});
    return success();
  });
}

}  // extern "C"
