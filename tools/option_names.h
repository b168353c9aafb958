// Names the options of `fsccl-info forecast` in errors of fsccl_forecast(), which name the keys of
// its configuration.
#pragma once
#include <string>

std::string with_option_names(std::string text);
