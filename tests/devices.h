// Character devices for tests of outputs. A wrong library would replace the node at the path of an
// output by a file. So a user who may replace the machine's nodes, such as root, gets nodes that
// the test has made.
#pragma once
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <string>

namespace fsccl {

// Returns the path of a device like /dev/null (3) or /dev/full (7), or an empty text if the test
// cannot have one that it may risk.
inline std::string device_like(const char* name, unsigned minor, const std::string& folder) {
  const std::string own = folder + "/" + name;
  if (geteuid() != 0) return std::string("/dev/") + name;
  if (mknod(own.c_str(), S_IFCHR | 0666, makedev(1, minor)) != 0) return "";
  // A file system that is mounted with nodev refuses this.
  const int fd = open(own.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return "";
  close(fd);
  return own;
}

}  // namespace fsccl
