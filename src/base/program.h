// The frame that the programs fsccl-info, fsccl-perf and fsccl-trace share: main(), and files of
// output.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/whole_file.h"

namespace fsccl {

// Returns the exit status of run(argc, argv), or 1 with a line on the standard error where the
// standard output could not take all of it. Standard streams that are closed stay closed to the
// program, but no file of it gets their numbers. A file that passes the limit of file sizes is an
// error of the write.
int run_program(const char* name, int argc, char** argv, int (*run)(int, char**));

// A file that a user of a program has named: readable as the user's umask says, written through a
// link to a file. open() tells whether it can be written, long before there is something to write,
// and changes nothing yet.
class OutputFile {
 public:
  Status open(const std::string& path);
  Status write(std::string_view text);  // once, after open()

 private:
  std::string path_;
  // from open() on what is written in place: a reader of a FIFO would take the end of a first
  // opening for the end of the text
  std::optional<WholeFile> file_;
};
// Both at once.
Status write_output(const std::string& path, std::string_view text);

}  // namespace fsccl
