// Stands in for base/config.cpp: a simulated job has the default of each setting, whatever the
// environment of this process says.
#include "base/config_store.h"

namespace fsccl {

ConfigRef config() {
  static const ConfigRef defaults = ConfigStore({}).snapshot();
  return defaults;
}
Status config_status() { return success(); }

}  // namespace fsccl
