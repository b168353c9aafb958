// Writes the answer of fsccl_forecast() as text and as a page. These are pure functions of the
// answer.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

std::string forecast_text(const nlohmann::json& answer);
std::string forecast_page(const nlohmann::json& answer);

// Returns the number at `key` of a part of the answer.
double number_at(const nlohmann::json& part, const char* key);
