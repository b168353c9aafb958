// A source of memory for tests, chosen by name, with adaptors on it, the lowest first. The sources
// are "host", "pool" (of a communicator of one rank), "outside" (outside_source.c), and "cuda",
// over the stand-in driver, whose memory this program can touch.
#pragma once
#include <fsccl/allocator.h>

#include <memory>
#include <string>
#include <vector>

#include "outside_source.h"
#include "support.h"

namespace fsccl::testing {

// A path in a folder of its own, which is removed with the object.
class TemporaryPath {
 public:
  TemporaryPath();
  ~TemporaryPath();
  TemporaryPath(const TemporaryPath&) = delete;
  const std::string& path() const { return path_; }
  std::string text() const;  // text of the file

 private:
  std::string folder_, path_;
};

class SourceStack {
 public:
  SourceStack(const std::string& source, const std::vector<std::string>& adaptors);
  ~SourceStack();
  SourceStack(const SourceStack&) = delete;

  const fsccl_allocator_t& top() const { return tables_.back(); }
  const fsccl_allocator_t& table(size_t level) const { return tables_.at(level); }  // 0: the source
  fsccl_pool_t pool() const { return pool_; }
  void forget_top() { tables_.pop_back(); }  // for a test that has destroyed the top table
  size_t largest_alignment() const { return source_ == "pool" ? 4096 : size_t{1} << 20; }
  bool bounded() const;
  bool shares() const;
  // Returns true if bytes [offset, offset + bytes) of the file equal those at `expected`, and
  // closes the file.
  static bool reads(int fd, uint64_t offset, const void* expected, size_t bytes);
  void expect_empty();  // expects that all memory of the source was given back

  std::vector<std::string> reports;  // reports of guards

 private:
  fsccl_allocator_t put_on(const std::string& adaptor, const fsccl_allocator_t& below);

  const std::string source_;
  const std::vector<std::string> adaptors_;
  TemporaryPath log_;
  std::unique_ptr<outside_source_t> outside_;
  fsccl_comm_t comm_ = nullptr;
  fsccl_pool_t pool_ = nullptr;
  std::vector<fsccl_allocator_t> tables_;
};

// Returns a communicator of one rank.
fsccl_comm_t alone();

}  // namespace fsccl::testing
