// Writes the answer of fsccl_forecast() as text and as a page. These are pure functions of the
// answer.
#pragma once
#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

// The names of the parts of memory, by their keys.
inline constexpr std::array<std::pair<const char*, const char*>, 8> kMemoryParts{
    {{"shards_bytes", "shards of parameters"},
     {"sharded_gradients_bytes", "shards of gradients"},
     {"optimizer_bytes", "optimizer"},
     {"parameter_slots_bytes", "slots of parameters"},
     {"gradient_slots_bytes", "slots of gradients"},
     {"activations_bytes", "activations"},
     {"transports_bytes", "transports"},
     {"context_bytes", "driver and framework"}}};

std::string forecast_text(const nlohmann::json& answer);
std::string forecast_page(const nlohmann::json& answer);

// Returns the assumed speeds of the machine in words.
std::string machine_text(const nlohmann::json& answer);
// Returns the number at `key` of a part of the answer.
double number_at(const nlohmann::json& part, const char* key);
