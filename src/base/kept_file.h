// Files that the library keeps for later processes of the same user, so that a process can use what
// an earlier one has measured. They are in the folder of the user's cache ($XDG_CACHE_HOME/fsccl,
// or ~/.cache/fsccl). The library checks them like any foreign input.
#pragma once
#include <string>
#include <string_view>

#include "base/status.h"

namespace fsccl {

inline constexpr size_t kMostKeptBytes = 64u << 10;

// Returns an empty path if the environment names no folder, if the path of the folder is not
// absolute, or if the process runs with more rights than its user.
std::string kept_file_path(std::string_view name);
// Reads the file only if it is a regular file of this user that nobody else can write, of at most
// kMostKeptBytes.
Result<std::string> read_kept_file(const std::string& path);
// Writes the whole file, or leaves it as it was. The file and the folder that it makes are open to
// their user alone, whatever the mode of a file that was there, so read_kept_file() accepts it.
Status keep_file(const std::string& path, std::string_view text);

}  // namespace fsccl
