#include "base/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fsccl {

WholeFile::WholeFile(std::string path, std::string written, Fd fd)
    : path_(std::move(path)), written_(std::move(written)), fd_(std::move(fd)) {}

WholeFile::~WholeFile() {
  if (fd_.valid()) ::unlink(written_.c_str());
}

Result<WholeFile> WholeFile::create(const std::string& path) {
  std::string name = path + ".XXXXXX";
  Fd fd(::mkostemp(name.data(), O_CLOEXEC));
  const int error = errno;
  WholeFile file(path, std::move(name), std::move(fd));
  if (!file.fd_.valid()) return file.refused(error);
  return file;
}

void WholeFile::append(std::string_view text) {
  while (!text.empty() && !error_) {
    const ssize_t written = ::write(fd_.get(), text.data(), text.size());
    if (written >= 0)
      text.remove_prefix(static_cast<size_t>(written));
    else if (errno != EINTR)
      error_ = errno;
  }
}

Status WholeFile::commit() {
  if (error_) return refused(error_);
  if (::rename(written_.c_str(), path_.c_str()) != 0) return refused(errno);
  fd_.reset();
  return success();
}

Status WholeFile::refused(int error) const {
  return fail(FSCCL_ERR_SYSTEM, "'{}' cannot be written: {}; check the folder, its permissions and the room on its disk", path_,
              std::strerror(error));
}

}  // namespace fsccl
