// fsccl-info devices shows the GPUs of this machine, or why there are none.
#pragma once
#include <CLI/CLI.hpp>

class DevicesCommand {
 public:
  explicit DevicesCommand(CLI::App& app);
  bool parsed() const { return command_->parsed(); }
  int run() const;  // the program's exit status

 private:
  CLI::App* command_;
  bool json_ = false;
};
