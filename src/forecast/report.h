// Makes a forecast, as JSON, from a configuration in JSON. The comment of fsccl_forecast() in
// insight.h describes both.
#pragma once
#include <string>

#include "base/status.h"

namespace fsccl::forecast {

Result<std::string> forecast_json(const std::string& configuration);

}  // namespace fsccl::forecast
