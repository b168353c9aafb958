// fsccl-perf race measures all variants of each pass over memory that this processor can run
// against each other (kernels/race.h). Jobs take the winners from then on; the table is for people
// and bug reports. The program is one process without ranks.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace fsccl::perf {

class RaceCommand {
 public:
  void add_to(CLI::App* command);
  int run(bool json) const;  // returns the program's exit status

 private:
  int threads_ = 1, samples_ = 15;
  double seconds_ = 30;
  bool keep_ = true;
  const CLI::Option* keep_option_ = nullptr;
};

}  // namespace fsccl::perf
