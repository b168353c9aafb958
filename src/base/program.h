// The parts that fsccl-info, fsccl-perf and fsccl-trace share: main(), and output files.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/whole_file.h"

namespace fsccl {

// Returns the exit status of run(argc, argv). If the standard output could not take all of the
// output, prints a line on the standard error and returns 1. Standard streams that are closed stay
// closed for the program, but no file of it gets their numbers. If a file exceeds the limit of file
// sizes, the write returns an error.
int run_program(const char* name, int argc, char** argv, int (*run)(int, char**));

// An output file that the user of a program has named. Its permissions follow the user's umask. If
// the path is a link to a file, the output is written to that file. open() tells whether the file
// can be written, long before there is output, and does not change it.
class OutputFile {
 public:
  Status open(const std::string& path);
  Status write(std::string_view text);  // once, after open()

 private:
  std::string path_;
  // A file that is written in place is open from open() on: if a FIFO were opened twice, its reader
  // would take the end of the first opening for the end of the text.
  std::optional<WholeFile> file_;
};
// Opens the file and writes the text.
Status write_output(const std::string& path, std::string_view text);

}  // namespace fsccl
