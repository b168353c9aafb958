// fsccl-info layout shows how evenly a layout spreads the units of a model over ranks, against the
// bound that no layout can beat.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

class LayoutCommand {
 public:
  explicit LayoutCommand(CLI::App& app);  // must live until parsing is over
  bool parsed() const { return command_->parsed(); }
  int run() const;  // the exit status

 private:
  CLI::App* command_;
  std::string model_;
  std::string layout_ = "ragged";
  std::vector<int> world_ = {64, 256, 1024, 4096};
  std::vector<std::string> blocks_ = {"element"};
  bool json_ = false;
};
