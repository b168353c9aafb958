// fsccl-info explain shows how a collective would be carried out, on ranks that need not exist.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

class ExplainCommand {
 public:
  explicit ExplainCommand(CLI::App& app);
  bool parsed() const { return command_->parsed(); }
  int run() const;  // the program's exit status

 private:
  CLI::App* command_;
  std::string operation_, bytes_, topology_, tuning_;
  int ranks_ = 2, hosts_ = 1, per_host_ = 0;
  bool json_ = false;
};
