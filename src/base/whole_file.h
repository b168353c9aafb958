// A file that is there whole or not at all: written beside its place under another name, and moved there at the end, over what was
// there. Without commit() nothing is left of it.
#pragma once
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/status.h"

namespace fsccl {

class WholeFile {
 public:
  // FSCCL_ERR_SYSTEM, here and below, names the path and the reason.
  static Result<WholeFile> create(const std::string& path);
  WholeFile(WholeFile&&) = default;
  ~WholeFile();

  // What cannot be written is said by commit().
  void append(std::string_view text);
  Status commit();

 private:
  WholeFile(std::string path, std::string written, Fd fd);
  Status refused(int error) const;

  std::string path_, written_;
  Fd fd_;
  int error_ = 0;  // the first
};

}  // namespace fsccl
