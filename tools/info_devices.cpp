#include "info_devices.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "fsccl/fsccl.h"
#include "fsccl/insight.h"
#include "info_error.h"

namespace {

using OrderedJson = nlohmann::ordered_json;

struct Found {
  OrderedJson list = OrderedJson::array();
  std::string text;
};

void add(void* context, const fsccl_device_info_t* info) {
  Found& found = *static_cast<Found*>(context);
  if (!info->available) {
    found.list.push_back({{"device", info->device}, {"available", false}, {"why", info->why}});
    found.text += fmt::format("device {}: not available\n    {}\n", info->device, info->why);
    return;
  }
  const std::string capability = fmt::format("{}.{}", info->capability / 10, info->capability % 10);
  const std::string driver = fmt::format("{}.{}", info->driver / 1000, info->driver % 1000 / 10);
  found.list.push_back({{"device", info->device},
                        {"available", true},
                        {"why", ""},
                        {"name", info->name},
                        {"memory_bytes", info->memory_bytes},
                        {"capability", capability},
                        {"multiprocessors", info->multiprocessors},
                        {"copy_engines", info->copy_engines},
                        {"descriptors", info->descriptors != 0},
                        {"fabric", info->fabric != 0},
                        {"values_64", info->values_64 != 0},
                        {"batches", info->batches != 0},
                        {"driver", driver}});
  const std::string shared =
      info->descriptors
          ? info->fabric ? "of this host and, as fabric handles, of others" : "of this host"
      : info->fabric ? "of other hosts, as fabric handles"
                     : "none";
  found.text += fmt::format(
      "device {}: {}\n"
      "    memory           {:.1f} GiB\n"
      "    capability       {}, {} multiprocessors, {} copy engines\n"
      "    driver           for CUDA {}, {} batches of copies\n"
      "    processes        that can map its memory: {}\n"
      "    values           of {} bits in streams\n",
      info->device, info->name, static_cast<double>(info->memory_bytes) / (1u << 30), capability,
      info->multiprocessors, info->copy_engines, driver, info->batches ? "with" : "without", shared,
      info->values_64 ? "32 and 64" : "32");
}

}  // namespace

DevicesCommand::DevicesCommand(CLI::App& app)
    : command_(app.add_subcommand("devices", "the GPUs, or why there are none")) {
  command_->add_flag("--json", json_, "as JSON");
}

// A machine without GPUs is an answer and no error.
int DevicesCommand::run() const {
  Found found;
  std::string why;
  const fsccl_status_t status = fsccl_device_list(add, &found);
  if (status == FSCCL_ERR_NOT_AVAILABLE) {
    fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
    if (failed(fsccl_last_error(&error))) return 1;
    why = error.text;
  } else if (failed(status)) {
    return 1;
  }
  if (json_) {
    fmt::print("{}\n", OrderedJson({{"why", why}, {"devices", found.list}})
                           .dump(2, ' ', false, OrderedJson::error_handler_t::replace));
  } else {
    fmt::print("{}", why.empty() ? found.text : why + "\n");
  }
  return 0;  // main() flushes
}
