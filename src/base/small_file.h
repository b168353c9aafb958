// Reads the small files in which the system describes itself (/proc, /sys).
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "base/fd.h"

namespace fsccl {

// Returns the first 4 KiB of the file, or an empty text if it cannot be read.
inline std::string read_start(const std::string& path) {
  char text[4096];
  const Fd file = make_fd([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
  const ssize_t bytes = file.valid() ? ::read(file.get(), text, sizeof text) : 0;
  return {text, bytes > 0 ? static_cast<size_t>(bytes) : 0};
}

// Returns all of the file, as far as it can be read.
inline std::string read_small_file(const std::string& path) {
  std::string text;
  char part[4096];
  const Fd file = make_fd([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
  ssize_t bytes = 0;
  while (file.valid() && (bytes = ::read(file.get(), part, sizeof part)) > 0)
    text.append(part, static_cast<size_t>(bytes));
  return text;
}

}  // namespace fsccl
