// fsccl_forecast: predicts a step before it runs, through the public header.
#include "forecast/report.h"

#include "api/guard.h"
#include "base/config.h"
#include "base/fork.h"
#include "fsccl/insight.h"

using namespace fsccl;

extern "C" {

fsccl_status_t fsccl_forecast(const char* configuration,
                              void (*take)(void* context, const char* json, size_t bytes),
                              void* context) {
  return guarded("fsccl_forecast", [&]() -> Status {
    if (forked()) return forked_status();
    if (!configuration || !take)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is NULL",
                  configuration ? "take" : "configuration");
    FSCCL_TRY(config_status());
    FSCCL_ASSIGN(const std::string text, forecast::forecast_json(configuration));
    take(context, text.c_str(), text.size());
    return success();
  });
}

}  // extern "C"
