// The first starts on a machine keep what they have measured (calibration.h) in a file of the user
// (base/kept_file.h), in the form of a tuning file with an entry for each of these starts. Later
// starts take the least of each time, because other programs only add to it, and measure nothing.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "select/tuning_file.h"

namespace fsccl {

class KeptCosts {
 public:
  // Reads the file; what is wrong with it is as good as no file. The name of the file says of which
  // processor, microcode, kernel and library it is.
  KeptCosts(std::string_view transport, topo::LinkClass link)
      : KeptCosts(file_of(machine_name()), machine_name(), transport, link) {}
  KeptCosts(std::string path, std::string machine, std::string_view transport,
            topo::LinkClass link);

  // Null: too few starts have measured so far.
  const Costs* enough() const { return own_ < kStarts ? nullptr : &least_; }
  // Adds what this start has measured.
  void add(const Costs& measured);

 private:
  static constexpr size_t kStarts = 3;
  static std::string file_of(const std::string& machine);

  std::string path_;  // empty: nothing can be kept
  Tuning::Measured key_;
  std::vector<Tuning::Measured> entries_;  // including those of other links and transports
  size_t own_ = 0;                         // how many of them are of this one
  Costs least_;
};

}  // namespace fsccl
