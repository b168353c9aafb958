// Resolves the variables from their four sources: default < file < environment < API. The
// process-wide functions of config.h use one store. A store takes the environment as an argument,
// and only set() changes it. It is not thread safe.
#pragma once
#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/config_file.h"
#include "base/config_value.h"

namespace fsccl {

// Returns the table of config.def.
const std::vector<ConfigSpec>& config_specs();

class ConfigStore {
 public:
  explicit ConfigStore(std::vector<ConfigSetting> environment);

  const ConfigRef& snapshot() const { return snapshot_; }
  const Status& status() const { return status_; }
  // Returns a warning for each unknown name, with the nearest known name. The caller shows each
  // warning to the user once.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Sets the variable, or returns an error and changes nothing. The new settings are valid if
  // take(settings) succeeds, which may be left out.
  Status set(std::string_view name, std::string_view value,
             const std::function<Status(const Config&)>& take = {});
  Result<std::string> get(std::string_view name) const;

  struct Entry {
    std::string value;
    const char* source = "default";
  };
  const std::vector<Entry>& entries() const { return entries_; }  // in the order of config_specs()

 private:
  Status read_file();
  void resolve();
  void apply(const std::vector<ConfigSetting>& settings, const char* source,
             std::vector<ConfigValue>* values);
  void complain(Status status);

  std::vector<ConfigSetting> file_, environment_, api_;
  std::string file_path_;  // the file whose settings file_ holds
  std::vector<Entry> entries_;
  std::vector<std::string> warnings_;
  ConfigRef snapshot_;
  Status status_;  // the first error
};

}  // namespace fsccl
