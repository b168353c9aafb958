#include "base/whole_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

#include "base/write_file.h"

namespace fsccl {
namespace {

constexpr int kMostLinks = 40;  // the system follows as many
constexpr int kMostNames = 100;

Status refused(const std::string& path, int error) {
  return fail(FSCCL_ERR_SYSTEM, "'{}' cannot be written: {}", path, why_not_written(error));
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// Returns true if the links in this folder stand for descriptors of a process, as /dev/fd/1 does.
bool of_descriptors(const std::string& folder) {
  struct statfs facts{};
  return ::statfs(folder.c_str(), &facts) == 0 && facts.f_type == PROC_SUPER_MAGIC;
}

const char* unusable(mode_t mode) {
  return S_ISDIR(mode)    ? "a directory"
         : S_ISSOCK(mode) ? "a socket"
         : S_ISBLK(mode)  ? "a block device"
                          : nullptr;
}

}  // namespace

Result<OutputTarget> output_target(const std::string& path) {
  OutputTarget place{path, false, 0};
  struct stat facts{};
  for (int links = 0; ::lstat(place.path.c_str(), &facts) == 0; links++) {
    if (S_ISLNK(facts.st_mode) && !of_descriptors(folder_of(place.path))) {
      char text[PATH_MAX];
      const ssize_t bytes = ::readlink(place.path.c_str(), text, sizeof text);
      if (bytes < 0 || links == kMostLinks) return refused(path, bytes < 0 ? errno : ELOOP);
      const std::string target(text, static_cast<size_t>(bytes));
      place.path = target.starts_with('/') ? target : folder_of(place.path) + '/' + target;
      continue;
    }
    const bool descriptor = S_ISLNK(facts.st_mode);
    if (descriptor && ::stat(place.path.c_str(), &facts) != 0) return refused(path, errno);
    if (const char* const kind = unusable(facts.st_mode))
      return fail(FSCCL_ERR_SYSTEM,
                  "'{}' cannot be written: it is {}; name a file, a FIFO or a terminal", path,
                  kind);
    if (S_ISFIFO(facts.st_mode) && facts.st_uid != ::geteuid() && facts.st_uid != 0)
      return fail(FSCCL_ERR_SYSTEM,
                  "'{}' cannot be written: it is a FIFO of user {}, not of this one ({})", path,
                  facts.st_uid, ::geteuid());
    place.in_place = descriptor || !S_ISREG(facts.st_mode);
    if (!place.in_place && facts.st_uid == ::geteuid()) place.mode = facts.st_mode & 0777;
    return place;
  }
  if (errno != ENOENT || path.empty()) return refused(path, errno);
  return place;
}

Fd open_in_place(const std::string& path) {
  return make_fd([&] {
    return ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  });
}

std::string why_not_written(int error) {
  std::string advice = advice_for(error);
  if (error == ENXIO) advice = "; if it is a FIFO, start its reader first";
  if (error == EAGAIN) advice = "; its reader takes nothing";
  if (advice.empty()) advice = "; check the folder, its permissions and the room on its disk";
  return std::strerror(error) + advice;
}

WholeFile::~WholeFile() {
  if (fd_.valid() && !in_place()) ::unlink(written_.c_str());
}

Result<WholeFile> WholeFile::create(const std::string& path, How how) {
  FSCCL_ASSIGN(OutputTarget place, output_target(path));
  WholeFile file(place.in_place || how.follow_links ? std::move(place.path) : path, how);
  if (!place.in_place) {
    FSCCL_TRY(file.open_beside(how.keeps_mode ? place.mode : 0));
  } else if (file.fd_ = open_in_place(file.path_); !file.fd_.valid()) {
    return refused(path, errno);
  }
  return file;
}

Status WholeFile::open_beside(mode_t mode) {
  for (int tries = 0;; tries++) {
    uint32_t number = 0;
    if (::getrandom(&number, sizeof number, 0) != sizeof number)
      number = static_cast<uint32_t>(::getpid() + tries);
    written_ = fmt::format("{}.{:08x}", path_, number);
    fd_ = make_fd([&] {
      return ::open(written_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    how_.mode);
    });
    if (fd_.valid()) break;
    if (errno != EEXIST || tries == kMostNames) return refused(path_, errno);
  }
  if (mode && ::fchmod(fd_.get(), mode) != 0) return refused(path_, errno);
  return success();
}

void WholeFile::append(std::string_view text) {
  if (!error_) error_ = write_all(fd_.get(), text, how_.patience_ms);
}

Status WholeFile::commit() {
  if (error_) return refused(path_, error_);
  if (!in_place() && ::rename(written_.c_str(), path_.c_str()) != 0) return refused(path_, errno);
  fd_.reset();
  return success();
}

}  // namespace fsccl
