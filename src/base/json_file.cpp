#include "base/json_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/fd.h"

namespace fsccl {
namespace {
constexpr int kWriterMs = 10'000;  // patience for a program that writes to a FIFO
}

Result<std::string> read_text_file(const std::string& path, size_t most_bytes) {
  const Fd file =
      make_fd([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); });
  if (!file.valid()) return fail_errno(errno, path + ": cannot be opened");
  // A device such as /dev/zero may give bytes without end.
  if (struct stat of{}; ::fstat(file.get(), &of) == 0)
    if (S_ISCHR(of.st_mode) || S_ISBLK(of.st_mode) || S_ISDIR(of.st_mode))
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is a {}: give a file", path,
                  S_ISDIR(of.st_mode) ? "folder" : "device");
  std::string text;
  std::vector<char> part(64 << 10);
  // A FIFO without a writer never has anything to read.
  if (pollfd entry = {file.get(), POLLIN, 0}; ::poll(&entry, 1, kWriterMs) == 0)
    return fail(FSCCL_ERR_SYSTEM, "{} cannot be read: nobody writes to it", path);
  while (text.size() <= most_bytes) {
    const ssize_t got = ::read(file.get(), part.data(), part.size());
    if (got == 0) break;
    if (got > 0) {
      text.append(part.data(), static_cast<size_t>(got));
    } else if (errno == EAGAIN) {
      pollfd entry = {file.get(), POLLIN, 0};
      if (::poll(&entry, 1, kWriterMs) == 0)
        return fail(FSCCL_ERR_SYSTEM, "{} cannot be read: its writer has stopped", path);
    } else if (errno != EINTR) {
      return fail(FSCCL_ERR_SYSTEM, "{} cannot be read: {}", path, std::strerror(errno));
    }
  }
  if (text.size() > most_bytes)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{}: more than {} bytes", path, most_bytes);
  return text;
}

bool JsonReader::object(const Json& json, const std::string& place,
                        std::initializer_list<const char*> known) {
  if (!json.is_object()) return wrong("{} must be an object", place);
  for (const auto& [key, value] : json.items())
    if (std::find_if(known.begin(), known.end(),
                     [&key = key](const char* name) { return key == name; }) == known.end())
      return wrong("{} has \"{}\"; known are {}", place, key, fmt::join(known, ", "));
  return true;
}

bool JsonReader::text(const Json& json, const char* key, const std::string& place, bool needed,
                      std::string* value) {
  if (!json.contains(key)) return !needed || wrong("{} has no \"{}\"", place, key);
  if (!json[key].is_string()) return wrong("{}.{} must be a text", place, key);
  *value = json[key].get<std::string>();
  if (needed && value->empty()) return wrong("{}.{} is empty", place, key);
  for (const char c : *value)
    if (static_cast<unsigned char>(c) < ' ')
      return wrong("{}.{} has a control character", place, key);
  return true;
}

bool JsonReader::number(const Json& json, const char* key, const std::string& place, double most,
                        double* value) {
  if (!json.contains(key)) return true;
  if (!json[key].is_number()) return wrong("{}.{} must be a number", place, key);
  *value = json[key].get<double>();
  return (*value >= 0 && *value <= most) ||
         wrong("{}.{} is {}: it must be from 0 to {}", place, key, *value, most);
}

bool JsonReader::number_from(const Json& json, const char* key, const std::string& place,
                             double least, double most, double* value) {
  if (!number(json, key, place, most, value)) return false;
  return !json.contains(key) || *value >= least ||
         wrong("{}.{} is {}: it must be from {} to {}", place, key, *value, least, most);
}

bool JsonReader::whole(const Json& json, const char* key, const std::string& place, double most,
                       double* value) {
  if (!number(json, key, place, most, value)) return false;
  return *value == std::floor(*value) ||
         wrong("{}.{} is {}: it must be a whole number", place, key, *value);
}

}  // namespace fsccl
