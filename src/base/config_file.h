// The configuration file: lines NAME=value, blank lines, and comments that begin with #. Blanks
// around name and value are dropped. A file that somebody else could have written is refused, and
// so is one with a line that cannot be read: settings are never dropped in silence.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fsccl {

struct ConfigSetting {
  std::string name, value;
  int line = 0;  // in the file; 0 elsewhere
};

Result<std::vector<ConfigSetting>> read_config_file(const std::string& path);
// `path` is for messages.
Result<std::vector<ConfigSetting>> parse_config_file(const std::string& path,
                                                     std::string_view content);

}  // namespace fsccl
