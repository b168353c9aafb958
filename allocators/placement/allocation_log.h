// A file with one line for each piece of memory that is taken or given back, in the form of RMM's
// logging_resource_adaptor, which RMM's tools replay and draw:
// "Thread,Time,Action,Pointer,Size,Stream", with the time of day to the microsecond, and addresses
// and streams in hexadecimal. Lines are collected, and many whole lines are written at once. A
// failed write ends the log with a warning, and never ends the program. One thread at a time may
// use a log.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace fsccl {

class AllocationLog {
 public:
  // Appends to an existing file; a new file can be read by its owner alone. Devices, FIFOs with a
  // reader and names of descriptors such as /dev/stdout are written in place; a link to a file is
  // refused. Returns FSCCL_ERR_CONFIG if the file cannot be opened. Errors name `setting` as the
  // source of the path.
  static Result<std::unique_ptr<AllocationLog>> open(const std::string& path,
                                                     const std::string& setting = "FSCCL_POOL_LOG");
  ~AllocationLog() { flush(); }
  AllocationLog(const AllocationLog&) = delete;

  void allocate(int64_t time_us, uint64_t address, uint64_t bytes, uint64_t stream) {
    line(time_us, "allocate", address, bytes, stream);
  }
  void free(int64_t time_us, uint64_t address, uint64_t bytes, uint64_t stream) {
    line(time_us, "free", address, bytes, stream);
  }
  void failure(int64_t time_us, uint64_t bytes, uint64_t stream) {
    line(time_us, "allocate failure", 0, bytes, stream);
  }
  void flush();

 private:
  AllocationLog(std::string path, std::string setting, Fd fd)
      : path_(std::move(path)), setting_(std::move(setting)), fd_(std::move(fd)) {}
  void line(int64_t time_us, const char* action, uint64_t address, uint64_t bytes, uint64_t stream);

  std::string path_, setting_;
  Fd fd_;
  std::string lines_;
  int64_t second_ = -1;  // the second whose time of day is in clock_
  std::string clock_;
};

}  // namespace fsccl
