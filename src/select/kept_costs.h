// Costs that were measured at earlier starts on this machine. The first starts write what they have
// measured (calibration.h) to a file of the user (base/kept_file.h), which is a tuning file with an
// entry for each of these starts. Later starts measure nothing: they take the middle one of each
// time. Other programs can make a measured time longer, and a time that is the difference of two
// measured ones, as those of slots are, also shorter.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "select/tuning_file.h"

namespace fsccl {

class KeptCosts {
 public:
  // Reads the file. A file that is damaged counts as no file. The name of the file has a hash of
  // the processor, its microcode, the kernel, the build of the library and the size of a slot,
  // which limits the bytes that a measurement moves at a time.
  KeptCosts(std::string_view transport, topo::LinkClass link, size_t slot_bytes)
      : KeptCosts(file_of(machine_name(), slot_bytes), machine_name(), transport, link) {}
  KeptCosts(std::string path, std::string machine, std::string_view transport,
            topo::LinkClass link);

  // Returns the costs, or null if too few starts have measured so far.
  const Costs* enough() const { return own_ < kStarts ? nullptr : &middle_; }
  // Adds what this start has measured.
  void add(const Costs& measured);

 private:
  static constexpr size_t kStarts = 3;
  static std::string file_of(const std::string& machine, size_t slot_bytes);

  std::string path_;  // empty if nothing can be kept
  Tuning::Measured key_;
  std::vector<Tuning::Measured> entries_;  // including those of other links and transports
  size_t own_ = 0;                         // the number of entries of this link and transport
  Costs middle_;
};

}  // namespace fsccl
