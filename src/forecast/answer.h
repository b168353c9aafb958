// Writes the answer of a forecast as entries of a JSON object. The table in docs/forecast.md has
// the keys.
#pragma once
#include "base/json_value.h"
#include "base/json_writer.h"
#include "base/status.h"
#include "forecast/forecast.h"

namespace fsccl::forecast {

// Writes what each answer has: the model, the machine, the setup, its memory and its step. `given`
// is the configuration.
void write_answer(const JsonValue& given, const Forecaster& forecaster, const Forecast& forecast,
                  JsonWriter& out);
// Writes the parts that the configuration asks for, such as "search", and the advice if the
// setup does not fit. `call_us` is the processor time of a system call of the start; 0: typical.
Status write_extras(const JsonValue& given, Forecaster& forecaster, const Forecast& forecast,
                    double call_us, JsonWriter& out);

}  // namespace fsccl::forecast
