// A forecast as JSON, from a configuration as JSON (fsccl_forecast() in insight.h says both).
#pragma once
#include <string>

#include "base/status.h"

namespace fsccl::forecast {

Result<std::string> forecast_json(const std::string& configuration);

}  // namespace fsccl::forecast
