// The system's description of this machine's processors, in /proc/cpuinfo. The description of the
// first processor is taken for all.
#pragma once
#include <string>
#include <string_view>

namespace fsccl {

// Returns the value on the first line of `info`, the text of that file, that begins with `key`. The
// value is without characters that JSON has to escape. It is empty if there is no such line.
std::string processor_field(std::string_view info, std::string_view key);

// Returns the name, family, model and stepping (on Arm, the fields that correspond to them), which
// are the same for all processors of one kind.
std::string processor_model(std::string_view info);

// Returns the start of /proc/cpuinfo.
std::string processor_info();

}  // namespace fsccl
