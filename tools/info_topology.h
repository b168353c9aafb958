// fsccl-info topology shows what this machine, or one that a file describes, is made of.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

class TopologyCommand {
 public:
  explicit TopologyCommand(CLI::App& app);
  bool parsed() const { return command_->parsed(); }
  int run() const;  // the program's exit status

 private:
  CLI::App* command_;
  // Writes the picture. Returns false after printing an error.
  bool draw(const char* file) const;

  std::string file_, svg_;
  int ranks_ = 0;
  std::vector<std::string> between_;
  bool json_ = false;
};
