// The system's description of this machine's processors, in /proc/cpuinfo. The first processor
// speaks for all.
#pragma once
#include <string>
#include <string_view>

namespace fsccl {

// The value behind the first line that begins with `key`, without characters that a text in JSON
// has to escape; empty where there is none. `info`: the text of that file.
std::string processor_field(std::string_view info, std::string_view key);

// Returns the name, family, model and stepping, which processors of one kind have in common, or
// what stands for them on Arm.
std::string processor_model(std::string_view info);

// The start of /proc/cpuinfo.
std::string processor_info();

}  // namespace fsccl
