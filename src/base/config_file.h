// The parser of the configuration file. The file has lines NAME=value, blank lines, and comments
// that begin with #. Blanks around a name and a value are ignored. A file that another user could
// have written is an error, and so is a line that is none of these, so no setting is ignored
// silently.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fsccl {

struct ConfigSetting {
  std::string name, value;
  int line = 0;  // the line in the file; 0 if the setting comes from elsewhere
};

Result<std::vector<ConfigSetting>> read_config_file(const std::string& path);
// Returns the settings of a file. Its messages name `path`.
Result<std::vector<ConfigSetting>> parse_config_file(const std::string& path,
                                                     std::string_view content);

}  // namespace fsccl
