// The configuration of the process, which is read at its first use.
#include "base/config.h"

#include <sys/auxv.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

#include "base/config_store.h"
#include "base/immortal.h"
#include "base/log.h"
#include "fsccl/insight.h"

namespace fsccl {
namespace {

// Returns the FSCCL_* variables of the environment in their order, except those that the Python
// packages read themselves. A program with more rights than its user ignores the environment.
std::vector<ConfigSetting> read_environment() {
  std::vector<ConfigSetting> settings;
  if (getauxval(AT_SECURE) != 0 || environ == nullptr) return settings;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    const bool of_a_binding = text.starts_with("FSCCL_TORCH_") || text.starts_with("FSCCL_JAX_");
    if (!text.starts_with("FSCCL_") || of_a_binding || equals == std::string_view::npos) continue;
    settings.push_back(
        {std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)), 0});
  }
  return settings;
}

class ProcessConfig {
 public:
  ProcessConfig() : store_(read_environment()) {
    log_status_ = configure_log(store_.snapshot()->log_level, store_.snapshot()->log_file);
    warn();
  }

  Status status() {
    const std::lock_guard lock(mutex_);
    return store_.status().ok() ? log_status_.clone() : store_.status().clone();
  }
  ConfigRef snapshot() {
    const std::lock_guard lock(mutex_);
    return store_.snapshot();
  }
  Status set(std::string_view name, std::string_view value) {
    const std::lock_guard lock(mutex_);
    const ConfigRef before = store_.snapshot();
    const auto take = [&](const Config& now) {
      if (now.log_level == before->log_level && now.log_file == before->log_file) return success();
      FSCCL_TRY(configure_log(now.log_level, now.log_file));
      log_status_ = success();
      return success();
    };
    FSCCL_TRY(store_.set(name, value, take));
    if (name == "FSCCL_CONFIG_FILE") warn();
    return success();
  }
  Result<std::string> get(std::string_view name) {
    const std::lock_guard lock(mutex_);
    return store_.get(name);
  }
  std::vector<ConfigStore::Entry> entries() {
    const std::lock_guard lock(mutex_);
    return store_.entries();
  }

 private:
  void warn() const {
    for (const std::string& warning : store_.warnings()) FSCCL_LOG(kWarn, "{}", warning);
  }

  std::mutex mutex_;
  ConfigStore store_;
  Status log_status_;
};

// The configuration is never destroyed, because threads may still log or read settings while the
// process ends.
ProcessConfig& process_config() {
  static Immortal<ProcessConfig> instance;
  return instance.get();
}

}  // namespace

ConfigRef config() { return process_config().snapshot(); }
Status config_status() { return process_config().status(); }
Status config_set(std::string_view name, std::string_view value) {
  return process_config().set(name, value);
}

Result<std::string> config_get(std::string_view name) {
  FSCCL_TRY(config_status());
  return process_config().get(name);
}

Status config_dump(const std::function<void(const fsccl_config_entry_t&)>& visit) {
  FSCCL_TRY(config_status());
  const auto entries = process_config().entries();
  const auto& specs = config_specs();
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string accepted = config_accepted(specs[i]);
    visit({specs[i].name, entries[i].value.c_str(), specs[i].default_text, entries[i].source,
           accepted.c_str(), specs[i].doc});
  }
  return success();
}

}  // namespace fsccl
