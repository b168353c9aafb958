// Files that this library keeps for later processes of the same user: what one has measured, the
// next need not. They lie in the folder of the user's cache ($XDG_CACHE_HOME/fsccl, or
// ~/.cache/fsccl), and are not trusted.
#pragma once
#include <string>
#include <string_view>

#include "base/status.h"

namespace fsccl {

inline constexpr size_t kMostKeptBytes = 64u << 10;

// Empty where the environment names no folder, or not by an absolute path, or where the process
// runs with more rights than its user.
std::string kept_file_path(std::string_view name);
// Only a regular file of this user that nobody else can write, of at most kMostKeptBytes.
Result<std::string> read_kept_file(const std::string& path);
// Whole or not at all. Makes the folder, for its user alone.
Status keep_file(const std::string& path, std::string_view text);

}  // namespace fsccl
