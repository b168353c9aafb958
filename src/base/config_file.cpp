#include "base/config_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/config_value.h"
#include "base/fd.h"

namespace fsccl {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

bool is_variable_name(std::string_view name) {
  return name.starts_with("FSCCL_") && std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
         });
}

Status check_owner(const std::string& path, const struct stat& info) {
  if (!S_ISREG(info.st_mode))
    return fail(FSCCL_ERR_CONFIG, "FSCCL_CONFIG_FILE {} is not a regular file", quote(path));
  if (info.st_uid != 0 && info.st_uid != geteuid()) {
    return fail(
        FSCCL_ERR_CONFIG,
        "FSCCL_CONFIG_FILE {} belongs to user {}; it must belong to you (user {}) or to root",
        quote(path), info.st_uid, geteuid());
  }
  if ((info.st_mode & S_IWOTH) != 0) {
    return fail(
        FSCCL_ERR_CONFIG,
        "FSCCL_CONFIG_FILE {} is writable by everybody (mode {:04o}); correct it with chmod o-w",
        quote(path), info.st_mode & 07777);
  }
  return success();
}

}  // namespace

Result<std::vector<ConfigSetting>> read_config_file(const std::string& path) {
  // The open does not block, so that a FIFO is refused below instead of waited for.
  const Fd fd =
      make_fd([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); });
  struct stat info;
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    return fail(FSCCL_ERR_CONFIG, "FSCCL_CONFIG_FILE {} cannot be read: {}", quote(path),
                std::strerror(errno));
  }
  FSCCL_TRY(check_owner(path, info));
  std::string content;
  char part[4096];
  ssize_t got;
  while ((got = ::read(fd.get(), part, sizeof part)) != 0) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return fail(FSCCL_ERR_CONFIG, "FSCCL_CONFIG_FILE {} cannot be read: {}", quote(path),
                  std::strerror(errno));
    content.append(part, static_cast<size_t>(got));
    if (content.size() > kMaxFileBytes) {
      return fail(FSCCL_ERR_CONFIG,
                  "FSCCL_CONFIG_FILE {} is larger than {} bytes: it is no configuration file",
                  quote(path), kMaxFileBytes);
    }
  }
  return parse_config_file(path, content);
}

Result<std::vector<ConfigSetting>> parse_config_file(const std::string& path,
                                                     std::string_view content) {
  std::vector<ConfigSetting> settings;
  // Some editors put this mark (BOM) at the beginning of a text.
  if (content.starts_with("\xEF\xBB\xBF")) content.remove_prefix(3);
  if (content.starts_with("\xFF\xFE") || content.starts_with("\xFE\xFF"))
    return fail(FSCCL_ERR_CONFIG, "FSCCL_CONFIG_FILE {} is a text in UTF-16; store it as UTF-8",
                quote(path));
  for (int line_number = 1; !content.empty(); ++line_number) {
    const size_t end = std::min(content.find('\n'), content.size());
    const std::string_view line = trim(content.substr(0, end));
    content.remove_prefix(std::min(end + 1, content.size()));
    if (line.empty() || line[0] == '#') continue;

    const size_t equals = line.find('=');
    const std::string_view name = trim(line.substr(0, equals));
    if (equals == std::string_view::npos || !is_variable_name(name)) {
      return fail(FSCCL_ERR_CONFIG, "{}, line {}: {} is not of the form FSCCL_NAME=value",
                  quote(path), line_number, quote(line));
    }
    const auto same = std::find_if(settings.begin(), settings.end(),
                                   [&](const ConfigSetting& s) { return s.name == name; });
    if (same != settings.end()) {
      return fail(FSCCL_ERR_CONFIG, "{}, line {}: {} is already set in line {}; remove one",
                  quote(path), line_number, name, same->line);
    }
    settings.push_back(
        {std::string(name), std::string(trim(line.substr(equals + 1))), line_number});
  }
  return settings;
}

}  // namespace fsccl
