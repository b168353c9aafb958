#include "base/kept_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/fd.h"
#include "base/whole_file.h"

namespace fsccl {
namespace {

Status unusable(const std::string& path, const char* why) {
  return fail(FSCCL_ERR_SYSTEM, "{} is not used: {}", path, why);
}

Status check_file(const Fd& file, const std::string& path) {
  struct stat facts{};
  if (::fstat(file.get(), &facts) != 0) return fail_errno(errno, path);
  if (!S_ISREG(facts.st_mode)) return unusable(path, "it is no regular file");
  if (facts.st_uid != ::geteuid())
    return unusable(path, "it belongs to another user; remove it or set XDG_CACHE_HOME");
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return unusable(path, "others than its user can write it; remove it, or chmod go-w");
  if (facts.st_size > static_cast<off_t>(kMostKeptBytes)) return unusable(path, "it is too large");
  return success();
}

}  // namespace

std::string kept_file_path(std::string_view name) {
  const auto folder = [](const char* variable, const char* below) {
    const char* const value = ::secure_getenv(variable);
    return value != nullptr && *value == '/' ? std::string(value) + below : std::string();
  };
  std::string path = folder("XDG_CACHE_HOME", "/fsccl");
  if (path.empty()) path = folder("HOME", "/.cache/fsccl");
  return path.empty() ? path : fmt::format("{}/{}", path, name);
}

Result<std::string> read_kept_file(const std::string& path) {
  // The open does not block, so that a FIFO is refused instead of waited for.
  const Fd file = make_fd([&] {
    return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW);
  });
  if (!file.valid()) return fail_errno(errno, path);
  FSCCL_TRY(check_file(file, path));
  std::string text(kMostKeptBytes, '\0');
  size_t bytes = 0;
  for (ssize_t got = 0; bytes < text.size(); bytes += static_cast<size_t>(got)) {
    do got = ::read(file.get(), text.data() + bytes, text.size() - bytes);
    while (got < 0 && errno == EINTR);
    if (got < 0) return fail_errno(errno, path);
    if (got == 0) break;
  }
  text.resize(bytes);
  return text;
}

Status keep_file(const std::string& path, std::string_view text) {
  const std::string folder = path.substr(0, path.rfind('/'));
  (void)::mkdir(folder.substr(0, folder.rfind('/')).c_str(), 0700);  // ~/.cache may not exist
  (void)::mkdir(folder.c_str(), 0700);
  FSCCL_ASSIGN(WholeFile file, WholeFile::create(path, {.keeps_mode = false}));
  file.append(text);
  return file.commit();
}

}  // namespace fsccl
