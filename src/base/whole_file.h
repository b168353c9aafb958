// A file of output. A regular file is either whole or unchanged: the text is written to another
// name beside it, and commit() moves it over the old file. Without commit() nothing is left of it.
// Files that are not regular are never replaced: a character device, a FIFO and the standard output
// by its name in /dev are written in place, and everything else is refused.
#pragma once
#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/status.h"

namespace fsccl {

// The file that the path of an output names. Errors (FSCCL_ERR_SYSTEM, here and below) name the
// path and the reason.
struct OutputTarget {
  std::string path;       // where symbolic links lead
  bool in_place = false;  // a device, a FIFO, or a descriptor by its name in /proc or /dev
  mode_t mode = 0;        // mode of a regular file of this user that exists; 0: there is none
};
Result<OutputTarget> output_target(const std::string& path);

// Opens what is written in place, for appending, without waiting: a FIFO that nobody reads is an
// error. Returns an invalid descriptor with errno.
Fd open_in_place(const std::string& path);

// The words of an error number of open() or write_all() for an output, with what to do about it.
std::string why_not_written(int error);

class WholeFile {
 public:
  struct How {
    mode_t mode = 0600;            // mode of a new file, less the umask
    bool keeps_mode = true;        // an existing file of this user keeps its own mode
    bool follow_links = false;     // to a regular file; otherwise that link is what is replaced
    int64_t patience_ms = 10'000;  // how long a reader of a FIFO may take nothing
  };
  static Result<WholeFile> create(const std::string& path, How how);
  static Result<WholeFile> create(const std::string& path) { return create(path, How()); }
  WholeFile(WholeFile&&) = default;
  ~WholeFile();

  bool in_place() const { return written_.empty(); }
  // Appends to the file. commit() reports what could not be written.
  void append(std::string_view text);
  Status commit();

 private:
  WholeFile(std::string path, How how) : path_(std::move(path)), how_(how) {}
  Status open_beside(mode_t mode);

  std::string path_, written_;  // written_: the other name; empty: in place
  How how_;
  Fd fd_;
  int error_ = 0;  // the first
};

}  // namespace fsccl
