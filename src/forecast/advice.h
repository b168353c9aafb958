// Says in words what to change so that a setup fits the memory of a rank.
#pragma once
#include <string>
#include <vector>

#include "forecast/search.h"

namespace fsccl::forecast {

// `choices` are those of search(). If none of them fits, the text says what takes less memory. The
// text is empty if the setup fits already; otherwise `choices` has one or more.
Result<std::string> advice_of(Forecaster& forecaster, const Forecast& forecast,
                              const std::vector<Choice>& choices);

}  // namespace fsccl::forecast
